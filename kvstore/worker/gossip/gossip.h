#pragma once
// Mode gossip: every worker trains with an Updater of its own, as mode `local` does, and every `steps` steps meets
// another one (gossip_peer.h); no servers.
//
// A meeting begins after the updates of its step and may last while the next ones are made; the one after it waits for
// it. Running statistics meet, too, but a worker's next own value replaces them.
//
// A barrier is where all are equal: the leader fetches the weights of all, and they take the mean. So what is saved or
// evaluated after one is the mean; the optimizer's state in a checkpoint is the leader's, and what all go on with. Who
// is lost in a barrier is left out; if that is the leader, weights stay apart until the next.

#include <paceline/backend.h>
#include <paceline/cluster.h>
#include <paceline/kvstore.h>

#include <memory>

namespace paceline {

// Throws InvalidArgument on options that `gossip` does not have and on a job with servers.
void check_gossip(const Spec& mode, const ClusterConfig& config);
// Joins the job; blocks as Node::join() does, and throws the same.
std::unique_ptr<Backend> make_gossip_backend(const ClusterConfig& config, const Spec& mode,
                                             const StoreOptions& options);

}  // namespace paceline

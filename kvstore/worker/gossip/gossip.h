#pragma once
// Mode gossip, without servers. Every worker trains with its own Updater, as in mode `local`. Every `steps` steps it
// meets another worker, and both average their weights (gossip_peer.h).
//
// A meeting begins after the updates of its step, and may last during the next updates. The next meeting waits until
// this one is over. Running statistics are averaged too, but the worker's next push replaces the average.
//
// After a barrier all workers have equal weights: the leader fetches the weights of all, and all take the mean. So the
// weights that are saved or evaluated then are the mean. A checkpoint holds the leader's optimizer state, and all
// workers resume with it. A worker that is lost in a barrier is left out. If the leader is lost, the weights stay
// different until the next barrier. If it is lost while all load a state, load() throws NetworkError at all workers.

#include <paceline/backend.h>
#include <paceline/cluster.h>
#include <paceline/kvstore.h>

#include <memory>

namespace paceline {

// Throws InvalidArgument for options that `gossip` does not have, and for a job with servers.
void check_gossip(const Spec& mode, const ClusterConfig& config);
// Joins the job. Blocks and throws as Node::join() does.
std::unique_ptr<Backend> make_gossip_backend(const ClusterConfig& config, const Spec& mode,
                                             const StoreOptions& options);

}  // namespace paceline

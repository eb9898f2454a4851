#pragma once
// A worker's part in mode gossip: asynchronous decentralised averaging (AD-PSGD, Lian et al. 2018; randomised gossip,
// Boyd et al. 2006). After some of its steps a worker meets another one, drawn from the live workers by seed, rank and
// step. Both move towards the mean of their weights:
//
//   1. Worker i sends its weights x_i to worker j.
//   2. Worker j moves its weights by d = (x_i - x_j) / 2, each slice in one atomic change, and answers d.
//   3. Worker i moves its weights by -d.
//
// A meeting does not change the sum of the weights over the workers, up to rounding, even if both workers train
// meanwhile. Each side applies d exactly once. The worker that asks numbers its meetings, and has only one of them
// open. j keeps its last answer to each worker until that worker has received it, and repeats the answer if it is asked
// again. A worker answers even while a meeting of its own is open, so two workers may choose each other. The weights of
// a lost worker are lost. So is its half of a meeting, even if the other side has already applied its own. A worker
// leaves when its meetings are over. While a worker trains, it waits for an open meeting only when its next meeting
// begins.

#include <paceline/cluster.h>
#include <paceline/mutex.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/saved_state.h"
#include "local/local.h"
#include "payload.h"
#include "scheduler_client.h"
#include "send/transfer.h"
#include "workers.pb.h"

namespace paceline {

// Draws the worker of `others` that worker `rank` meets at the end of a step.
int gossip_partner(const std::vector<int>& others, std::int64_t seed, int rank, std::int64_t step);

class GossipPeer {
 public:
  // Joins the job. Blocks and throws as Node::join() does. Throws NetworkError, too, if this worker comes after the
  // start. `local` holds this worker's weights.
  GossipPeer(const ClusterConfig& config, LocalBackend& local, std::int64_t seed);

  Node& node() { return node_; }
  const Node& node() const { return node_; }
  // Live workers, ascending. Workers that came after the start are left out, because they are refused.
  std::vector<int> members() const;
  // Adds keys of `local`, in the same order at every worker. Returns the number of the first.
  std::size_t add_keys(const std::vector<KeyInfo>& keys);
  std::vector<LocalBackend::Weights> keys() const;
  // Starts a meeting with the weights of `snapshots`. Calls done() or fail() of `completion` when the meeting is over.
  // Only one meeting of this worker may be open.
  void meet(const std::vector<Snapshot>& snapshots, std::int64_t step, Completion completion);
  // Sends a message that needs no answer. leave() waits until it has arrived. Calls `arrived` then, or when it cannot.
  void tell(const PeerId& peer, Message message, std::function<void()> arrived = {});
  // Blocks until the messages of tell() have arrived.
  void settle() { told_->wait_none(); }
  // Leaves the job when all messages and answers of this worker have arrived. No meeting of its own may be open.
  void leave();

  // The functions below are for calls that all workers make together: init, load and barriers. fetch() and take_mean()
  // block.

  // Asks worker `from` for the weights of all keys numbered `first` or higher. With `state`, also asks for the
  // optimizer's state. Returns an empty list if that worker is lost.
  std::vector<SavedKey> fetch(int from, std::size_t first, bool state);
  // Moves the weights of key `first` and of all later keys towards `fetched`, by `share` of the difference.
  void take(const std::vector<SavedKey>& fetched, std::size_t first, double share);
  // Moves the weights to the mean over the workers that can be reached.
  void take_mean();

 private:
  using Weights = LocalBackend::Weights;

  // The answer to another worker's last meeting.
  struct Answer {
    std::uint64_t number = 0;
    std::optional<Message> message;  // until the other worker has received it
  };

  void take_answer(const PeerId& partner, const wire::GossipMeet& asked, const Message& answer);
  // Returns the addresses of the arrays in a payload, one for each of the first `keys` entries of keys_. The arrays
  // hold weights or differences. Throws Corrupt unless the payload holds exactly these arrays.
  std::vector<const std::byte*> runs(PayloadReader& payload, std::size_t keys) PACELINE_REQUIRES(mutex_);
  // Handlers of the Node, and the functions that they call:
  void on_request(const Request& request);
  void on_roster(const Roster& roster);
  Message answer_meeting(const Request& request);
  Message answer_fetch(const Request& request);
  void forget(Answer& answer) PACELINE_REQUIRES(mutex_);

  LocalBackend& local_;
  Updater& updater_;
  const std::int64_t seed_;
  const std::shared_ptr<Pending> told_ = std::make_shared<Pending>();  // messages of tell() that have not arrived
  Pending kept_;                                                       // answers that others may ask for again

  mutable Mutex mutex_;
  std::vector<Weights> keys_ PACELINE_GUARDED_BY(mutex_);
  std::map<int, Answer> answers_ PACELINE_GUARDED_BY(mutex_);  // by rank
  bool leaving_ PACELINE_GUARDED_BY(mutex_) = false;

  Node node_;  // last, because its threads use the other members
};

}  // namespace paceline

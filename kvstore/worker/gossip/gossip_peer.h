#pragma once
// A worker's part in mode gossip: asynchronous decentralised averaging (AD-PSGD, Lian et al. 2018; randomised gossip,
// Boyd et al. 2006). After some of its steps a worker's weights meet those of another one, drawn from the live ones by
// seed, rank and step. Both move to the mean, and nobody waits:
//
//   worker i sends x_i to j; j moves by d = (x_i - x_j) / 2, in one turn of the slice, and answers d; i moves by -d.
//
// Whatever both have learned in between, the sum over the workers stays what it was, up to rounding. d is taken once at
// each end: meetings are numbered by the worker that asks, one of its own at a time; j keeps its last answer to each
// other until that one has it, and gives the same again when asked again. Who answers is never held up by a meeting of
// its own, so that two may choose each other. A worker that is lost takes its weights along, and what of a meeting the
// other had already taken; one that leaves does so when its meetings are over.

#include <paceline/cluster.h>
#include <paceline/mutex.h>

#include <cstdint>
#include <exception>
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

// Which of `others` meets worker `rank` at the end of that step.
int gossip_partner(const std::vector<int>& others, std::int64_t seed, int rank, std::int64_t step);

class GossipPeer {
 public:
  // Joins the job; blocks as Node::join() does, and throws the same. `local` holds this worker's weights.
  GossipPeer(const ClusterConfig& config, LocalBackend& local, std::int64_t seed);

  Node& node() { return node_; }
  const Node& node() const { return node_; }
  // Live workers, ascending; not one that came after the start and will be turned away.
  std::vector<int> members() const;
  // Keys of `local` take part from now on, in the same order at every worker. Returns the number of the first.
  std::size_t add_keys(const std::vector<KeyInfo>& keys);
  std::vector<LocalBackend::Weights> keys() const;
  // One meeting, of the weights as they were: `completion` ends when it is over. Not while another is open.
  void meet(const std::vector<Snapshot>& snapshots, std::int64_t step, Completion completion);
  // leave() waits until it was heard.
  void tell(const PeerId& peer, Message message);
  // Blocks until others have what they were told.
  void settle() { pending_->wait_none(); }
  // Leaves the job when others have what they were told and answered. No meeting of its own may be open.
  void leave();

  // For when all workers are together; these block.

  // Another's weights of the keys from `first` on, and its optimizer's state; empty where it is lost. Throws what it
  // refuses fetches with.
  std::vector<SavedKey> fetch(int from, std::size_t first, bool state);
  // What fetch() from this worker throws from now on, or null.
  void refuse_fetches(std::exception_ptr why);
  // Moves the weights from key `first` on by that share of their way to `fetched`.
  void take(const std::vector<SavedKey>& fetched, std::size_t first, double share);
  // Moves to the mean over the workers that can be reached.
  void take_mean();

 private:
  using Weights = LocalBackend::Weights;

  // To another's last meeting.
  struct Answer {
    std::uint64_t number = 0;
    std::optional<Message> message;  // until the other has it
  };

  void take_answer(const PeerId& partner, const wire::GossipMeet& asked, const Message& answer);
  // Where each of the first `keys` keys lies; throws Corrupt where it is not those.
  std::vector<const std::byte*> runs(PayloadReader& payload, std::size_t keys) PACELINE_REQUIRES(mutex_);
  // On threads of the Node:
  void on_request(const Request& request);
  void on_roster(const Roster& roster);
  Message answer_meeting(const Request& request);
  Message answer_fetch(const Request& request);
  void forget(Answer& answer) PACELINE_REQUIRES(mutex_);

  LocalBackend& local_;
  Updater& updater_;
  const std::int64_t seed_;
  const std::shared_ptr<Pending> pending_ =
      std::make_shared<Pending>();  // what others must have before this one leaves

  mutable Mutex mutex_;
  std::vector<Weights> keys_ PACELINE_GUARDED_BY(mutex_);
  std::map<int, Answer> answers_ PACELINE_GUARDED_BY(mutex_);  // by rank
  std::exception_ptr refusal_ PACELINE_GUARDED_BY(mutex_);
  bool leaving_ PACELINE_GUARDED_BY(mutex_) = false;

  Node node_;  // its threads use the others
};

}  // namespace paceline

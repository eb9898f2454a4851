#pragma once
// What follows the push of a proposal, for one key: asking what the workers agreed on, answering that, and taking up
// the mean of the answers (two_rounds.h). Engine tasks; the weights may be pulled after the last but one. Where one of
// them fails the worker abstains, lest the others wait for its answer.

#include <paceline/ndarray.h>

#include <memory>
#include <vector>

#include "send/transfer.h"
#include "two_rounds.h"

namespace paceline {

class TwoRoundPush : public std::enable_shared_from_this<TwoRoundPush> {
 public:
  struct Job {
    RemoteKey* key;
    std::shared_ptr<const WireCodec> codec;
    std::vector<NDArray> state;  // of the codec, whole keys; the first stands for the progress of the push
    std::uint64_t round;
    int priority;
    std::vector<std::unique_ptr<Outbox>>* outboxes;  // of each server
    std::shared_ptr<const Placement> placement;
    std::shared_ptr<void> held;  // until the answers are at the servers
  };

  // Pushes the tasks. Both engine and outboxes outlive them.
  static void start(Engine& engine, Job job);
  ~TwoRoundPush();

 private:
  explicit TwoRoundPush(Job job);

  // Asks the server of every slice; `results` gets what comes back. Completes the task after the last.
  void ask(Completion completion, const std::vector<std::vector<std::byte>>* answers,
           std::vector<std::vector<std::byte>>* results);
  void answer();
  void finish();
  wire::AgreeRequest request_for(const RemoteSlice& slice) const;
  void submit(const RemoteSlice& slice, Message message, Node::ReplyHandler on_reply) const;
  std::vector<float*> state_of(const RemoteSlice& slice) const;

  Job job_;
  std::vector<std::vector<std::byte>> agreed_, answers_, means_;  // of each slice
  // Of each slice: the round went on without this worker; or with it, but the mean could not be had.
  std::vector<char> over_, gone_;
  bool answered_ = false;
};

}  // namespace paceline

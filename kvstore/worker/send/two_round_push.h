#pragma once
// The engine tasks that follow the push of a proposal, for one key (two_rounds.h). They ask the servers for the agreed
// bytes, send this worker's answer, and update the codec's state from the mean of all answers. The weights may be
// pulled after the answer. If a task fails, the worker abstains, so that the others do not wait for its answer.

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
    std::vector<NDArray> state;  // state of the codec for the whole key; the first array's variable orders the tasks
    std::uint64_t round;
    int priority;
    std::vector<std::unique_ptr<Outbox>>* outboxes;  // one for each server
    std::shared_ptr<const Placement> placement;
    std::shared_ptr<Delivery> held;  // held until the answers are at the servers
  };

  // Pushes the tasks. The engine and the outboxes must outlive them.
  static void start(Engine& engine, Job job);
  ~TwoRoundPush();

 private:
  explicit TwoRoundPush(Job job);

  // Sends a request for every slice, except slices whose round closed without this worker. `results` gets the answers.
  // Completes the task after the last answer.
  void ask(Completion completion, const std::vector<std::vector<std::byte>>* answers,
           std::vector<std::vector<std::byte>>* results);
  void answer();
  void finish();
  wire::AgreeRequest request_for(const RemoteSlice& slice) const;
  void submit(const RemoteSlice& slice, Message message, Node::ReplyHandler on_reply) const;
  std::vector<float*> state_of(const RemoteSlice& slice) const;

  Job job_;
  std::vector<std::vector<std::byte>> agreed_, answers_, means_;  // by slice
  // By slice. over_: the round closed without this worker. gone_: the round closed with this worker, but the server no
  // longer has the mean.
  std::vector<char> over_, gone_;
  bool answered_ = false;
};

}  // namespace paceline

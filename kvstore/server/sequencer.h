#pragma once
// Decides when pushes are applied and pulls are answered, from the clocks of the workers and the mode. Each shard has
// one Sequencer, whose class depends on the mode. The partitions apply its decisions.

#include <paceline/mode.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "served_call.h"
#include "served_partition.h"

namespace paceline {

class Sequencer {
 public:
  using Waiting = WaitingPull<PushPullCall>;
  using Partitions = std::vector<ServedPartition*>;

  // All members belong to the shard, which outlives the Sequencer.
  struct Context {
    const WorkerClocks& clocks;
    PullGate& gate;
    std::atomic<std::int64_t>& late;  // gradients that came after their round was closed
  };

  Sequencer(std::shared_ptr<const Mode> mode, const Context& shard) : mode_(std::move(mode)), shard_(shard) {}
  virtual ~Sequencer() = default;
  Sequencer(const Sequencer&) = delete;

  // Takes the gradients of a part, and answers its pulls or holds them back. If this fails, the call is refused with
  // the error.
  void run(const std::shared_ptr<PushPullCall>& call, int part);
  // Handles kAgree, for a codec with two rounds of messages. The worker asks what a round has agreed on, sends its
  // answer, or abstains.
  virtual void agree(const Request& request, const wire::AgreeRequest& message, ServedPartition& partition);
  // Clocks or the roster have changed. Checks everything that waits. Drops pulls of workers that are gone.
  virtual void reconsider(const Partitions& partitions) = 0;

 protected:
  // The push of a part, ready to be applied.
  struct Pushed {
    const std::shared_ptr<PushPullCall>& call;
    ServedPartition& partition;
    PushEntry entry;
  };

  virtual void push(Pushed& pushed) = 0;
  // Answers the pulls of a part, or holds the part back.
  virtual void pull(Waiting waiting) = 0;
  // Can the rounds of this mode use a codec with two rounds of messages (two_rounds.h)?
  virtual bool agrees() const { return false; }

  static ServedPartition& partition_of(const Waiting& waiting) {
    return *waiting.call->parts[static_cast<std::size_t>(waiting.part)].partition;
  }
  static const wire::Part& request_of(const Waiting& waiting) { return waiting.call->body.parts(waiting.part); }
  bool is_gone(const Waiting& waiting) const {
    return !shard_.clocks.is_live(waiting.call->worker(), waiting.call->request.incarnation());
  }
  // Reads the pulled slices of a part, and finishes the part. If reading fails, only this part's call is refused. The
  // caller may be handling the push of another worker.
  void answer(const Waiting& waiting);

  const std::shared_ptr<const Mode> mode_;  // null: pushes are applied and pulls are answered at once
  const Context shard_;

 private:
  void take(const std::shared_ptr<PushPullCall>& call, int part);
  void read(PushPullCall& call, const wire::Part& request, int part);

  std::vector<SliceContribution> gradients_;  // of one part; reused to avoid allocations
  std::vector<ReadEntry::Slice> reads_;
};

std::unique_ptr<Sequencer> make_at_once(std::shared_ptr<const Mode> mode, const Sequencer::Context& shard);
std::unique_ptr<Sequencer> make_in_rounds(std::shared_ptr<const Mode> mode, const Sequencer::Context& shard);
std::unique_ptr<Sequencer> make_in_rounds_with_backups(std::shared_ptr<const Mode> mode,
                                                       const Sequencer::Context& shard);
// Makes the Sequencer that the mode needs.
std::unique_ptr<Sequencer> make_sequencer(std::shared_ptr<const Mode> mode, const Sequencer::Context& shard);

}  // namespace paceline

#pragma once
// Decides what becomes of pushes and when pulls are answered, by the clocks of the workers and the mode. A shard has
// one, of the kind that its mode asks for; the partitions apply what it decides.

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

  // All are the shard's, which outlives this.
  struct Context {
    const WorkerClocks& clocks;
    PullGate& gate;
    std::atomic<std::int64_t>& late;  // pushes that came after their round was closed
  };

  Sequencer(std::shared_ptr<const Mode> mode, const Context& shard) : mode_(std::move(mode)), shard_(shard) {}
  virtual ~Sequencer() = default;
  Sequencer(const Sequencer&) = delete;

  // Takes the gradients of a part, and answers its pulls or keeps them waiting. Throws what the call is refused with.
  void run(const std::shared_ptr<PushPullCall>& call, int part);
  // A worker asks what a round agreed on, or gives its answer to that and asks for the mean.
  virtual void agree(const Request& request, const wire::AgreeRequest& message, ServedPartition& partition);
  // Clocks or the roster have changed: what waits is looked at again. Pulls of workers that are gone are dropped.
  virtual void reconsider(const Partitions& partitions) = 0;

 protected:
  // What a part brings, ready to be applied.
  struct Pushed {
    const std::shared_ptr<PushPullCall>& call;
    ServedPartition& partition;
    PushEntry entry;
  };

  virtual void push(Pushed& pushed) = 0;
  // Answers the pulls of a part, or keeps it waiting.
  virtual void pull(Waiting waiting) = 0;
  // Can this mode's rounds take a codec of two rounds?
  virtual bool agrees() const { return false; }

  static ServedPartition& partition_of(const Waiting& waiting) {
    return *waiting.call->parts[static_cast<std::size_t>(waiting.part)].partition;
  }
  static const wire::Part& request_of(const Waiting& waiting) { return waiting.call->body.parts(waiting.part); }
  bool is_gone(const Waiting& waiting) const {
    return !shard_.clocks.is_live(waiting.call->worker(), waiting.call->request.incarnation());
  }
  // Reads what a part pulls and ends it.
  void answer(const Waiting& waiting);

  const std::shared_ptr<const Mode> mode_;  // null: pushes are applied and pulls are answered at once
  const Context shard_;

 private:
  void take(const std::shared_ptr<PushPullCall>& call, int part);

  std::vector<SliceContribution> gradients_;  // of a part, kept for their memory
  std::vector<ReadEntry::Slice> reads_;
};

std::unique_ptr<Sequencer> make_at_once(std::shared_ptr<const Mode> mode, const Sequencer::Context& shard);
std::unique_ptr<Sequencer> make_in_rounds(std::shared_ptr<const Mode> mode, const Sequencer::Context& shard);
std::unique_ptr<Sequencer> make_in_rounds_with_backups(std::shared_ptr<const Mode> mode,
                                                       const Sequencer::Context& shard);
// The one that the mode asks for.
std::unique_ptr<Sequencer> make_sequencer(std::shared_ptr<const Mode> mode, const Sequencer::Context& shard);

}  // namespace paceline

// Rounds that do not wait for the slowest few workers (mode dist_sync:backup=b). Each slice has its own rounds, and at
// most one of them is open. A gradient is late if it was computed from an older version than the slice has now. Running
// statistics may come from an older version.
#include <algorithm>

#include "rounds.h"

namespace paceline {
namespace {

class BackupRounds final : public RoundSequencer {
 public:
  using RoundSequencer::RoundSequencer;

 private:
  PushEntry::InRound place(const Pushed& pushed, std::size_t number) override {
    const auto& [slice, contribution] = pushed.entry.gradients[number];
    const DensePartition& state = pushed.partition.state;
    const auto place = static_cast<std::uint32_t>(slice);
    const std::uint64_t step = pushed.entry.step;
    const std::uint64_t round = state.next_round(place, step, shard_.clocks.slowest().value_or(step));
    const DensePartition::SliceRounds* const rounds = state.find_rounds(place);
    const bool open = rounds && !rounds->empty();
    const bool outdated = !state.slices()[place].average && contribution.version != state.version(place);
    if (outdated || (open && has_contributed(*rounds, *pushed.call))) return {Verdict::kLate, round, round};
    return {Verdict::kKept, round, round};
  }

  void advance(ServedPartition& partition, std::uint32_t slice) override {
    const DensePartition::SliceRounds* const rounds = partition.state.find_rounds(slice);
    if (!rounds || rounds->empty()) return;
    Watch& watch = partition.watches[slice];
    // An empty map means that the round has just opened, because push() calls advance() after each contribution. The
    // map also stays empty while every worker is paused, inside a barrier or finished.
    if (watch.clocks_at_opening.empty())
      shard_.clocks.for_each_contributing(
          [&](int worker, std::uint64_t clock) { watch.clocks_at_opening[worker] = clock; });
    // A worker that has ended a step since the round opened, without a push of this slice, is not expected to
    // contribute.
    const auto misses = [&](int worker, std::uint64_t clock) {
      return clock <= std::max(partition.state.contributed({worker, 0}, slice, clock), watch.clocks_at_opening[worker]);
    };
    if (!mode_->round_complete(state_of(*rounds, misses))) return;
    watch.clocks_at_opening.clear();
    close(partition, slice);
  }

  bool waits_for(const Waiting& waiting, std::uint32_t slice) const override {
    const DensePartition::SliceRounds* const rounds = partition_of(waiting).state.find_rounds(slice);
    return rounds && !rounds->empty() && has_contributed(*rounds, *waiting.call);
  }

  // Has the worker, in the same incarnation, contributed to the open round?
  static bool has_contributed(const DensePartition::SliceRounds& rounds, const PushPullCall& call) {
    const auto kept = rounds.contributions().find(call.worker());
    return kept != rounds.contributions().end() && kept->second.incarnation == call.request.incarnation();
  }
};

}  // namespace

std::unique_ptr<Sequencer> make_in_rounds_with_backups(std::shared_ptr<const Mode> mode,
                                                       const Sequencer::Context& shard) {
  return std::make_unique<BackupRounds>(std::move(mode), shard);
}

}  // namespace paceline

// Rounds of rows. Round r holds the pushes of the workers' step r. It closes when the mode says so, and does not wait
// for a worker inside a barrier.
#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <set>
#include <utility>

#include "row_sequencer.h"

namespace paceline {
namespace {

class RowsInRounds final : public RowSequencer {
 public:
  using RowSequencer::RowSequencer;
  void reconsider() override;

 private:
  void push(Waiting& pull, RowPushEntry& entry) override;
  void pull(Waiting waiting) override;
  // Returns the first round that is not over. A round without contributions is over when the clock of every running
  // worker is above the round's number.
  std::uint64_t next_round(const RowPartition& state) const;
  void advance(ServedRows& served);
  void answer_waiting(ServedRows& served);

  std::set<ServedRows*> active_;  // partitions with open rounds or waiting pulls
};

void RowsInRounds::push(Waiting& pull, RowPushEntry& entry) {
  ServedRows& served = *part_of(pull).served;
  try {
    served.state.expect_contribution(entry.from, entry.step, entry.call);
  } catch (const Error&) {
    // The push has no effect, but its number counts as taken, because the worker does not use the number again.
    entry.rows.ids = {};
    entry.rows.counted = 0;
    served.state.apply(entry);
    throw;
  }
  advance(served);
  entry.next_round = next_round(served.state);
  entry.verdict = entry.step < entry.next_round ? Verdict::kLate : Verdict::kKept;
  served.state.apply(entry);
  // The push counts, even if its call is refused because an earlier round failed.
  if (const std::exception_ptr error = served.failed.hear(entry.from, false)) pull.call->fail(error);
  if (entry.verdict == Verdict::kLate) {
    shard_.late += static_cast<std::int64_t>(entry.rows.ids.size());
    pull.call->refused += entry.rows.ids.size();
    return;
  }
  active_.insert(&served);
  advance(served);
  answer_waiting(served);
}

std::uint64_t RowsInRounds::next_round(const RowPartition& state) const {
  const OpenRounds<RowPartition::Kept>& rounds = state.rounds();
  const std::uint64_t slowest = shard_.clocks.slowest().value_or(rounds.empty() ? rounds.next_round : rounds.oldest());
  return std::max(rounds.next_round, rounds.empty() ? slowest : std::min(slowest, rounds.oldest()));
}

void RowsInRounds::advance(ServedRows& served) {
  RowPartition& state = served.state;
  while (!state.rounds().empty()) {
    const OpenRounds<RowPartition::Kept>& rounds = state.rounds();
    RowCloseEntry entry{{}, rounds.oldest(), mode_->aggregate()};
    if (next_round(state) < entry.round) break;

    const auto& kept = rounds.contributions();
    Round round;
    for (const auto& [worker, pieces] : kept) round.contributed += pieces.complete();
    round.expected = round.contributed;
    shard_.clocks.for_each_contributing([&](int worker, std::uint64_t clock) {
      const auto found = kept.find(worker);
      round.expected += clock <= entry.round && (found == kept.end() || !found->second.complete());
    });
    // A worker that was lost between two pieces of its push cannot complete its contribution. The pieces that have come
    // count, as they do beside other contributions.
    const bool orphaned = round.expected == 0 && std::none_of(kept.begin(), kept.end(), [this](const auto& entry) {
                            return shard_.clocks.is_live(entry.first, entry.second.incarnation);
                          });
    if (!orphaned && !mode_->round_complete(round)) break;
    std::vector<WorkerIncarnation> contributors;
    for (const auto& [worker, pieces] : kept) contributors.push_back({worker, pieces.incarnation});
    try {
      state.apply(entry);
      served.failed.recover();
    } catch (const std::exception& error) {
      LOG(ERROR) << "round " << entry.round << " of table '" << state.spec().name
                 << "' could not be applied: " << error.what();
      served.failed.fail(std::current_exception());
      for (const WorkerIncarnation& contributor : contributors) served.failed.add(contributor);
    }
  }
  // Record that rounds without contributions have passed, because the lowest clock may drop.
  if (RowSkipEntry skip{{}, next_round(state)}; skip.next_round > state.rounds().next_round) state.apply(skip);
  if (state.rounds().empty() && served.waiting.empty()) active_.erase(&served);
}

void RowsInRounds::answer_waiting(ServedRows& served) {
  std::vector<Waiting> waiting;
  waiting.swap(served.waiting);
  for (Waiting& entry : waiting) pull(std::move(entry));
}

void RowsInRounds::pull(Waiting waiting) {
  ServedRows& served = *part_of(waiting).served;
  if (reads(waiting)) {
    const std::uint64_t need = need_of(waiting);
    advance(served);
    // While no worker is running (worker_clocks.h), no pull waits, because the missing rounds may never complete.
    if (served.state.rounds().next_round < need && shard_.clocks.slowest()) {
      active_.insert(&served);
      shard_.gate.hold(waiting, need);
      served.waiting.push_back(std::move(waiting));
      return;
    }
    if (const std::exception_ptr error = served.failed.hear(waiting.call->from(), true)) {
      waiting.call->fail(error);
      return shard_.gate.finish(waiting, need);
    }
  }
  answer(waiting);
}

void RowsInRounds::reconsider() {
  const std::set<ServedRows*> active = active_;
  for (ServedRows* const served : active) {
    std::erase_if(served->waiting, [this](const Waiting& waiting) { return is_gone(waiting); });
    advance(*served);
    answer_waiting(*served);
  }
}

}  // namespace

std::unique_ptr<RowSequencer> make_rows_in_rounds(std::shared_ptr<const Mode> mode,
                                                  const RowSequencer::Context& shard) {
  return std::make_unique<RowsInRounds>(std::move(mode), shard);
}

}  // namespace paceline

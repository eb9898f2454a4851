#pragma once
// A Sequencer that keeps pushes and applies them together, round by round. Its two subclasses define what a round is
// and when it closes: InRounds (rounds.cc) and BackupRounds (backup_rounds.cc).

#include <cstdint>
#include <optional>
#include <vector>

#include "sequencer.h"

namespace paceline {

class RoundSequencer : public Sequencer {
 public:
  using Sequencer::Sequencer;
  void reconsider(const Partitions& partitions) final;

 protected:
  using Watch = ServedPartition::Watch;

  // Decides the verdict and the round of gradient number `number` of the push. Throws the error to refuse the push
  // with.
  virtual PushEntry::InRound place(const Pushed& pushed, std::size_t number) = 0;
  // Closes the complete rounds of the slice.
  virtual void advance(ServedPartition& partition, std::uint32_t slice) = 0;
  // Must the pull wait for a round of this slice?
  virtual bool waits_for(const Waiting& waiting, std::uint32_t slice) const = 0;
  // Answers requests about the agreements of the slice, for codecs with two rounds of messages (two_rounds.h).
  virtual void answer_asking(ServedPartition&, std::uint32_t) {}

  // Applies the oldest round. If the update throws, one call of each contributor is refused with the error: the call
  // that waits for the round, or else the next one that names the slice. All pulls of the slice are refused, too, until
  // a later round succeeds.
  void close(ServedPartition& partition, std::uint32_t slice);
  // Handles a round that failed with the current exception, `error`. Logs the error, and keeps it to refuse calls with.
  static void note_failure(ServedPartition& partition, std::uint32_t slice, std::uint64_t round,
                           const std::vector<WorkerIncarnation>& contributors, const std::exception& error);
  void answer_waiting(ServedPartition& partition, std::uint32_t slice);
  // Counts the contributions to the oldest round. `expected` is their number, plus the number of running workers that
  // have not contributed and for which misses(worker, clock) is true.
  template <class Misses>
  Round state_of(const DensePartition::SliceRounds& rounds, Misses misses) const {
    Round round{static_cast<int>(rounds.contributions().size()), 0};
    shard_.clocks.for_each_contributing([&](int worker, std::uint64_t clock) {
      round.expected += rounds.contributions().count(worker) == 0 && misses(worker, clock);
    });
    round.expected += round.contributed;
    return round;
  }

 private:
  // If place() throws for one gradient, the whole part is refused.
  void push(Pushed& pushed) final;
  void place_all(const Pushed& pushed);
  void pull(Waiting waiting) final;
  // Fails the call if a round of the slice has failed and the worker must get the error. Returns true if so. `pulls`:
  // the call pulls the slice. The second overload checks all slices that the waiting part pulls.
  static bool fails(const std::shared_ptr<PushPullCall>& call, ServedPartition& partition, std::uint32_t slice,
                    bool pulls);
  static bool fails(const Waiting& waiting);

  std::vector<PushEntry::InRound> places_;       // of one part; reused to avoid allocations
  std::vector<WorkerIncarnation> contributors_;  // to the round that close() applies; reused, too
};

}  // namespace paceline

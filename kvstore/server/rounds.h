#pragma once
// A Sequencer that keeps pushes and applies them together, round by round. Its two subclasses, in in_rounds.cc and
// backup_rounds.cc, define what a round is and when it closes.

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

  // The round of gradient number `number` of the push, or that the gradient is late. Throws the error to refuse it
  // with.
  virtual PushEntry::InRound place(const Pushed& pushed, std::size_t number) = 0;
  // Closes the complete rounds of the slice.
  virtual void advance(ServedPartition& partition, std::uint32_t slice) = 0;
  // Must the pull wait for a round of this slice?
  virtual bool waits_for(const Waiting& waiting, std::uint32_t slice) const = 0;
  // Answers workers that ask for agreements.
  virtual void answer_asking(ServedPartition&, std::uint32_t) {}

  // Applies the oldest round. If the update throws, the next call of each worker that contributed is refused with the
  // error. So are all pulls of the slice, until a round of it succeeds.
  void close(ServedPartition& partition, std::uint32_t slice);
  // A round has failed with the current exception, `error`. Logs it, and keeps it for calls to be refused with.
  static void note_failure(ServedPartition& partition, std::uint32_t slice, std::uint64_t round,
                           const std::vector<WorkerIncarnation>& contributors, const std::exception& error);
  void answer_waiting(ServedPartition& partition, std::uint32_t slice);
  // How many workers have contributed, and how many contributions the round can still expect: these, and those of the
  // live workers that are missing.
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
  // If one gradient is refused, the whole part is refused.
  void push(Pushed& pushed) final;
  void place_all(const Pushed& pushed);
  void pull(Waiting waiting) final;
  // Refuses the call if it names a slice whose failed round its worker has to hear of.
  static bool fails(const std::shared_ptr<PushPullCall>& call, ServedPartition& partition, std::uint32_t slice,
                    bool pulls);
  static bool fails(const Waiting& waiting);

  std::vector<PushEntry::InRound> places_;       // of one part; reused to avoid allocations
  std::vector<WorkerIncarnation> contributors_;  // to the round that is closed; likewise
};

}  // namespace paceline

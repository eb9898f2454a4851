#pragma once
// Pushes are kept and applied together, round by round. What a round is, and when it closes, is for the two kinds of
// rounds to say: in_rounds.cc and backup_rounds.cc.

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

  // The round that gradient number `number` of the push belongs to, or that it is late. Throws what it is refused with.
  virtual PushEntry::InRound place(const Pushed& pushed, std::size_t number) = 0;
  // Closes the rounds of the slice that are complete.
  virtual void advance(ServedPartition& partition, std::uint32_t slice) = 0;
  // Does the pull wait for a round of this slice?
  virtual bool waits_for(const Waiting& waiting, std::uint32_t slice) const = 0;
  // Answers those who ask for agreements.
  virtual void answer_asking(ServedPartition&, std::uint32_t) {}

  // Applies the oldest round. What the update throws is what later pulls of the slice are refused with, until a round
  // of it closes well.
  void close(ServedPartition& partition, std::uint32_t slice);
  void answer_waiting(ServedPartition& partition, std::uint32_t slice);
  // Live workers that still contribute, and have not.
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
  // Where one gradient is refused, all of the part is.
  void push(Pushed& pushed) final;
  void place_all(const Pushed& pushed);
  void pull(Waiting waiting) final;
  bool fails(const Waiting& waiting) const;

  std::vector<PushEntry::InRound> places_;  // of a part, kept for their memory
};

}  // namespace paceline

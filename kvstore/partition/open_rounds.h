#pragma once
// The open rounds of a slice, or of a table's partition, with the contributions of each worker.

#include <algorithm>
#include <cstdint>
#include <map>

namespace paceline {

template <class Kept>
struct OpenRounds {
  using OfRound = std::map<int, Kept>;  // by worker

  std::uint64_t next_round = 0;  // all earlier rounds are closed
  std::map<std::uint64_t, OfRound> rounds;

  bool empty() const { return rounds.empty(); }
  std::uint64_t oldest() const { return rounds.begin()->first; }
  const OfRound& contributions() const { return rounds.begin()->second; }  // to the oldest round
  const OfRound* find(std::uint64_t round) const {
    const auto found = rounds.find(round);
    return found == rounds.end() ? nullptr : &found->second;
  }
  void skip_to(std::uint64_t round) { next_round = std::max(next_round, round); }
  // Drops the oldest round, which is over.
  void close() {
    skip_to(oldest() + 1);
    rounds.erase(rounds.begin());
  }
};

}  // namespace paceline

#pragma once
// The sequence numbers of the pushes that one partition has taken from one worker, in bounded memory. The window holds
// all numbers up to a floor, and some numbers above it. Some numbers never come, because their push was refused or
// could not be sent. The window then moves past them.

#include <paceline/error.h>

#include <cstdint>
#include <set>

#include "digest.h"

namespace paceline {

class SequenceWindow {
 public:
  static constexpr std::uint64_t kWidth = 1 << 16;  // more than a worker can have in flight to one partition

  // Can a worker have reached this number? Numbers start at 1.
  bool plausible(std::uint64_t sequence) const {
    return sequence > 0 && sequence <= (above_.empty() ? floor_ : *above_.rbegin()) + kWidth;
  }

  bool has(std::uint64_t sequence) const { return sequence <= floor_ || above_.count(sequence) > 0; }

  // Takes a number. True if it was not taken before.
  bool take(std::uint64_t sequence) {
    if (sequence == floor_ + 1)
      ++floor_;
    else if (sequence <= floor_ || !above_.insert(sequence).second)
      return false;
    // A number this far behind the latest is no longer in flight.
    if (!above_.empty() && *above_.rbegin() > floor_ + kWidth) floor_ = *above_.rbegin() - kWidth;
    while (!above_.empty() && *above_.begin() <= floor_) above_.erase(above_.begin());
    while (!above_.empty() && *above_.begin() == floor_ + 1) {
      above_.erase(above_.begin());
      ++floor_;
    }
    return true;
  }

  void add_to(Digest& digest) const {
    digest.add(floor_);
    for (const std::uint64_t sequence : above_) digest.add(sequence);
  }

 private:
  std::uint64_t floor_ = 0;
  std::set<std::uint64_t> above_;
};

// The pushes of the latest incarnation of a worker.
struct TakenPushes {
  std::uint64_t incarnation = 0;
  SequenceWindow window;

  // Begins an empty window if `other` is a later incarnation. Returns true if so.
  bool renew(std::uint64_t other) {
    if (other <= incarnation) return false;
    incarnation = other;
    window = {};
    return true;
  }
  // Was push `sequence` of incarnation `of` taken before? Throws InvalidArgument for an earlier incarnation, or for a
  // number that the worker cannot have reached.
  bool holds(int worker, std::uint64_t of, std::uint64_t sequence) const {
    const bool renewed = of > incarnation;
    require(incarnation == of || renewed, "worker ", worker, " has returned since this push was sent");
    const SequenceWindow fresh;
    require((renewed ? fresh : window).plausible(sequence), "push number ", sequence, " of worker ", worker,
            " is far ahead of those before it");
    return !renewed && window.has(sequence);
  }
};

}  // namespace paceline

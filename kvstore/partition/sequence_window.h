#pragma once
// Which pushes of one worker were taken by one partition, in bounded memory: all up to a number, and a few after it.

#include <paceline/error.h>

#include <cstdint>
#include <set>

namespace paceline {

class SequenceWindow {
 public:
  static constexpr std::uint64_t kWidth = 1 << 16;  // a worker never has as many pushes to one partition under way

  // May this number come at all? Numbers start at 1.
  bool plausible(std::uint64_t sequence) const { return sequence > 0 && sequence <= floor_ + kWidth; }

  // True the first time.
  bool take(std::uint64_t sequence) {
    if (sequence == floor_ + 1)
      ++floor_;
    else if (sequence <= floor_ || !above_.insert(sequence).second)
      return false;
    while (!above_.empty() && *above_.begin() == floor_ + 1) {
      above_.erase(above_.begin());
      ++floor_;
    }
    return true;
  }

 private:
  std::uint64_t floor_ = 0;
  std::set<std::uint64_t> above_;
};

// The pushes of the latest incarnation of a worker.
struct TakenPushes {
  std::uint64_t incarnation = 0;
  SequenceWindow window;

  // Is `other` a later incarnation? Then nothing of it was taken yet.
  bool renew(std::uint64_t other) {
    if (other <= incarnation) return false;
    incarnation = other;
    window = {};
    return true;
  }
  // Throws where no such push can come.
  void expect(int worker, std::uint64_t of, std::uint64_t sequence) const {
    require(incarnation == of, "worker ", worker, " has returned since this push was sent");
    require(window.plausible(sequence), "push number ", sequence, " of worker ", worker,
            " is far ahead of those before it");
  }
};

}  // namespace paceline

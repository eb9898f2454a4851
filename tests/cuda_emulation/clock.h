#pragma once
// What is ordered before what: operations are numbered by stream, and a clock says how many of each stream come before.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cuda_emulation {

// An operation: the `number`th of a stream, from 1. Number 0 has always happened.
struct Point {
  std::size_t stream = 0;
  std::uint64_t number = 0;
};

class Clock {
 public:
  std::uint64_t of(std::size_t stream) const { return stream < numbers_.size() ? numbers_[stream] : 0; }
  bool covers(const Point& point) const { return of(point.stream) >= point.number; }
  bool covers(const Clock& other) const {
    for (std::size_t s = 0; s < other.numbers_.size(); ++s)
      if (other.numbers_[s] > of(s)) return false;
    return true;
  }
  void join(const Point& point) {
    if (point.stream >= numbers_.size()) numbers_.resize(point.stream + 1);
    numbers_[point.stream] = std::max(numbers_[point.stream], point.number);
  }
  void join(const Clock& other) {
    for (std::size_t s = 0; s < other.numbers_.size(); ++s) join(Point{s, other.numbers_[s]});
  }

 private:
  std::vector<std::uint64_t> numbers_;
};

}  // namespace cuda_emulation

#pragma once
// A set of positions of an epoch, as disjoint [begin, end) ranges.

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace paceline {

class PositionSet {
 public:
  PositionSet() = default;
  explicit PositionSet(const std::vector<std::pair<std::int64_t, std::int64_t>>& ranges) {
    for (const auto& [begin, end] : ranges) add(begin, end);
  }

  void add(std::int64_t begin, std::int64_t end);
  void add(const PositionSet& other);
  void subtract(std::int64_t begin, std::int64_t end);
  void subtract(const PositionSet& other);
  // Removes and returns the first `count` positions, or all if there are fewer.
  PositionSet take(std::int64_t count);
  void clear() { ranges_.clear(); }

  bool empty() const { return ranges_.empty(); }
  std::int64_t count() const;
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges() const { return {ranges_.begin(), ranges_.end()}; }

 private:
  std::map<std::int64_t, std::int64_t> ranges_;  // begin -> end
};

}  // namespace paceline

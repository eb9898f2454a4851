#include "position_set.h"

#include <algorithm>
#include <iterator>

namespace paceline {

void PositionSet::add(std::int64_t begin, std::int64_t end) {
  if (begin >= end) return;
  auto at = ranges_.upper_bound(begin);
  if (at != ranges_.begin() && std::prev(at)->second >= begin) --at;
  while (at != ranges_.end() && at->first <= end) {
    begin = std::min(begin, at->first);
    end = std::max(end, at->second);
    at = ranges_.erase(at);
  }
  ranges_[begin] = end;
}

void PositionSet::add(const PositionSet& other) {
  for (const auto& [begin, end] : other.ranges_) add(begin, end);
}

void PositionSet::subtract(std::int64_t begin, std::int64_t end) {
  if (begin >= end) return;
  auto at = ranges_.upper_bound(begin);
  if (at != ranges_.begin() && std::prev(at)->second > begin) --at;
  while (at != ranges_.end() && at->first < end) {
    const auto [from, to] = *at;
    at = ranges_.erase(at);
    if (from < begin) ranges_[from] = begin;
    if (to > end) ranges_[end] = to;
  }
}

void PositionSet::subtract(const PositionSet& other) {
  for (const auto& [begin, end] : other.ranges_) subtract(begin, end);
}

PositionSet PositionSet::take(std::int64_t count) {
  PositionSet taken;
  while (count > 0 && !ranges_.empty()) {
    const auto [begin, end] = *ranges_.begin();
    const std::int64_t stop = std::min(end, begin + count);
    taken.add(begin, stop);
    subtract(begin, stop);
    count -= stop - begin;
  }
  return taken;
}

std::int64_t PositionSet::count() const {
  std::int64_t count = 0;
  for (const auto& [begin, end] : ranges_) count += end - begin;
  return count;
}

}  // namespace paceline

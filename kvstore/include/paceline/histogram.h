#pragma once
// Counts of values.

#include <cstdint>
#include <map>
#include <string>

namespace paceline {

// How often each of some whole numbers, 0 or above, occurred: delays in versions, latencies in microseconds. Not
// thread-safe.
class Histogram {
 public:
  // Adds `count` occurrences of `value`, or all of another histogram.
  void add(std::int64_t value, std::int64_t count = 1) { counts_[value] += count; }
  void merge(const Histogram& other) {
    for (const auto& [value, count] : other.counts_) counts_[value] += count;
  }
  std::int64_t count() const;             // of all occurrences
  double mean() const;                    // of all values; 0 when there are none
  std::int64_t quantile(double q) const;  // the smallest value with a share q of all at or below it; 0 for none
  // Value to count; only of values that occurred.
  const std::map<std::int64_t, std::int64_t>& counts() const { return counts_; }
  std::string text() const;  // "0:10 1:990", for logs

 private:
  std::map<std::int64_t, std::int64_t> counts_;
};

}  // namespace paceline

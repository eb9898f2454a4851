#pragma once
// Histograms of whole numbers.

#include <cstdint>
#include <map>
#include <string>

namespace paceline {

// Counts how often each whole number from 0 on occurred, for instance delays in versions or latencies in microseconds.
// Not thread-safe.
class Histogram {
 public:
  // Adds `count` occurrences of `value`, or all occurrences of another histogram.
  void add(std::int64_t value, std::int64_t count = 1) { counts_[value] += count; }
  void merge(const Histogram& other) {
    for (const auto& [value, count] : other.counts_) counts_[value] += count;
  }
  std::int64_t count() const;             // number of all occurrences
  double mean() const;                    // mean of all occurrences; 0 if there are none
  std::int64_t quantile(double q) const;  // least value v such that a share q of the occurrences is <= v; 0 if empty
  // The count of each value that occurred.
  const std::map<std::int64_t, std::int64_t>& counts() const { return counts_; }
  std::string text() const;  // "0:10 1:990", for logs

 private:
  std::map<std::int64_t, std::int64_t> counts_;
};

}  // namespace paceline

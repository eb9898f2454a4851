#pragma once
// Counts of non-negative whole numbers: delays in versions, latencies in microseconds.

#include <cstdint>
#include <map>
#include <string>

namespace paceline {

class Histogram {
 public:
  void add(std::int64_t value, std::int64_t count = 1) { counts_[value] += count; }
  void merge(const Histogram& other) {
    for (const auto& [value, count] : other.counts_) counts_[value] += count;
  }
  std::int64_t count() const;
  double mean() const;                    // 0 when empty
  std::int64_t quantile(double q) const;  // smallest value with at least q of the counts at or below; 0 when empty
  const std::map<std::int64_t, std::int64_t>& counts() const { return counts_; }
  std::string text() const;  // "0:10 1:990", for logs

 private:
  std::map<std::int64_t, std::int64_t> counts_;
};

}  // namespace paceline

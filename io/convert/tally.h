#pragma once
// Statistics that grow entry by entry and are added up. The same entries in the same blocks give the same bits.

#include <paceline/manifest.h>

#include <nlohmann/json_fwd.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace paceline::io {

// Mean and spread by Welford's method.
class Moments {
 public:
  void add(double value) {
    ++count_;
    const double from_mean = value - mean_;
    mean_ += from_mean / static_cast<double>(count_);
    squares_ += from_mean * (value - mean_);
    smallest_ = count_ == 1 ? value : std::min(smallest_, value);
    largest_ = count_ == 1 ? value : std::max(largest_, value);
  }
  void add_missing() { ++missing_; }
  // So many numbers with this sum and this sum of squares, between these two.
  void add_sums(std::int64_t count, double sum, double squares, double smallest, double largest);
  void merge(const Moments& other);
  double mean() const { return mean_; }
  std::int64_t count() const { return count_; }
  NumberStatistics statistics() const;

  nlohmann::json to_json() const;
  static Moments from_json(const nlohmann::json& json);

 private:
  std::int64_t count_ = 0;
  std::int64_t missing_ = 0;
  double mean_ = 0;
  double squares_ = 0;  // of the distances from the mean
  double smallest_ = 0;
  double largest_ = 0;
};

// Counts one or more entries.
struct Tally {
  std::vector<Moments> numbers;                  // of RecordSource::number_names()
  std::map<std::int64_t, std::int64_t> classes;  // entries by class number
  Moments lengths;
  std::optional<ImageSize> image;  // 0 where images differ
  std::string encoding;            // of the images; "mixed" where it differs, or cannot be told
  std::int64_t records = 0;        // that were written

  Moments& number(std::size_t i) {
    if (numbers.size() <= i) numbers.resize(i + 1);
    return numbers[i];
  }
  void add_image(const ImageSize& size, const std::string& its_encoding);
  void merge(const Tally& other);
  // Into a manifest whose labels are known.
  void describe(Manifest& manifest, const std::vector<std::string>& number_names) const;

  nlohmann::json to_json() const;
  static Tally from_json(const nlohmann::json& json);
};

}  // namespace paceline::io

#pragma once
// The arithmetic of resize() and crop(), for those who do it elsewhere.

#include <paceline/image.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace paceline::io {

// The inputs that make one output sample, and their weights: a triangle as wide as a step when shrinking.
struct Taps {
  int first = 0;
  std::span<const float> weights;
  int end() const { return first + static_cast<int>(weights.size()); }
};

// The part of a line that is resized: `length` from `first` on, of samples from `begin` to `end` - 1. Sample i reaches
// from i to i + 1.
struct Stretch {
  float first = 0;
  float length = 0;
  int begin = 0;
  int end = 0;
};

// The taps of neighbouring output samples, in memory that is reused.
class TapTable {
 public:
  // Those of the output samples [begin, begin + count) of a stretch that becomes `to` samples.
  void set(const Stretch& from, int to, int begin, int count);

  std::size_t size() const { return first_.size(); }
  // Of the sample that has most.
  std::size_t most_weights() const { return most_; }
  Taps operator[](std::size_t i) const { return {first_[i], {weights_.data() + i * most_, count_[i]}}; }
  Taps front() const { return (*this)[0]; }
  Taps back() const { return (*this)[size() - 1]; }

 private:
  std::size_t most_ = 0;
  std::vector<int> first_;
  std::vector<std::size_t> count_;
  std::vector<float> weights_;  // `most_` of each sample
};

inline TapTable make_taps(int from, int to, int begin, int count) {
  TapTable table;
  table.set({0, static_cast<float>(from), 0, from}, to, begin, count);
  return table;
}
inline TapTable make_taps(int from, int to) { return make_taps(from, to, 0, to); }

// Throws Corrupt where resize() does.
void check_resize(int height, int width, int to_height, int to_width);

// Throws InvalidArgument where `part` is not inside an image of this size.
void check_inside(const Rectangle& part, int height, int width);

// The sums of resize(), into `to`, whose memory is reused. `image` begins at row `top` and column `left` of those that
// the taps count; it holds all that they name.
class Resizer {
 public:
  void operator()(const Image& image, int top, int left, const TapTable& down, const TapTable& across, Image& to);

 private:
  void spread(const TapTable& across, int left);

  std::vector<float> sums_;
  std::vector<float> weights_;       // of each two output samples and each of their taps, four times each
  std::vector<std::size_t> places_;  // in `sums_`, where each output sample's taps begin
  std::vector<float> samples_;       // a row of output samples, four values each
  std::vector<std::uint8_t> bytes_;  // the same
};

}  // namespace paceline::io

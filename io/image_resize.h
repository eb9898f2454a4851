#pragma once
// The arithmetic of resize() and crop(), for those who do it elsewhere.

#include <paceline/image.h>

#include <vector>

namespace paceline::io {

// The inputs that make one output sample, and their weights: a triangle as wide as a step when shrinking.
struct Taps {
  int first = 0;
  std::vector<float> weights;
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

// Of the output samples [begin, begin + count) of a stretch that becomes `to` samples.
std::vector<Taps> make_taps(const Stretch& from, int to, int begin, int count);
inline std::vector<Taps> make_taps(int from, int to, int begin, int count) {
  return make_taps({0, static_cast<float>(from), 0, from}, to, begin, count);
}
inline std::vector<Taps> make_taps(int from, int to) { return make_taps(from, to, 0, to); }

// Throws Corrupt where resize() does.
void check_resize(int height, int width, int to_height, int to_width);

// Throws InvalidArgument where `part` is not inside an image of this size.
void check_inside(const Rectangle& part, int height, int width);

// The sums of resize(), into `to`, whose memory is reused. `image` begins at row `top` and column `left` of those that
// the taps count; it holds all that they name.
class Resizer {
 public:
  void operator()(const Image& image, int top, int left, const std::vector<Taps>& down, const std::vector<Taps>& across,
                  Image& to);

 private:
  std::vector<float> sums_;
};

}  // namespace paceline::io

#pragma once
// The arithmetic of resize(), for those who do it elsewhere.

#include <vector>

namespace paceline::io {

// The inputs that make one output sample, and their weights: a triangle as wide as a step when shrinking.
struct Taps {
  int first = 0;
  std::vector<float> weights;
};

// Of each output sample of a line of `from` that becomes one of `to`.
std::vector<Taps> make_taps(int from, int to);

// Throws Corrupt where resize() does.
void check_resize(int height, int width, int to_height, int to_width);

}  // namespace paceline::io

#pragma once
// The boxes of an image for detection, moved along with it.

#include <span>
#include <vector>

#include "augment/warp.h"

namespace paceline::io {

// MXNet's labels for detection are `header` numbers, of which the first is `header` and the second the numbers of an
// object, then the objects: class, left, top, right and bottom as shares of the image's size, and what else there is.
class Boxes {
 public:
  // Reads the labels of an image of this size. Throws Corrupt with the reason alone.
  Boxes(std::span<const float> labels, int height, int width);

  // Points of the image move so, and it has a new size then. A box becomes the smallest upright one around what its
  // corners become, cut off at the edges.
  void move(const AffineMap& map, int height, int width);

  // The labels now, without boxes of which less than `least_share` is left; numbers behind them are `filler`.
  // `to` holds as many as were read, or more.
  void write(double least_share, float filler, std::span<float> to) const;

 private:
  struct Box {
    double left, top, right, bottom;  // in pixels
    double share;                     // of its area that is left
    std::size_t object;               // its number
  };

  std::vector<float> labels_;
  std::size_t header_ = 0;
  std::size_t object_ = 0;
  std::vector<Box> boxes_;
  int height_;
  int width_;
};

}  // namespace paceline::io

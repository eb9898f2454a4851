#pragma once
// Affine maps of images.

#include <paceline/image.h>

#include <array>
#include <cstdint>

namespace paceline::io {

using Colour = std::array<std::uint8_t, 3>;

struct Point {
  double x = 0;
  double y = 0;
};

// x' = xx x + xy y + x0, y' = yx x + yy y + y0. Pixel (row, column) has its middle at x = column + 0.5, y = row + 0.5.
struct AffineMap {
  double xx = 1, xy = 0, x0 = 0;
  double yx = 0, yy = 1, y0 = 0;

  Point operator()(double x, double y) const { return {xx * x + xy * y + x0, yx * x + yy * y + y0}; }
  // What does this after `first`.
  AffineMap after(const AffineMap& first) const;
  AffineMap inverse() const;
};

struct AffineParameters {
  double degrees = 0;  // clockwise
  double across = 0;   // translation in pixels
  double down = 0;
  double scale = 1;
  double shear_across = 0;  // degrees
  double shear_down = 0;
};

// About the middle of an image of this size: shear, scale and turn, then translation.
AffineMap affine_map(const AffineParameters& parameters, int height, int width);

// The image under a map, in the same size: interpolated between the four nearest pixels, or the nearest one. Outside
// the image are pixels of this colour.
void warp(const Image& image, const AffineMap& map, bool nearest, const Colour& outside, Image& to);

}  // namespace paceline::io

#include "augment/warp.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace paceline::io {

AffineMap AffineMap::after(const AffineMap& first) const {
  return {xx * first.xx + xy * first.yx, xx * first.xy + xy * first.yy, xx * first.x0 + xy * first.y0 + x0,
          yx * first.xx + yy * first.yx, yx * first.xy + yy * first.yy, yx * first.x0 + yy * first.y0 + y0};
}

AffineMap AffineMap::inverse() const {
  const double determinant = xx * yy - xy * yx;
  AffineMap result{yy / determinant, -xy / determinant, 0, -yx / determinant, xx / determinant, 0};
  const Point origin = result(x0, y0);
  result.x0 = -origin.x;
  result.y0 = -origin.y;
  return result;
}

AffineMap affine_map(const AffineParameters& parameters, int height, int width) {
  const auto radians = [](double degrees) { return degrees * std::numbers::pi / 180; };
  const double turn = radians(parameters.degrees), cosine = std::cos(turn), sine = std::sin(turn);
  const double x = width / 2.0, y = height / 2.0;
  const AffineMap to_origin{1, 0, -x, 0, 1, -y};
  const AffineMap lean{1, -std::tan(radians(parameters.shear_across)), 0, 0, 1, 0};
  const AffineMap drop{1, 0, 0, -std::tan(radians(parameters.shear_down)), 1, 0};
  const double scale = parameters.scale;
  const AffineMap rotation{scale * cosine, -scale * sine, 0, scale * sine, scale * cosine, 0};
  const AffineMap back{1, 0, x + parameters.across, 0, 1, y + parameters.down};
  return back.after(rotation).after(drop).after(lean).after(to_origin);
}

namespace {

class Sampler {
 public:
  Sampler(const Image& image, const Colour& outside)
      : image_(image), outside_(outside), channels_(image.channels), stride_(std::ptrdiff_t{image.width} * channels_) {}

  const std::uint8_t* at(int y, int x) const {
    const bool inside = y >= 0 && y < image_.height && x >= 0 && x < image_.width;
    return inside ? image_.pixels.data() + y * stride_ + std::ptrdiff_t{x} * channels_ : outside_.data();
  }

  // (x, y) counts from the middle of the first pixel.
  void nearest(double x, double y, std::uint8_t* to) const {
    const std::uint8_t* from = at(static_cast<int>(std::nearbyint(y)), static_cast<int>(std::nearbyint(x)));
    for (int c = 0; c < channels_; ++c) to[c] = from[c];
  }
  void between(double x, double y, std::uint8_t* to) const {
    const int left = static_cast<int>(std::floor(x)), top = static_cast<int>(std::floor(y));
    const float right_share = static_cast<float>(x - left), low_share = static_cast<float>(y - top);
    const std::uint8_t *a = at(top, left), *b = at(top, left + 1), *c = at(top + 1, left), *d = at(top + 1, left + 1);
    for (int i = 0; i < channels_; ++i) {
      const float upper = static_cast<float>(a[i]) * (1 - right_share) + static_cast<float>(b[i]) * right_share;
      const float lower = static_cast<float>(c[i]) * (1 - right_share) + static_cast<float>(d[i]) * right_share;
      const float value = upper * (1 - low_share) + lower * low_share;
      to[i] = static_cast<std::uint8_t>(value + 0.5f);  // NOLINT(bugprone-incorrect-roundings): fast, not negative
    }
  }

 private:
  const Image& image_;
  const Colour& outside_;
  const int channels_;
  const std::ptrdiff_t stride_;
};

}  // namespace

void warp(const Image& image, const AffineMap& map, bool nearest, const Colour& outside, Image& to) {
  to.height = image.height;
  to.width = image.width;
  to.channels = image.channels;
  to.pixels.resize(image.pixels.size());
  const AffineMap inverse = map.inverse();
  const Sampler sampler(image, outside);
  std::uint8_t* pixel = to.pixels.data();
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x, pixel += image.channels) {
      Point from = inverse(x + 0.5, y + 0.5);
      // Far outside, the number may be too large for an int.
      from.x = std::clamp(from.x - 0.5, -2.0, image.width + 1.0);
      from.y = std::clamp(from.y - 0.5, -2.0, image.height + 1.0);
      if (nearest)
        sampler.nearest(from.x, from.y, pixel);
      else
        sampler.between(from.x, from.y, pixel);
    }
  }
}

}  // namespace paceline::io

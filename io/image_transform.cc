#include <paceline/error.h>
#include <paceline/image.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "image_resize.h"

namespace paceline {
namespace {

// More pixels than this are not asked memory for: an image of one column, resized by its shorter edge, has billions.
constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;

}  // namespace

namespace io {

std::vector<Taps> make_taps(int from, int to) {
  const float step = static_cast<float>(from) / static_cast<float>(to);
  const float radius = std::max(step, 1.0f);
  std::vector<Taps> taps(static_cast<std::size_t>(to));
  for (int i = 0; i < to; ++i) {
    Taps& tap = taps[static_cast<std::size_t>(i)];
    const float centre = (static_cast<float>(i) + 0.5f) * step - 0.5f;
    tap.first = std::clamp(static_cast<int>(std::ceil(centre - radius)), 0, from - 1);
    const int last = std::clamp(static_cast<int>(std::floor(centre + radius)), tap.first, from - 1);
    float total = 0;
    for (int j = tap.first; j <= last; ++j) {
      tap.weights.push_back(std::max(0.0f, 1 - std::abs(static_cast<float>(j) - centre) / radius));
      total += tap.weights.back();
    }
    for (float& weight : tap.weights) weight /= total;
  }
  return taps;
}

void check_resize(int height, int width, int to_height, int to_width) {
  if (std::int64_t{std::max(to_height, height)} * to_width > kMostPixels)
    throw Corrupt(str("an image of ", width, " x ", height, " cannot be resized to ", to_width, " x ", to_height,
                      ": that is too large"));
}

}  // namespace io

Image resize(const Image& image, int height, int width) {
  require(height > 0 && width > 0, "cannot resize an image to ", width, " x ", height);
  io::check_resize(image.height, image.width, height, width);
  const std::size_t channels = static_cast<std::size_t>(image.channels);
  const std::size_t row = static_cast<std::size_t>(width) * channels;
  const std::vector<io::Taps> across = io::make_taps(image.width, width);
  const std::vector<io::Taps> down = io::make_taps(image.height, height);

  std::vector<float> middle(static_cast<std::size_t>(image.height) * row);
  for (std::size_t y = 0; y < static_cast<std::size_t>(image.height); ++y) {
    const std::uint8_t* from = image.pixels.data() + y * static_cast<std::size_t>(image.width) * channels;
    float* to = middle.data() + y * row;
    for (const io::Taps& tap : across) {
      for (std::size_t c = 0; c < channels; ++c) {
        const std::uint8_t* p = from + static_cast<std::size_t>(tap.first) * channels + c;
        float sum = 0;
        for (const float weight : tap.weights) {
          sum += weight * static_cast<float>(*p);
          p += channels;
        }
        *to++ = sum;
      }
    }
  }

  Image result{height, width, image.channels, std::vector<std::uint8_t>(static_cast<std::size_t>(height) * row)};
  std::vector<float> sums(row);
  for (std::size_t y = 0; y < static_cast<std::size_t>(height); ++y) {
    std::fill(sums.begin(), sums.end(), 0.5f);
    const float* from = middle.data() + static_cast<std::size_t>(down[y].first) * row;
    for (const float weight : down[y].weights) {
      for (std::size_t x = 0; x < row; ++x) sums[x] += weight * from[x];
      from += row;
    }
    for (std::size_t x = 0; x < row; ++x) {
      result.pixels[y * row + x] = static_cast<std::uint8_t>(std::clamp(sums[x], 0.0f, 255.0f));
    }
  }
  return result;
}

Image crop(const Image& image, int top, int left, int height, int width) {
  require(
      top >= 0 && left >= 0 && height > 0 && width > 0 && height <= image.height - top && width <= image.width - left,
      "a crop of ", width, " x ", height, " at (", left, ", ", top, ") is not inside an image of ", image.width, " x ",
      image.height);
  const std::size_t channels = static_cast<std::size_t>(image.channels);
  const std::size_t row = static_cast<std::size_t>(width) * channels;
  Image result{height, width, image.channels, std::vector<std::uint8_t>(static_cast<std::size_t>(height) * row)};
  for (std::size_t y = 0; y < static_cast<std::size_t>(height); ++y) {
    const std::size_t from =
        (static_cast<std::size_t>(top) + y) * static_cast<std::size_t>(image.width) + static_cast<std::size_t>(left);
    std::memcpy(result.pixels.data() + y * row, image.pixels.data() + from * channels, row);
  }
  return result;
}

}  // namespace paceline

#include <paceline/detail/vector_code.h>
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

std::vector<Taps> make_taps(const Stretch& from, int to, int begin, int count) {
  const float step = from.length / static_cast<float>(to);
  const float radius = std::max(step, 1.0f);
  std::vector<Taps> taps(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    Taps& tap = taps[static_cast<std::size_t>(i)];
    const float centre = from.first + (static_cast<float>(begin + i) + 0.5f) * step - 0.5f;
    tap.first = std::clamp(static_cast<int>(std::ceil(centre - radius)), from.begin, from.end - 1);
    const int last = std::clamp(static_cast<int>(std::floor(centre + radius)), tap.first, from.end - 1);
    float total = 0;
    tap.weights.reserve(static_cast<std::size_t>(last - tap.first + 1));
    for (int j = tap.first; j <= last; ++j) {
      tap.weights.push_back(std::max(0.0f, 1 - std::abs(static_cast<float>(j) - centre) / radius));
      total += tap.weights.back();
    }
    for (float& weight : tap.weights) weight /= total;
  }
  return taps;
}

void check_resize(int height, int width, int to_height, int to_width) {
  if (std::int64_t{std::max(to_height, height)} * std::max(to_width, width) > kMostPixels)
    throw Corrupt(str("an image of ", width, " x ", height, " cannot be resized to ", to_width, " x ", to_height,
                      ": that is too large"));
}

void check_inside(const Rectangle& part, int height, int width) {
  require(part.top >= 0 && part.left >= 0 && part.height > 0 && part.width > 0 && part.height <= height - part.top &&
              part.width <= width - part.left,
          "a crop of ", part.width, " x ", part.height, " at (", part.left, ", ", part.top,
          ") is not inside an image of ", width, " x ", height);
}

namespace {

// Four values that the processor adds and multiplies at once, each rounded by itself.
using Four = float __attribute__((vector_size(16)));
using FourWhole = int __attribute__((vector_size(16)));

Four load(const float* from) {
  Four four;
  std::memcpy(&four, from, sizeof four);
  return four;
}

std::uint8_t to_pixel(float value) { return static_cast<std::uint8_t>(std::clamp(value, 0.0f, 255.0f)); }

// A row of output pixels of 3 channels from sums of rows, behind which one more float may be read.
PACELINE_INLINE inline void add_across_colour(const float* row, int left, const std::vector<Taps>& across,
                                              std::uint8_t* to) {
  constexpr Four kLeast = {0, 0, 0, 0}, kMost = {255, 255, 255, 255};
  for (const Taps& tap : across) {
    const float* from = row + 3 * (tap.first - left);
    Four sum = {0.5f, 0.5f, 0.5f, 0.5f};
    for (const float weight : tap.weights) {
      sum += weight * load(from);
      from += 3;
    }
    sum = sum < kLeast ? kLeast : sum;
    sum = sum > kMost ? kMost : sum;
    const FourWhole whole = __builtin_convertvector(sum, FourWhole);
    for (int c = 0; c < 3; ++c) *to++ = static_cast<std::uint8_t>(whole[c]);
  }
}

PACELINE_INLINE inline void add_across_grey(const float* row, int left, const std::vector<Taps>& across,
                                            std::uint8_t* to) {
  for (const Taps& tap : across) {
    const float* from = row + (tap.first - left);
    float sum = 0.5f;
    for (const float weight : tap.weights) sum += weight * *from++;
    *to++ = to_pixel(sum);
  }
}

// The weighted sum of rows of `count` bytes.
PACELINE_INLINE inline void add_down(const std::uint8_t* from, std::size_t count, const std::vector<float>& weights,
                                     float* sums) {
  for (std::size_t x = 0; x < count; ++x) sums[x] = weights[0] * static_cast<float>(from[x]);
  for (std::size_t i = 1; i < weights.size(); ++i) {
    from += count;
    const float weight = weights[i];
    for (std::size_t x = 0; x < count; ++x) sums[x] += weight * static_cast<float>(from[x]);
  }
}

}  // namespace

// Rows are added up first, as those sums are of neighbours in memory; then columns of the sums.
void Resizer::operator()(const Image& image, int top, int left, const std::vector<Taps>& down,
                         const std::vector<Taps>& across, Image& to) {
  const auto channels = static_cast<std::size_t>(image.channels);
  const std::size_t row = static_cast<std::size_t>(image.width) * channels;
  to.height = static_cast<int>(down.size());
  to.width = static_cast<int>(across.size());
  to.channels = image.channels;
  to.pixels.resize(down.size() * across.size() * channels);
  sums_.resize(row + 1);
  std::uint8_t* pixel = to.pixels.data();
  detail::vector_code([&]() PACELINE_INLINE {
    for (const Taps& tap : down) {
      add_down(image.pixels.data() + static_cast<std::size_t>(tap.first - top) * row, row, tap.weights, sums_.data());
      if (channels == 3)
        add_across_colour(sums_.data(), left, across, pixel);
      else
        add_across_grey(sums_.data(), left, across, pixel);
      pixel += across.size() * channels;
    }
  });
}

}  // namespace io

Image resize(const Image& image, int height, int width) {
  require(height > 0 && width > 0, "cannot resize an image to ", width, " x ", height);
  io::check_resize(image.height, image.width, height, width);
  Image result;
  io::Resizer()(image, 0, 0, io::make_taps(image.height, height), io::make_taps(image.width, width), result);
  return result;
}

Image crop(const Image& image, int top, int left, int height, int width) {
  io::check_inside({top, left, height, width}, image.height, image.width);
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

#include <paceline/detail/vector_code.h>
#include <paceline/error.h>
#include <paceline/image.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "image_resize.h"

namespace paceline {
namespace {

// More pixels than this are not asked memory for: an image of one column, resized by its shorter edge, has billions.
constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;

}  // namespace

namespace io {

void TapTable::set(const Stretch& from, int to, int begin, int count) {
  const float step = from.length / static_cast<float>(to);
  const float radius = std::max(step, 1.0f);
  first_.resize(static_cast<std::size_t>(count));
  count_.resize(first_.size());
  detail::vector_code([&]() PACELINE_INLINE {
    const auto centre_of = [&](std::size_t i) PACELINE_INLINE {
      return from.first + (static_cast<float>(begin + static_cast<int>(i)) + 0.5f) * step - 0.5f;
    };
    most_ = 0;
    for (std::size_t i = 0; i < first_.size(); ++i) {
      const float centre = centre_of(i);
      const int first = std::clamp(static_cast<int>(std::ceil(centre - radius)), from.begin, from.end - 1);
      const int last = std::clamp(static_cast<int>(std::floor(centre + radius)), first, from.end - 1);
      first_[i] = first;
      count_[i] = static_cast<std::size_t>(last - first + 1);
      most_ = std::max(most_, count_[i]);
    }
    weights_.resize(first_.size() * most_);
    for (std::size_t i = 0; i < first_.size(); ++i) {
      const float centre = centre_of(i);
      float* const weights = weights_.data() + i * most_;
      float total = 0;
      for (std::size_t k = 0; k < count_[i]; ++k) {
        const float distance = std::abs(static_cast<float>(first_[i] + static_cast<int>(k)) - centre);
        weights[k] = std::max(0.0f, 1 - distance / radius);
        total += weights[k];
      }
      for (std::size_t k = 0; k < count_[i]; ++k) weights[k] /= total;
    }
  });
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

// Values that the processor adds and multiplies at once, each rounded by itself.
using Four = float __attribute__((vector_size(16)));
using Eight = float __attribute__((vector_size(32)));

constexpr int kBrightest = 255;

// Of numbers that are not negative, the next smaller whole ones.
PACELINE_INLINE inline void to_bytes(const float* from, std::size_t count, std::uint8_t* __restrict to) {
  for (std::size_t i = 0; i < count; ++i)
    to[i] = static_cast<std::uint8_t>(std::min(static_cast<int>(from[i]), kBrightest));
}

// Leaves the fourth byte of each pixel out.
PACELINE_INLINE inline void to_colour(const std::uint8_t* from, std::size_t pixels, std::uint8_t* __restrict to) {
  using Bytes = std::uint8_t __attribute__((vector_size(16)));
  std::size_t i = 0;
  // What is written behind four pixels is overwritten by the next ones.
  for (; 3 * i + sizeof(Bytes) <= 3 * pixels; i += 4) {
    Bytes bytes;
    std::memcpy(&bytes, from + 4 * i, sizeof bytes);
    bytes = __builtin_shufflevector(bytes, bytes, 0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 7, 11, 15);
    std::memcpy(to + 3 * i, &bytes, sizeof bytes);
  }
  for (; i < pixels; ++i) std::memcpy(to + 3 * i, from + 4 * i, 3);
}

// Pairs of output samples of 3 channels and one value more, from sums of rows. `weights` and `places` are Resizer's.
// `taps`: a number, or a constant, for which the compiler unrolls the loop.
template <class Count>
PACELINE_INLINE inline void add_across_colour(const float* row, std::size_t pairs, Count taps, const float* weights,
                                              const std::size_t* places, float* __restrict to) {
  for (std::size_t i = 0; i < pairs; ++i, to += 8) {
    const float *left = row + places[2 * i], *right = row + places[2 * i + 1];
    Eight sum = {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f};
    for (std::size_t k = 0; k < taps; ++k, weights += 8, left += 3, right += 3) {
      Four one, other;
      Eight weight;
      std::memcpy(&one, left, sizeof one);
      std::memcpy(&other, right, sizeof other);
      std::memcpy(&weight, weights, sizeof weight);
      sum += weight * __builtin_shufflevector(one, other, 0, 1, 2, 3, 4, 5, 6, 7);
    }
    std::memcpy(to, &sum, sizeof sum);
  }
}

PACELINE_INLINE inline void add_across_grey(const float* row, int left, const TapTable& across, float* __restrict to) {
  for (std::size_t i = 0; i < across.size(); ++i) {
    const Taps tap = across[i];
    const float* from = row + (tap.first - left);
    float sum = 0.5f;
    for (const float weight : tap.weights) sum += weight * *from++;
    to[i] = sum;
  }
}

// The weighted sum of rows of `count` bytes, in their order: the first four at once, later ones one by one.
PACELINE_INLINE inline void add_down(const std::uint8_t* from, std::size_t count, std::span<const float> weights,
                                     float* __restrict sums) {
  const auto of = [&](std::size_t i, std::size_t x, float weight)
                      PACELINE_INLINE { return weight * static_cast<float>(from[i * count + x]); };
  std::size_t done = std::min<std::size_t>(weights.size(), 4);
  const float w0 = weights[0], w1 = done > 1 ? weights[1] : 0, w2 = done > 2 ? weights[2] : 0,
              w3 = done > 3 ? weights[3] : 0;
  if (done == 1) {
    for (std::size_t x = 0; x < count; ++x) sums[x] = of(0, x, w0);
  } else if (done == 2) {
    for (std::size_t x = 0; x < count; ++x) sums[x] = of(0, x, w0) + of(1, x, w1);
  } else if (done == 3) {
    for (std::size_t x = 0; x < count; ++x) sums[x] = of(0, x, w0) + of(1, x, w1) + of(2, x, w2);
  } else {
    for (std::size_t x = 0; x < count; ++x) sums[x] = of(0, x, w0) + of(1, x, w1) + of(2, x, w2) + of(3, x, w3);
  }
  for (; done < weights.size(); ++done) {
    const float weight = weights[done];
    for (std::size_t x = 0; x < count; ++x) sums[x] += of(done, x, weight);
  }
}

}  // namespace

// Lays out `weights_` and `places_`. Samples get weights of 0 until all have equally many.
void Resizer::spread(const TapTable& across, int left) {
  const std::size_t pairs = (across.size() + 1) / 2, taps = across.most_weights();
  weights_.assign(pairs * taps * 8, 0.0f);
  places_.assign(2 * pairs, 0);
  for (std::size_t i = 0; i < across.size(); ++i) {
    const Taps tap = across[i];
    places_[i] = static_cast<std::size_t>(3 * (tap.first - left));
    float* to = weights_.data() + i / 2 * taps * 8 + i % 2 * 4;
    for (const float weight : tap.weights) {
      std::fill_n(to, 4, weight);
      to += 8;
    }
  }
}

// Rows are added up first, as those sums are of neighbours in memory; then columns of the sums.
void Resizer::operator()(const Image& image, int top, int left, const TapTable& down, const TapTable& across,
                         Image& to) {
  const auto channels = static_cast<std::size_t>(image.channels);
  const std::size_t row = static_cast<std::size_t>(image.width) * channels, width = across.size();
  to.height = static_cast<int>(down.size());
  to.width = static_cast<int>(width);
  to.channels = image.channels;
  to.pixels.resize(down.size() * width * channels);
  const std::size_t pairs = (width + 1) / 2;
  // Behind a row, weights of 0 meet numbers, though those of earlier rows.
  sums_.resize(row + channels * across.most_weights() + 1);
  samples_.resize(8 * pairs);
  bytes_.resize(samples_.size());
  if (channels == 3) spread(across, left);
  std::uint8_t* pixel = to.pixels.data();
  detail::vector_code([&]() PACELINE_INLINE {
    for (std::size_t y = 0; y < down.size(); ++y, pixel += width * channels) {
      const Taps tap = down[y];
      add_down(image.pixels.data() + static_cast<std::size_t>(tap.first - top) * row, row, tap.weights, sums_.data());
      if (channels == 1) {
        add_across_grey(sums_.data(), left, across, samples_.data());
        to_bytes(samples_.data(), width, pixel);
        continue;
      }
      const auto add_across = [&](auto taps) PACELINE_INLINE {
        add_across_colour(sums_.data(), pairs, taps, weights_.data(), places_.data(), samples_.data());
      };
      switch (across.most_weights()) {
        case 2: add_across(std::integral_constant<std::size_t, 2>()); break;
        case 3: add_across(std::integral_constant<std::size_t, 3>()); break;
        case 4: add_across(std::integral_constant<std::size_t, 4>()); break;
        default: add_across(across.most_weights());
      }
      to_bytes(samples_.data(), samples_.size(), bytes_.data());
      to_colour(bytes_.data(), width, pixel);
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

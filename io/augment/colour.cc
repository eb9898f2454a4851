#include "augment/colour.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace paceline::io {
namespace {

constexpr float kMost = 255;

std::uint8_t level(float value) { return static_cast<std::uint8_t>(std::clamp(value, 0.0f, kMost)); }

std::uint8_t luminance(const std::uint8_t* pixel) {
  return static_cast<std::uint8_t>(0.2989f * static_cast<float>(pixel[0]) + 0.587f * static_cast<float>(pixel[1]) +
                                   0.114f * static_cast<float>(pixel[2]));
}

// Every byte becomes what `value` says of it.
template <class Value>
void replace(std::vector<std::uint8_t>& bytes, const Value& value) {
  std::array<std::uint8_t, 256> table;
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = value(static_cast<float>(i));
  for (std::uint8_t& byte : bytes) byte = table[byte];
}

// The pixels of a coloured image, one after the other.
template <class Change>
void for_each_colour(Image& image, const Change& change) {
  for (std::size_t i = 0; i + 3 <= image.pixels.size(); i += 3) change(image.pixels.data() + i);
}

double mean_grey(const Image& image) {
  std::uint64_t sum = 0;
  const auto channels = static_cast<std::size_t>(image.channels);
  for (std::size_t i = 0; i < image.pixels.size(); i += channels)
    sum += channels == 3 ? luminance(image.pixels.data() + i) : image.pixels[i];
  return static_cast<double>(sum) * static_cast<double>(channels) / static_cast<double>(image.pixels.size());
}

struct Hsv {
  float hue;  // in turns
  float saturation;
  float value;
};

Hsv to_hsv(float red, float green, float blue) {
  const float most = std::max({red, green, blue}), least = std::min({red, green, blue}), spread = most - least;
  if (spread == 0) return {0, 0, most};
  float sector = most == red     ? (green - blue) / spread
                 : most == green ? 2 + (blue - red) / spread
                                 : 4 + (red - green) / spread;
  if (sector < 0) sector += 6;
  return {sector / 6, spread / most, most};
}

std::array<float, 3> to_rgb(const Hsv& hsv) {
  const float sector = hsv.hue * 6, whole = std::floor(sector), part = sector - whole;
  const float v = hsv.value, s = hsv.saturation;
  const float low = v * (1 - s), falling = v * (1 - s * part), rising = v * (1 - s * (1 - part));
  switch (static_cast<int>(whole) % 6) {
    case 0: return {v, rising, low};
    case 1: return {falling, v, low};
    case 2: return {low, v, rising};
    case 3: return {low, falling, v};
    case 4: return {rising, low, v};
    default: return {v, low, falling};
  }
}

}  // namespace

void adjust_brightness(Image& image, double factor) {
  const float f = static_cast<float>(factor);
  replace(image.pixels, [f](float pixel) { return level(f * pixel); });
}

void adjust_contrast(Image& image, double factor) {
  const float f = static_cast<float>(factor), rest = static_cast<float>(1 - factor);
  const float grey = rest * static_cast<float>(mean_grey(image));
  replace(image.pixels, [f, grey](float pixel) { return level(f * pixel + grey); });
}

void adjust_saturation(Image& image, double factor) {
  if (image.channels != 3) return;
  const float f = static_cast<float>(factor), rest = static_cast<float>(1 - factor);
  for_each_colour(image, [f, rest](std::uint8_t* pixel) {
    const float grey = rest * static_cast<float>(luminance(pixel));
    for (int c = 0; c < 3; ++c) pixel[c] = level(f * static_cast<float>(pixel[c]) + grey);
  });
}

void adjust_hue(Image& image, double shift) {
  if (image.channels != 3) return;
  // A number below 256, so that 1 is level 255, and levels are equally wide.
  constexpr float kLevels = 255.999f;
  for_each_colour(image, [turns = static_cast<float>(shift)](std::uint8_t* pixel) {
    Hsv hsv = to_hsv(static_cast<float>(pixel[0]) / kMost, static_cast<float>(pixel[1]) / kMost,
                     static_cast<float>(pixel[2]) / kMost);
    hsv.hue += turns;
    hsv.hue -= std::floor(hsv.hue);
    const std::array<float, 3> rgb = to_rgb(hsv);
    for (int c = 0; c < 3; ++c) pixel[c] = level(rgb[static_cast<std::size_t>(c)] * kLevels);
  });
}

void make_grey(Image& image) {
  if (image.channels != 3) return;
  for_each_colour(image, [](std::uint8_t* pixel) { pixel[0] = pixel[1] = pixel[2] = luminance(pixel); });
}

void fill(Image& image, const Rectangle& part, const Colour& colour) {
  const auto channels = static_cast<std::size_t>(image.channels);
  for (int y = part.top; y < part.top + part.height; ++y) {
    const std::size_t from =
        static_cast<std::size_t>(y) * static_cast<std::size_t>(image.width) + static_cast<std::size_t>(part.left);
    std::uint8_t* pixel = image.pixels.data() + from * channels;
    for (std::size_t i = 0; i < static_cast<std::size_t>(part.width) * channels; ++i) pixel[i] = colour[i % channels];
  }
}

void add_to_channels(Image& image, const std::array<double, 3>& numbers) {
  const auto channels = static_cast<std::size_t>(image.channels);
  for (std::size_t c = 0; c < channels; ++c) {
    std::array<std::uint8_t, 256> table;
    for (std::size_t i = 0; i < table.size(); ++i)
      table[i] = level(static_cast<float>(static_cast<double>(i) + numbers[c] + 0.5));
    for (std::size_t i = c; i < image.pixels.size(); i += channels) image.pixels[i] = table[image.pixels[i]];
  }
}

}  // namespace paceline::io

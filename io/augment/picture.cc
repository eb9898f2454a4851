#include "augment/picture.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "stage_clock.h"

namespace paceline::io {

Picture::Picture(ImageCodec& codec, const ImageHeader& header, int channels, PictureMemory& memory)
    : Picture(header.height, header.width) {
  codec_ = &codec;
  memory_ = &memory;
  channels_ = channels;
  is_jpeg_ = header.encoding == ImageEncoding::kJpeg;
}

Picture::Picture(int height, int width) {
  geometry_.source = geometry_.window = {0, 0, height, width};
  geometry_.height = height;
  geometry_.width = width;
}

void Picture::move_boxes(const AffineMap& map) {
  if (boxes_) boxes_->move(map, height(), width());
}

void Picture::crop(const Rectangle& part, const Colour& outside) {
  const bool inside =
      part.top >= 0 && part.left >= 0 && part.top + part.height <= height() && part.left + part.width <= width();
  const auto all_is_seen = [&] { return geometry_.window == Rectangle{0, 0, geometry_.height, geometry_.width}; };
  if (!inside && !all_is_seen()) pixels();
  Rectangle& window = geometry_.window;
  // Rows and columns count from the other end where they are turned round.
  window.top += geometry_.upside_down ? window.height - part.top - part.height : part.top;
  window.left += geometry_.mirrored ? window.width - part.left - part.width : part.left;
  window.height = part.height;
  window.width = part.width;
  if (!inside) geometry_.outside = outside;
  move_boxes({1, 0, -static_cast<double>(part.left), 0, 1, -static_cast<double>(part.top)});
}

void Picture::resize(int height, int width) {
  const int before_height = this->height(), before_width = this->width();
  if (height == before_height && width == before_width) return;
  check_resize(before_height, before_width, height, width);
  const Rectangle& window = geometry_.window;
  const bool inside = window == inner_window();
  if (is_resized() || !inside) pixels();
  geometry_.source = {geometry_.source.top + window.top, geometry_.source.left + window.left, window.height,
                      window.width};
  geometry_.height = height;
  geometry_.width = width;
  geometry_.window = {0, 0, height, width};
  move_boxes({static_cast<double>(width) / before_width, 0, 0, 0, static_cast<double>(height) / before_height, 0});
}

void Picture::mirror() {
  geometry_.mirrored = !geometry_.mirrored;
  move_boxes({-1, 0, static_cast<double>(width()), 0, 1, 0});
}

void Picture::turn_upside_down() {
  geometry_.upside_down = !geometry_.upside_down;
  move_boxes({1, 0, 0, 0, -1, static_cast<double>(height())});
}

void Picture::warp(const AffineMap& map, bool nearest, const Colour& outside) {
  io::warp(pixels(), map, nearest, outside, memory_->spare);
  std::swap(memory_->held, memory_->spare);
  move_boxes(map);
}

// What of the window is inside the resized source.
Rectangle Picture::inner_window() const {
  const Rectangle& window = geometry_.window;
  const int top = std::clamp(window.top, 0, geometry_.height), left = std::clamp(window.left, 0, geometry_.width);
  return {top, left, std::clamp(window.top + window.height, top, geometry_.height) - top,
          std::clamp(window.left + window.width, left, geometry_.width) - left};
}

void Picture::start_from_held() {
  const Image& held = memory_->held;
  geometry_.source = geometry_.window = {0, 0, held.height, held.width};
  geometry_.height = held.height;
  geometry_.width = held.width;
}

// Makes `held` this part of the image, which is decoded so many times smaller, or more columns. Returns what it shows.
Rectangle Picture::decode(const Rectangle& part, int reduced) {
  const StageScope stage(Stage::kDecode);
  return std::exchange(codec_, nullptr)->decode_around(part, memory_->held, channels_, reduced);
}

// Makes `held` the part (inside the source, which is not resized or before it is), or more columns. Returns what it
// shows.
Rectangle Picture::fetch(const Rectangle& part) {
  const Rectangle& source = geometry_.source;
  const Rectangle at{source.top + part.top, source.left + part.left, part.height, part.width};
  Image& held = memory_->held;
  if (codec_) {
    const Rectangle shown = decode(at, 1);
    return {shown.top - source.top, shown.left - source.left, shown.height, shown.width};
  }
  if (at != Rectangle{0, 0, held.height, held.width}) held = paceline::crop(held, at.top, at.left, at.height, at.width);
  return part;
}

// How many times smaller the image may be decoded.
int Picture::reduction() const {
  constexpr int kMost = 8;
  int result = 1;
  while (may_reduce_ && codec_ && result < kMost && geometry_.source.height >= 2 * result * geometry_.height &&
         geometry_.source.width >= 2 * result * geometry_.width)
    result *= 2;
  return result;
}

namespace {

// Of the `length` samples from `first` on, in an image that is so many times smaller. It takes coarse samples of which
// half or more lies inside.
Stretch stretch(int first, int length, int reduced) {
  const auto divisor = static_cast<float>(reduced);
  return {static_cast<float>(first) / divisor, static_cast<float>(length) / divisor, (first + reduced / 2) / reduced,
          (first + length + reduced / 2) / reduced};
}

}  // namespace

// Makes `held` this part of the resized source.
void Picture::resize_window(const Rectangle& inner) {
  const Rectangle& source = geometry_.source;
  const int reduced = reduction();
  TapTable &down = memory_->down, &across = memory_->across;
  const auto lines = [&](int first, int length) {
    return reduced == 1 ? Stretch{0, static_cast<float>(length), 0, length} : stretch(first, length, reduced);
  };
  down.set(lines(source.top, source.height), geometry_.height, inner.top, inner.height);
  across.set(lines(source.left, source.width), geometry_.width, inner.left, inner.width);
  const int top = down.front().first, left = across.front().first;
  const Rectangle part{top, left, down.back().end() - top, across.back().end() - left};
  const Rectangle shown = reduced == 1 ? fetch(part) : decode(part, reduced);
  memory_->resizer(memory_->held, shown.top, shown.left, down, across, memory_->spare);
  std::swap(memory_->held, memory_->spare);
}

const Image& Picture::nearly_done() {
  assert(memory_);
  const Rectangle window = geometry_.window, inner = inner_window();
  // Of a window that shows nothing of the image, one pixel is made, and the window stays beside it.
  Rectangle made = inner;
  if (inner.height == 0 || inner.width == 0) made = {0, 0, 1, 1};
  if (is_resized())
    resize_window(made);
  else
    made = fetch(made);
  start_from_held();
  const Image& held = memory_->held;
  geometry_.window = {window.top - made.top, window.left - made.left, window.height, window.width};
  if (inner.height == 0 || inner.width == 0) geometry_.window = {held.height, held.width, window.height, window.width};
  return held;
}

namespace {

std::uint8_t* fill_pixels(std::uint8_t* to, int count, std::size_t channels, const Colour& colour) {
  for (int i = 0; i < count; ++i, to += channels) std::memcpy(to, colour.data(), channels);
  return to;
}

void reverse_pixels(std::uint8_t* row, int count, std::size_t channels) {
  std::uint8_t* last = row + (static_cast<std::size_t>(count) - 1) * channels;
  for (; row < last; row += channels, last -= channels) std::swap_ranges(row, row + channels, last);
}

}  // namespace

Image& Picture::pixels() {
  const Image& image = nearly_done();
  const Rectangle window = geometry_.window;
  const bool all = window == Rectangle{0, 0, image.height, image.width};
  if (all && !geometry_.mirrored && !geometry_.upside_down) return memory_->held;
  Image& to = memory_->spare;
  to.height = window.height;
  to.width = window.width;
  to.channels = image.channels;
  const auto channels = static_cast<std::size_t>(image.channels);
  const std::size_t row = static_cast<std::size_t>(window.width) * channels;
  to.pixels.resize(static_cast<std::size_t>(window.height) * row);
  // Columns [first, last) of the window come from the image.
  const int first = std::clamp(-window.left, 0, window.width);
  const int last = std::clamp(image.width - window.left, first, window.width);
  for (int y = 0; y < window.height; ++y) {
    const int from_row = window.top + (geometry_.upside_down ? window.height - 1 - y : y);
    std::uint8_t* const begin = to.pixels.data() + static_cast<std::size_t>(y) * row;
    if (from_row < 0 || from_row >= image.height || first == last) {
      fill_pixels(begin, window.width, channels, geometry_.outside);
      continue;
    }
    const std::size_t from = static_cast<std::size_t>(from_row) * static_cast<std::size_t>(image.width) +
                             static_cast<std::size_t>(window.left + first);
    std::uint8_t* pixel = fill_pixels(begin, first, channels, geometry_.outside);
    const std::size_t bytes = static_cast<std::size_t>(last - first) * channels;
    std::memcpy(pixel, image.pixels.data() + from * channels, bytes);
    fill_pixels(pixel + bytes, window.width - last, channels, geometry_.outside);
    if (geometry_.mirrored) reverse_pixels(begin, window.width, channels);
  }
  std::swap(memory_->held, memory_->spare);
  geometry_.mirrored = geometry_.upside_down = false;
  start_from_held();
  return memory_->held;
}

}  // namespace paceline::io

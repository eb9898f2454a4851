#include "example_decoder.h"

#include <paceline/detail/vector_code.h>
#include <paceline/error.h>

#include <algorithm>
#include <optional>

#include "class_label.h"
#include "stage_clock.h"

namespace paceline::io {
namespace {

constexpr float kNoLabel = -1;  // as MXNet's iterators for detection fill rows up

float of_channel(const std::vector<double>& values, std::size_t channel) {
  return static_cast<float>(values.size() == 1 ? values[0] : values.at(channel));
}

// The channels of `count` pixels of 3, one behind the other.
PACELINE_INLINE inline void split_colours(const std::uint8_t* pixels, std::ptrdiff_t count,
                                          std::uint8_t* __restrict to) {
  std::uint8_t* __restrict second = to + count;
  std::uint8_t* __restrict third = second + count;
  for (std::ptrdiff_t x = 0; x < count; ++x) {
    to[x] = pixels[3 * x];
    second[x] = pixels[3 * x + 1];
    third[x] = pixels[3 * x + 2];
  }
}

template <class T, class Value>
PACELINE_INLINE inline void write_values(const std::uint8_t* from, std::ptrdiff_t count, bool mirrored,
                                         const Value& value, T* __restrict to) {
  if (mirrored) {
    for (std::ptrdiff_t x = 0; x < count; ++x) to[x] = value(from[count - 1 - x]);
  } else {
    for (std::ptrdiff_t x = 0; x < count; ++x) to[x] = value(from[x]);
  }
}

}  // namespace

ExampleDecoder::ExampleDecoder(const ExampleFormat& format) : format_(format) {
  const CheckedStep* const normalize = format.pipeline->normalize();
  if (!normalize) return;
  const auto channels = static_cast<std::size_t>(format.channels);
  const std::vector<double>&mean = normalize->list("mean"), &deviation = normalize->list("deviation");
  for (const std::vector<double>* values : {&mean, &deviation}) {
    require(values->size() == 1 || values->size() == channels, "mean and deviation hold one number or ", channels,
            " (one for each channel), not ", values->size());
  }
  const auto scale = static_cast<float>(normalize->number("scale"));
  for (std::size_t c = 0; c < channels; ++c) {
    factor_.push_back(scale / of_channel(deviation, c));
    offset_.push_back(-of_channel(mean, c) / of_channel(deviation, c));
  }
}

std::vector<ExampleArray> ExampleDecoder::arrays() const {
  const Shape shape{format_.channels, format_.height, format_.width};
  if (format_.class_labels) return {{"data", shape, format_.dtype}, {"label", {}, DType::kInt32}};
  return {{"data", shape, format_.dtype}, {"label", {format_.label_width}, DType::kFloat32}};
}

void ExampleDecoder::decode(std::string_view record, std::uint64_t seed, std::span<void* const> to) {
  const ImageRecord parts(record);
  write_label(parts, to[1]);
  const ImageHeader header = codec_.header(parts.image());
  Picture picture(codec_, header, format_.channels, memory_);
  if (format_.reduced) picture.allow_reduced();
  std::optional<Boxes> boxes;
  if (format_.boxes) {
    boxes.emplace(labels_of(parts), header.height, header.width);
    picture.carry(*boxes);
  }
  const StageScope stage(Stage::kAugment);
  format_.pipeline->run(picture, seed);
  if (boxes)
    boxes->write(format_.box_share, kNoLabel,
                 {static_cast<float*>(to[1]), static_cast<std::size_t>(format_.label_width)});
  const Image& image = picture.nearly_done();
  if (!format_.pipeline->normalize()) {
    write_planes(image, picture.geometry(), static_cast<std::uint8_t*>(to[0]),
                 [](std::size_t) { return [](std::uint8_t pixel) PACELINE_INLINE { return pixel; }; });
    return;
  }
  auto* const data = static_cast<float*>(to[0]);
  write_planes(image, picture.geometry(), data, [this](std::size_t channel) {
    return [factor = factor_[channel], offset = offset_[channel]](std::uint8_t pixel)
               PACELINE_INLINE { return static_cast<float>(pixel) * factor + offset; };
  });
  format_.pipeline->finish(data, seed);
}

std::vector<float> ExampleDecoder::labels_of(const ImageRecord& record) const {
  std::vector<float> labels;
  for (int i = 0; i < record.label_count(); ++i) labels.push_back(record.label(i));
  return labels;
}

void ExampleDecoder::write_label(const ImageRecord& record, void* label) const {
  const int count = record.label_count(), width = format_.label_width;
  if (format_.variable_labels ? count > width : count != width) {
    throw Corrupt(
        str("it has ", count, " labels, the data set has ", format_.variable_labels ? "at most " : "", width));
  }
  if (!format_.class_labels) {
    for (int i = 0; i < width; ++i) static_cast<float*>(label)[i] = i < count ? record.label(i) : kNoLabel;
    return;
  }
  *static_cast<std::int32_t*>(label) = class_number(record.label(0), format_.class_count);
}

Geometry ExampleDecoder::geometry(std::uint64_t seed) const {
  Picture picture(format_.height, format_.width);
  format_.pipeline->run(picture, seed);
  return picture.geometry();
}

template <class T, class Values>
void ExampleDecoder::write_planes(const Image& image, const Geometry& geometry, T* data, const Values& values) {
  const std::ptrdiff_t height = format_.height, width = format_.width, channels = format_.channels;
  const std::ptrdiff_t left = geometry.window.left;
  // Columns [first, last) of the window come from the image; those outside are padding.
  const std::ptrdiff_t first = std::clamp<std::ptrdiff_t>(-left, 0, width);
  const std::ptrdiff_t last = std::clamp<std::ptrdiff_t>(image.width - left, first, width);
  const std::ptrdiff_t before = geometry.mirrored ? width - last : first, count = last - first;
  line_.resize(static_cast<std::size_t>(count * channels));

  detail::vector_code([&]() PACELINE_INLINE {
    for (std::ptrdiff_t y = 0; y < height; ++y) {
      const std::ptrdiff_t from_row = geometry.window.top + (geometry.upside_down ? height - 1 - y : y);
      const bool inside = from_row >= 0 && from_row < image.height;
      const std::uint8_t* line = nullptr;
      if (inside) line = image.pixels.data() + (from_row * image.width + left + first) * channels;
      if (inside && channels == 3) {
        split_colours(line, count, line_.data());
        line = line_.data();
      }
      for (std::ptrdiff_t c = 0; c < channels; ++c) {
        const auto value = values(static_cast<std::size_t>(c));
        const T outside = value(geometry.outside[static_cast<std::size_t>(c)]);
        T* const row = data + (c * height + y) * width;
        if (!inside) {
          std::fill_n(row, width, outside);
          continue;
        }
        std::fill_n(row, before, outside);
        write_values(line + c * count, count, geometry.mirrored, value, row + before);
        std::fill(row + before + count, row + width, outside);
      }
    }
  });
}

}  // namespace paceline::io

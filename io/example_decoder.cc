#include "example_decoder.h"

#include <paceline/error.h>

#include <algorithm>

#include "class_label.h"
#include "permutation.h"

namespace paceline::io {
namespace {

constexpr float kNoLabel = -1;  // as MXNet's iterators for detection fill rows up

float of_channel(const std::vector<float>& values, std::size_t channel, float otherwise) {
  return values.empty() ? otherwise : values.size() == 1 ? values[0] : values[channel];
}

}  // namespace

ExampleDecoder::ExampleDecoder(const ExampleFormat& format) : format_(format) {
  const std::size_t channels = static_cast<std::size_t>(format.channels);
  const ImageOptions& image = format.image;
  for (const std::vector<float>* values : {&image.mean, &image.deviation}) {
    require(values->size() <= 1 || values->size() == channels, "mean and deviation hold one number or ", channels,
            " (one for each channel), not ", values->size());
  }
  require(image.dtype == DType::kFloat32 || image.dtype == DType::kUint8, "images become float32 or uint8, not ",
          name_of(image.dtype));
  require(image.dtype == DType::kFloat32 || (image.mean.empty() && image.deviation.empty()),
          "images of uint8 are pixels as they are, without mean and deviation");
  require(image.random_crop >= 0, "random_crop is a number of pixels, not ", image.random_crop);
  for (std::size_t c = 0; c < channels; ++c) {
    const float deviation = of_channel(image.deviation, c, 1);
    require(deviation != 0, "the deviation of channel ", c, " is 0");
    factor_.push_back(image.scale / deviation);
    offset_.push_back(-of_channel(image.mean, c, 0) / deviation);
  }
}

std::vector<ExampleArray> ExampleDecoder::arrays() const {
  const Shape shape{format_.channels, format_.height, format_.width};
  if (format_.class_labels) return {{"data", shape, format_.image.dtype}, {"label", {}, DType::kInt32}};
  return {{"data", shape, format_.image.dtype}, {"label", {format_.label_width}, DType::kFloat32}};
}

void ExampleDecoder::decode(std::string_view record, std::uint64_t seed, std::span<void* const> to) {
  const ImageRecord parts(record);
  write_label(parts, to[1]);
  decode_image(parts.image(), image_);
  if (image_.height != format_.height || image_.width != format_.width) {
    image_ = resize(image_, format_.height, format_.width);
  }
  if (format_.image.dtype == DType::kUint8) {
    write_planes(image_, seed, static_cast<std::uint8_t*>(to[0]),
                 [](std::size_t) { return [](std::uint8_t pixel) { return pixel; }; });
    return;
  }
  write_planes(image_, seed, static_cast<float*>(to[0]), [this](std::size_t channel) {
    return [factor = factor_[channel], offset = offset_[channel]](std::uint8_t pixel) {
      return static_cast<float>(pixel) * factor + offset;
    };
  });
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

Augmentation ExampleDecoder::augmentation(std::uint64_t seed) const {
  Random random(seed);
  Augmentation result;
  result.flip = format_.image.random_flip && random.below(2) == 1;
  const int pad = format_.image.random_crop;
  const std::uint64_t places = 2 * static_cast<std::uint64_t>(pad) + 1;
  result.down = static_cast<int>(random.below(places)) - pad;
  result.right = static_cast<int>(random.below(places)) - pad;
  return result;
}

template <class T, class Values>
void ExampleDecoder::write_planes(const Image& image, std::uint64_t seed, T* data, const Values& values) const {
  const std::ptrdiff_t height = format_.height, width = format_.width, channels = format_.channels;
  const Augmentation augmented = augmentation(seed);
  const std::ptrdiff_t down = augmented.down, right = augmented.right;
  // Output columns [first, last) come from the image; those outside are padding.
  const std::ptrdiff_t first = std::clamp<std::ptrdiff_t>(-right, 0, width);
  const std::ptrdiff_t last = std::clamp<std::ptrdiff_t>(width - right, first, width);

  for (std::ptrdiff_t c = 0; c < channels; ++c) {
    const auto value = values(static_cast<std::size_t>(c));
    const T outside = value(0);
    for (std::ptrdiff_t y = 0; y < height; ++y, data += width) {
      const std::ptrdiff_t from_row = y + down;
      if (from_row < 0 || from_row >= height) {
        std::fill_n(data, width, outside);
        continue;
      }
      const std::uint8_t* pixel = image.pixels.data() + (from_row * width + right + first) * channels + c;
      std::fill_n(data, first, outside);
      if (channels == 1) {
        for (std::ptrdiff_t x = first; x < last; ++x) data[x] = value(pixel[x - first]);
      } else {
        for (std::ptrdiff_t x = first; x < last; ++x, pixel += channels) {
          data[x] = value(*pixel);
        }
      }
      std::fill(data + last, data + width, outside);
      if (augmented.flip) std::reverse(data, data + width);
    }
  }
}

}  // namespace paceline::io

#pragma once
// From a record to its place in a batch.

#include <paceline/image.h>
#include <paceline/record_loader.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace paceline::io {

// What all examples of a data set become.
struct ExampleFormat {
  int channels = 1;
  int height = 0;
  int width = 0;
  int label_width = 1;
  bool variable_labels = false;  // a record may have fewer labels
  bool class_labels = true;
  std::size_t class_count = 0;  // 0: not known
  ImageOptions image;

  std::size_t values() const {
    return static_cast<std::size_t>(channels) * static_cast<std::size_t>(height) * static_cast<std::size_t>(width);
  }
};

// Where an example's values come from: value (y, x) is pixel (y + down, x + right) of the image, or a pixel of value 0
// outside it; then rows are turned round.
struct Augmentation {
  bool flip = false;
  int down = 0;
  int right = 0;
};

// One thread at a time.
class ExampleDecoder {
 public:
  // Throws InvalidArgument where mean and deviation do not fit the channels.
  explicit ExampleDecoder(const ExampleFormat& format);

  // Writes format.values() numbers to `data` and label_width numbers (int32 classes or float32) to `label`. `seed`
  // decides the augmentation. Throws Corrupt with the reason alone.
  void decode(std::string_view record, std::uint64_t seed, float* data, void* label);

  // The parts of decode(), for who makes the values elsewhere: value = pixel * factor[channel] + offset[channel].
  void write_label(const ImageRecord& record, void* label) const;
  void decode_image(std::string_view image, Image& pixels) { codec_.decode(image, pixels, format_.channels); }
  Augmentation augmentation(std::uint64_t seed) const;
  const ExampleFormat& format() const { return format_; }
  const std::vector<float>& factor() const { return factor_; }
  const std::vector<float>& offset() const { return offset_; }

 private:
  void write_planes(const Image& image, std::uint64_t seed, float* data) const;

  ExampleFormat format_;
  std::vector<float> factor_;
  std::vector<float> offset_;
  ImageCodec codec_;
  Image image_;
};

}  // namespace paceline::io

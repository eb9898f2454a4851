#pragma once
// The decoder of MXNet's records of images.

#include <paceline/decoder.h>
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
};

// Where an example's values come from: value (y, x) is pixel (y + down, x + right) of the image, or a pixel of value 0
// outside it; then rows are turned round.
struct Augmentation {
  bool flip = false;
  int down = 0;
  int right = 0;
};

// One thread at a time.
class ExampleDecoder final : public Decoder {
 public:
  // Throws InvalidArgument where mean, deviation and type do not fit.
  explicit ExampleDecoder(const ExampleFormat& format);

  // "data", then "label".
  std::vector<ExampleArray> arrays() const override;
  void decode(std::string_view record, std::uint64_t seed, std::span<void* const> to) override;

  // The parts of decode(), for who makes the values elsewhere: value = pixel * factor[channel] + offset[channel].
  void write_label(const ImageRecord& record, void* label) const;
  void decode_image(std::string_view image, Image& pixels) { codec_.decode(image, pixels, format_.channels); }
  Augmentation augmentation(std::uint64_t seed) const;
  const ExampleFormat& format() const { return format_; }
  const std::vector<float>& factor() const { return factor_; }
  const std::vector<float>& offset() const { return offset_; }

 private:
  // values(channel)(pixel) are the numbers.
  template <class T, class Values>
  void write_planes(const Image& image, std::uint64_t seed, T* data, const Values& values) const;

  ExampleFormat format_;
  std::vector<float> factor_;
  std::vector<float> offset_;
  ImageCodec codec_;
  Image image_;
};

}  // namespace paceline::io

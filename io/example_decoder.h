#pragma once
// The decoder of MXNet's records of images.

#include <paceline/decoder.h>
#include <paceline/image.h>
#include <paceline/manifest.h>
#include <paceline/record_loader.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "augment/image_pipeline.h"

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
  DType dtype = DType::kFloat32;
  bool boxes = false;      // labels are boxes, which move along
  double box_share = 0.3;  // of a box must be left for the box to stay
  bool reduced = false;    // JPEGs may be decoded smaller
  std::shared_ptr<const ImagePipeline> pipeline;
};

// By the options, and by the manifest for what they leave open. Throws InvalidArgument, Corrupt.
ExampleFormat image_format(const Manifest& manifest, const std::string& path, const ImageOptions& options);

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
  // Where an example's values come from, if the device does all steps (Pipeline::host_only()).
  Geometry geometry(std::uint64_t seed) const;
  const ExampleFormat& format() const { return format_; }
  const std::vector<float>& factor() const { return factor_; }
  const std::vector<float>& offset() const { return offset_; }

 private:
  std::vector<float> labels_of(const ImageRecord& record) const;
  // values(channel)(pixel) are the numbers.
  template <class T, class Values>
  void write_planes(const Image& image, const Geometry& geometry, T* data, const Values& values);

  ExampleFormat format_;
  std::vector<float> factor_;
  std::vector<float> offset_;
  ImageCodec codec_;
  PictureMemory memory_;
  std::vector<std::uint8_t> line_;  // the channels of a row of pixels, one behind the other
};

}  // namespace paceline::io

#pragma once
// Images in memory, their encodings, and MXNet's image record (labels, id and an encoded image).

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

// Rows of interleaved 8-bit values: 1 channel is grey, 3 are red, green, blue.
struct Image {
  int height = 0;
  int width = 0;
  int channels = 0;
  std::vector<std::uint8_t> pixels;  // height * width * channels
};

// Encodings of an image. kRaw is binary PNM (P5 grey, P6 colour): the pixels behind a header of some 15 bytes. It costs
// no decoding, and MXNet's reader (OpenCV) reads it too. PNG is lossless, JPEG is not.
enum class ImageEncoding { kRaw, kPng, kJpeg };

// "raw", "png" or "jpg" ("jpeg" too); throws InvalidArgument listing them.
ImageEncoding parse_image_encoding(std::string_view name);

// Holds what the libraries keep between calls. One thread at a time.
class ImageCodec {
 public:
  ImageCodec();
  ~ImageCodec();
  ImageCodec(const ImageCodec&) = delete;
  ImageCodec& operator=(const ImageCodec&) = delete;

  // Decodes JPEG, PNG or PNM, told by the first bytes, into `image`, whose memory is reused. `channels` 1 or 3
  // converts; 0 keeps what is stored. Transparency is dropped. Throws Corrupt with the reason alone: the caller names
  // the image.
  void decode(std::string_view bytes, Image& image, int channels = 0);
  // `quality` is JPEG's 1 to 100; the others ignore it. Throws InvalidArgument.
  std::string encode(const Image& image, ImageEncoding encoding, int quality = 95);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Bilinear; averages where it shrinks. Throws Corrupt where that would take more than 2^28 pixels.
Image resize(const Image& image, int height, int width);
// The rectangle with its upper left corner at (top, left); throws InvalidArgument where it is not inside.
Image crop(const Image& image, int top, int left, int height, int width);

// MXNet's record of an image: a header of 24 bytes (flag u32, label f32, id u64, id2 u64), `flag` further labels f32,
// the encoded image. One label is stored with flag 0.
std::string pack_image_record(std::span<const float> labels, std::uint64_t id, std::string_view image);

// Points into the record.
class ImageRecord {
 public:
  // Throws Corrupt with the reason alone where the record is too short.
  explicit ImageRecord(std::string_view record);

  int label_count() const { return label_count_; }
  float label(int i) const;
  std::uint64_t id() const { return id_; }
  std::string_view image() const { return image_; }

 private:
  std::string_view labels_;
  std::string_view image_;
  std::uint64_t id_ = 0;
  int label_count_ = 0;
};

}  // namespace paceline

#pragma once
// Images in memory, their encodings, and MXNet's record of an image.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

// An image in memory.
struct Image {
  int height = 0;                    // in pixels
  int width = 0;                     // in pixels
  int channels = 0;                  // 1: grey; 3: red, green, blue
  std::vector<std::uint8_t> pixels;  // (height, width, channels), row-major
};

// A part of an image.
struct Rectangle {
  int top = 0;     // the first row
  int left = 0;    // the first column
  int height = 0;  // in pixels
  int width = 0;   // in pixels
  friend bool operator==(const Rectangle&, const Rectangle&) = default;
};

// Encodings of an image. kPng keeps every pixel, kJpeg does not. kRaw is binary PNM (P5 grey, P6 colour): the pixels
// behind a header of some 15 bytes. It costs no decoding, but MXNet's iterators refuse it.
enum class ImageEncoding { kRaw, kPng, kJpeg };

// What the header of an encoded image says.
struct ImageHeader {
  ImageEncoding encoding = ImageEncoding::kRaw;  // of the image
  int height = 0;                                // in pixels
  int width = 0;                                 // in pixels
  int channels = 0;                              // 1 or 3, as decode() would give it
};

// The encoding called "raw", "png", "jpg" or "jpeg". Throws InvalidArgument listing them for other names.
ImageEncoding parse_image_encoding(std::string_view name);
// "raw", "png" or "jpg".
const char* name_of(ImageEncoding encoding);

// Encodes and decodes images. It holds what the libraries keep between calls; one thread at a time may use it.
class ImageCodec {
 public:
  ImageCodec();
  ~ImageCodec();
  ImageCodec(const ImageCodec&) = delete;
  ImageCodec& operator=(const ImageCodec&) = delete;

  // Decodes JPEG, PNG or PNM into `image`, whose memory is reused. The first bytes tell which it is. `channels` 1 or 3
  // converts; 0 keeps what is stored. Transparency is dropped. Throws Corrupt with the reason alone, as the caller
  // knows the image's name.
  void decode(std::string_view bytes, Image& image, int channels = 0);
  // Reads the header alone. Throws Corrupt as decode() does.
  ImageHeader header(std::string_view bytes);
  // Decodes a part of the image whose header() was read last, and whose bytes must still be there: once for each
  // header(). These are the pixels of decode() and crop(). Of a JPEG, only what the part needs is decoded, so that
  // damage elsewhere may not be found. With `reduced` 2, 4 or 8, which is for JPEGs alone, it is a part of the image
  // that has so many times fewer rows and columns (rounded up), whose pixels are about the means of those they stand
  // for. Throws as decode() and crop() do.
  void decode_part(const Rectangle& part, Image& image, int channels = 0, int reduced = 1);
  // The same, but `image` may have more columns beside the part, which saves cutting them off: their pixels may differ
  // from decode()'s. Returns the part that `image` shows, of as many rows and columns as `image` has. It contains
  // `part`, which begins in `image` at row part.top - top and column part.left - left. The pixels are the caller's.
  Rectangle decode_around(const Rectangle& part, Image& image, int channels = 0, int reduced = 1);
  // The encoded image. `quality` is JPEG's, 1 to 100; other encodings ignore it. Throws InvalidArgument for an image or
  // a quality that cannot be.
  std::string encode(const Image& image, ImageEncoding encoding, int quality = 95);

 private:
  Rectangle decode_part(const Rectangle& part, Image& image, int channels, int reduced, bool exact);

  struct State;
  std::unique_ptr<State> state_;
};

// The image in another size: bilinear, with averages where it shrinks. Throws Corrupt where that would take more than
// 2^28 pixels.
Image resize(const Image& image, int height, int width);
// The part whose upper left corner is (top, left). Throws InvalidArgument where it is not inside.
Image crop(const Image& image, int top, int left, int height, int width);

// MXNet's record of an encoded image: a header of 24 bytes (flag u32, label f32, id u64, id2 u64), `flag` further
// labels f32, then the image. One label is stored with flag 0.
std::string pack_image_record(std::span<const float> labels, std::uint64_t id, std::string_view image);

// What is in a record of an image. It points into the record, which must outlive it.
class ImageRecord {
 public:
  // Throws Corrupt with the reason alone where the record is too short.
  explicit ImageRecord(std::string_view record);

  int label_count() const { return label_count_; }   // the number of labels
  float label(int i) const;                          // label i, from 0
  std::uint64_t id() const { return id_; }           // the number that the packer gave the image
  std::string_view image() const { return image_; }  // the encoded image

 private:
  std::string_view labels_;
  std::string_view image_;
  std::uint64_t id_ = 0;
  int label_count_ = 0;
};

}  // namespace paceline

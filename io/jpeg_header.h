#pragma once
// What the markers of a JPEG say of it.

#include <cstddef>
#include <optional>
#include <string_view>

namespace paceline::io {

struct JpegHeader {
  int height = 0;
  int width = 0;
  int components = 0;  // 1: grey, 3: YCbCr
};

// Of an image that every decoder understands alike: 8 bits, Huffman codes, one component or YCbCr, with its end. None:
// something else, or damaged; ImageCodec knows.
std::optional<JpegHeader> plain_jpeg(std::string_view bytes);

}  // namespace paceline::io

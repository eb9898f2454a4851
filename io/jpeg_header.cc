#include "jpeg_header.h"

#include <cstdint>

namespace paceline::io {
namespace {

constexpr int kStart = 0xd8, kEnd = 0xd9, kScan = 0xda, kJfif = 0xe0, kAdobe = 0xee;
constexpr int kBaseline = 0xc0, kProgressive = 0xc2;  // frames with Huffman codes, and extended ones between them
constexpr int kLastFrame = 0xcf;
constexpr bool is_table(int marker) { return marker == 0xc4 || marker == 0xc8 || marker == 0xcc; }

int byte_at(std::string_view bytes, std::size_t at) { return static_cast<std::uint8_t>(bytes[at]); }
int pair_at(std::string_view bytes, std::size_t at) { return byte_at(bytes, at) << 8 | byte_at(bytes, at + 1); }

// As libjpeg tells the colours of three components.
class Colours {
 public:
  void see(int marker, std::string_view body) {
    if (marker == kJfif && body.starts_with(std::string_view("JFIF", 5))) jfif_ = true;
    if (marker == kAdobe && body.starts_with("Adobe") && body.size() >= 12) transform_ = byte_at(body, 11);
  }
  bool are_luma_and_chroma(std::string_view frame) const {
    if (jfif_) return true;
    if (transform_ >= 0) return transform_ == 1;
    const bool rgb = frame[6] == 'R' && frame[9] == 'G' && frame[12] == 'B';
    return !rgb;
  }

 private:
  bool jfif_ = false;
  int transform_ = -1;
};

}  // namespace

std::optional<JpegHeader> plain_jpeg(std::string_view bytes) {
  const std::size_t size = bytes.size();
  if (size < 4 || pair_at(bytes, 0) != (0xff00 | kStart) || pair_at(bytes, size - 2) != (0xff00 | kEnd)) return {};
  Colours colours;
  std::string_view frame;
  for (std::size_t at = 2; at + 4 <= size;) {
    if (byte_at(bytes, at) != 0xff) return {};
    const int marker = byte_at(bytes, at + 1);
    if (marker == 0xff) {
      ++at;  // any marker may be filled up in front
      continue;
    }
    const std::size_t length = static_cast<std::size_t>(pair_at(bytes, at + 2));
    if (marker < kBaseline || marker == kStart || marker == kEnd || length < 2 || length > size - at - 2) return {};
    const std::string_view body = bytes.substr(at + 4, length - 2);
    at += 2 + length;
    if (marker == kScan) break;
    if (marker > kProgressive && marker <= kLastFrame && !is_table(marker)) return {};
    if (marker <= kProgressive) {
      if (!frame.empty() || body.size() < 6) return {};
      frame = body;
    }
    colours.see(marker, body);
  }
  if (frame.empty() || byte_at(frame, 0) != 8) return {};
  const JpegHeader header{pair_at(frame, 1), pair_at(frame, 3), byte_at(frame, 5)};
  if (header.height < 1 || header.width < 1 || frame.size() < 6 + 3 * static_cast<std::size_t>(header.components))
    return {};
  if (header.components == 1 || (header.components == 3 && colours.are_luma_and_chroma(frame))) return header;
  return {};
}

}  // namespace paceline::io

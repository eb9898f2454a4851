#pragma once
// Decodes JPEGs by libjpeg-turbo, whole or in part.

#include <paceline/image.h>

#include <memory>
#include <string_view>

namespace paceline::io {

// One thread at a time may use it. Functions throw Corrupt with the reason alone; the next open() begins anew.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Reads the header. `bytes` must stay until read() or the next open().
  ImageHeader open(std::string_view bytes);
  // Decodes `part` of what was opened, to `channels` (1 or 3; four inks become 3 always). `reduced` 1, 2, 4 or 8: of
  // the image that is so many times smaller. Once for each open(). Returns what `image` shows: the part, or unless
  // `exact`, more columns, as libjpeg decodes whole blocks. Pixels in those columns may differ from the image's.
  Rectangle read(const Rectangle& part, int channels, int reduced, bool exact, Image& image);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace paceline::io

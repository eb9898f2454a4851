#include <paceline/image.h>

#include "fuzz.h"
#include "jpeg_header.h"

namespace paceline::fuzz {
namespace {

// A byte of a file holds at most 8 * 1032 pixels. Of each pixel there are four bytes, a copy of three, and coefficients
// of libjpeg.
constexpr std::size_t kMostBytesOfAByte = 8 * 1032 * 16;
constexpr std::size_t kSmall = 64 * 64 * 3;  // what is encoded again: the libraries' time is not the subject

bool same(const Image& a, const Image& b) {
  return a.height == b.height && a.width == b.width && a.channels == b.channels && a.pixels == b.pixels;
}

}  // namespace

// The channels that are asked for, in one byte; then the image.
void image(std::string_view input) {
  constexpr int kChannels[] = {0, 1, 3};
  Cutter cut(input);
  const int channels = kChannels[cut.number<std::uint8_t>() % 3];
  const std::string_view bytes = cut.rest();
  ImageCodec codec;
  const auto header = io::plain_jpeg(bytes);
  const auto read = within(kMostBytesOfAByte * (bytes.size() + 16) + 65536, [&] {
    return parsed<Corrupt>([&] {
      Image decoded;
      codec.decode(bytes, decoded, channels);
      return decoded;
    });
  });
  if (!read) return;
  expect(read->height > 0 && read->width > 0 && (read->channels == 1 || read->channels == 3) &&
             read->pixels.size() == static_cast<std::size_t>(read->height) * static_cast<std::size_t>(read->width) *
                                        static_cast<std::size_t>(read->channels),
         "an image whose size and pixels do not fit");
  expect(channels == 0 || read->channels == channels, "another number of channels than asked for");
  if (header)
    expect(header->height == read->height && header->width == read->width, "the header says ", header->width, " x ",
           header->height);
  const Rectangle middle{read->height / 3, read->width / 3, (read->height + 1) / 2, (read->width + 1) / 2};
  Image part;
  codec.header(bytes);
  codec.decode_part(middle, part, channels);
  expect(same(part, crop(*read, middle.top, middle.left, middle.height, middle.width)),
         "a part differs from that of the whole");
  if (read->pixels.size() > kSmall) return;
  for (const ImageEncoding encoding : {ImageEncoding::kRaw, ImageEncoding::kPng}) {
    Image again;
    codec.decode(codec.encode(*read, encoding), again);
    expect(same(again, *read), "the image comes back as another");
  }
}

}  // namespace paceline::fuzz

// Parts of images are the same pixels as whole ones that are decoded and cropped.
#include <gmock/gmock.h>
#include <paceline/error.h>
#include <paceline/image.h>
#include <turbojpeg.h>

#include <cmath>
#include <functional>

#include "fixtures.h"
#include "image_resize.h"

namespace paceline::test {
namespace {

using testing::HasSubstr;

// Smooth with grain, so that every subsampling and both ends of the range occur.
Image picture(int height, int width, int channels, std::mt19937_64& random) {
  Image image{height, width, channels, {}};
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c) {
        const double wave = 128 + 120 * std::sin(0.13 * x + c) * std::cos(0.09 * y - c);
        image.pixels.push_back(
            static_cast<std::uint8_t>(std::clamp(wave + static_cast<double>(random() % 41) - 20, 0.0, 255.0)));
      }
  return image;
}

std::string jpeg_of(const Image& image, int subsampling, int flags, int quality) {
  const tjhandle compressor = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  EXPECT_EQ(tjCompress2(compressor, image.pixels.data(), image.width, 0, image.height,
                        image.channels == 1 ? TJPF_GRAY : TJPF_RGB, &bytes, &size, subsampling, quality, flags),
            0);
  std::string jpeg(reinterpret_cast<const char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(compressor);
  return jpeg;
}

int below(std::mt19937_64& random, int bound) { return static_cast<int>(random() % static_cast<std::uint64_t>(bound)); }

Rectangle part_of(const Image& image, std::mt19937_64& random) {
  Rectangle part;
  part.height = 1 + below(random, image.height);
  part.width = 1 + below(random, image.width);
  part.top = below(random, image.height - part.height + 1);
  part.left = below(random, image.width - part.width + 1);
  return part;
}

TEST(ImageParts, OfJpegsEqualCropsOfTheWhole) {
  std::mt19937_64 random(test_seed());
  ImageCodec codec;
  Image whole, part, around;
  for (const int subsampling : {TJSAMP_444, TJSAMP_422, TJSAMP_420, TJSAMP_440, TJSAMP_411, TJSAMP_GRAY}) {
    for (const int flags : {0, TJFLAG_PROGRESSIVE}) {
      for (int round = 0; round < 60; ++round) {
        const Image image = picture(1 + below(random, 150), 1 + below(random, 150), 3, random);
        const std::string jpeg = jpeg_of(image, subsampling, flags, 60 + below(random, 40));
        const int channels = below(random, 2) ? 3 : 1;
        codec.decode(jpeg, whole, channels);
        for (int i = 0; i < 3; ++i) {
          const Rectangle at = part_of(image, random);
          codec.header(jpeg);
          codec.decode_part(at, part, channels);
          ASSERT_EQ(part.pixels, crop(whole, at.top, at.left, at.height, at.width).pixels)
              << "subsampling " << subsampling << ", flags " << flags << ", " << image.width << " x " << image.height
              << " to " << channels << " channels: " << at.width << " x " << at.height << " at (" << at.left << ", "
              << at.top << ")";
          codec.header(jpeg);
          const Rectangle shown = codec.decode_around(at, around, channels);
          ASSERT_EQ(Rectangle({shown.top, shown.left, around.height, around.width}), shown);
          ASSERT_EQ(crop(around, at.top - shown.top, at.left - shown.left, at.height, at.width).pixels, part.pixels);
        }
      }
    }
  }
}

TEST(ImageParts, OfReducedJpegsEqualCropsOfTheReducedWhole) {
  std::mt19937_64 random(test_seed());
  ImageCodec codec;
  Image whole, part;
  for (const int subsampling : {TJSAMP_444, TJSAMP_422, TJSAMP_420, TJSAMP_440, TJSAMP_GRAY}) {
    for (int round = 0; round < 60; ++round) {
      const Image image = picture(1 + below(random, 200), 1 + below(random, 200), 3, random);
      const std::string jpeg = jpeg_of(image, subsampling, 0, 90);
      const int reduced = 2 << below(random, 3);
      codec.header(jpeg);
      codec.decode_part({0, 0, (image.height + reduced - 1) / reduced, (image.width + reduced - 1) / reduced}, whole, 3,
                        reduced);
      const Rectangle at = part_of(whole, random);
      codec.header(jpeg);
      codec.decode_part(at, part, 3, reduced);
      ASSERT_EQ(part.pixels, crop(whole, at.top, at.left, at.height, at.width).pixels)
          << "subsampling " << subsampling << ", 1/" << reduced << " of " << image.width << " x " << image.height
          << ": " << at.width << " x " << at.height << " at (" << at.left << ", " << at.top << ")";
    }
  }
  const std::string png = codec.encode(picture(8, 8, 3, random), ImageEncoding::kPng);
  codec.header(png);
  EXPECT_THAT(error_of<InvalidArgument>([&] {
                codec.decode_part({0, 0, 4, 4}, part, 3, 2);
              }),
              HasSubstr("JPEGs alone are decoded smaller"));
}

TEST(ImageParts, OfPngAndRawEqualCropsOfTheWhole) {
  std::mt19937_64 random(test_seed());
  ImageCodec codec;
  Image part;
  for (const ImageEncoding encoding : {ImageEncoding::kPng, ImageEncoding::kRaw}) {
    for (int round = 0; round < 40; ++round) {
      const Image image = picture(1 + below(random, 40), 1 + below(random, 40), round % 2 ? 3 : 1, random);
      const std::string bytes = codec.encode(image, encoding);
      const Rectangle at = part_of(image, random);
      codec.header(bytes);
      codec.decode_part(at, part);
      EXPECT_EQ(part.pixels, crop(image, at.top, at.left, at.height, at.width).pixels);
    }
  }
}

TEST(ImageParts, AreInsideTheImage) {
  std::mt19937_64 random(1);
  ImageCodec codec;
  const std::string bytes = codec.encode(picture(10, 20, 3, random), ImageEncoding::kJpeg);
  codec.header(bytes);
  Image part;
  EXPECT_THAT(error_of<InvalidArgument>([&] {
                codec.decode_part({0, 0, 11, 20}, part);
              }),
              HasSubstr("a crop of 20 x 11 at (0, 0) is not inside an image of 20 x 10"));
}

// A JPEG that lost its end is damaged whatever part of it is wanted.
TEST(ImageParts, OfATruncatedJpegAreRefused) {
  std::mt19937_64 random(1);
  ImageCodec codec;
  const std::string bytes = codec.encode(picture(200, 100, 3, random), ImageEncoding::kJpeg);
  const std::string cut = bytes.substr(0, bytes.size() * 3 / 4);
  codec.header(cut);
  Image part;
  EXPECT_THAT(error_of<Corrupt>([&] { codec.decode_part({0, 0, 10, 100}, part); }), HasSubstr("libjpeg"));
}

TEST(ImageParts, ResizedEqualCropsOfTheResized) {
  std::mt19937_64 random(test_seed());
  io::Resizer resizer;
  for (int round = 0; round < 60; ++round) {
    const Image image = picture(1 + below(random, 60), 1 + below(random, 60), round % 2 ? 3 : 1, random);
    const Image whole = resize(image, 1 + below(random, 60), 1 + below(random, 60));
    const Rectangle at = part_of(whole, random);
    const auto down = io::make_taps(image.height, whole.height, at.top, at.height);
    const auto across = io::make_taps(image.width, whole.width, at.left, at.width);
    const int top = down.front().first, left = across.front().first;
    Image part;
    resizer(crop(image, top, left, down.back().end() - top, across.back().end() - left), top, left, down, across, part);
    ASSERT_EQ(part.pixels, crop(whole, at.top, at.left, at.height, at.width).pixels) << "round " << round;
  }
}

// Each product and each sum is rounded to float32 by itself: the compiler may not join them.
float sum_of(const io::Taps& taps, float start, const std::function<float(int)>& value) {
  volatile float sum = start;
  for (int i = taps.first; i < taps.end(); ++i) {
    const volatile float product = taps.weights[static_cast<std::size_t>(i - taps.first)] * value(i);
    sum = sum + product;
  }
  return sum;
}

// Rows first, then columns: the numbers of every processor and device.
TEST(ImageParts, ResizedAreSumsInAnOrderThatIsKnown) {
  std::mt19937_64 random(test_seed());
  io::Resizer resizer;
  Image result;
  for (int round = 0; round < 300; ++round) {
    const int channels = round % 2 ? 3 : 1;
    const Image image = picture(1 + below(random, 70), 1 + below(random, 70), channels, random);
    const io::TapTable down = io::make_taps(image.height, 1 + below(random, 40));
    const io::TapTable across = io::make_taps(image.width, 1 + below(random, 140));
    resizer(image, 0, 0, down, across, result);
    ASSERT_EQ(result.pixels.size(), down.size() * across.size() * static_cast<std::size_t>(channels));
    auto pixel = result.pixels.begin();
    for (std::size_t y = 0; y < down.size(); ++y) {
      std::vector<float> sums;
      for (int x = 0; x < image.width * channels; ++x)
        sums.push_back(sum_of(down[y], 0, [&](int row) {
          return static_cast<float>(image.pixels[static_cast<std::size_t>(row * image.width * channels + x)]);
        }));
      for (std::size_t x = 0; x < across.size(); ++x) {
        for (int c = 0; c < channels; ++c) {
          const float sum = sum_of(across[x], 0.5f,
                                   [&](int column) { return sums[static_cast<std::size_t>(column * channels + c)]; });
          ASSERT_EQ(*pixel++, static_cast<int>(std::min(sum, 255.0f)))
              << image.width << " x " << image.height << " to " << across.size() << " x " << down.size() << ", "
              << channels << " channels: pixel " << x << ", " << y;
        }
      }
    }
  }
}

}  // namespace
}  // namespace paceline::test

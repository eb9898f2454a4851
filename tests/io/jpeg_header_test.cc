#include "jpeg_header.h"

#include <gtest/gtest.h>
#include <paceline/image.h>
#include <turbojpeg.h>

#include "fixtures.h"

namespace paceline::test {
namespace {

std::string jpeg(int channels) {
  Image image{20, 30, channels, std::vector<std::uint8_t>(static_cast<std::size_t>(600 * channels), 90)};
  return ImageCodec().encode(image, ImageEncoding::kJpeg);
}

std::string with_marker(const std::string& jpeg, const std::string& marker) {
  return jpeg.substr(0, 2) + marker + jpeg.substr(2);
}

TEST(JpegHeader, ReadsSizeAndColours) {
  for (const int channels : {1, 3}) {
    const auto header = io::plain_jpeg(jpeg(channels));
    ASSERT_TRUE(header);
    EXPECT_EQ(header->height, 20);
    EXPECT_EQ(header->width, 30);
    EXPECT_EQ(header->components, channels);
  }
}

TEST(JpegHeader, StepsOverWhatItDoesNotKnow) {
  using namespace std::string_literals;
  EXPECT_TRUE(io::plain_jpeg(with_marker(jpeg(3),
                                         "\xff\xe1\x00\x06"
                                         "Exif"s)));
  EXPECT_TRUE(io::plain_jpeg(with_marker(jpeg(3),
                                         "\xff\xff\xff\xfe\x00\x05"
                                         "abc"s)));
}

TEST(JpegHeader, LeavesWhatDecodersDisagreeAbout) {
  using namespace std::string_literals;
  // Adobe's marker says RGB; without JFIF's it holds.
  std::string rgb = jpeg(3);
  rgb.erase(2, 18);
  EXPECT_TRUE(io::plain_jpeg(rgb));
  EXPECT_FALSE(io::plain_jpeg(with_marker(rgb,
                                          "\xff\xee\x00\x0e"
                                          "Adobe\0\x64\0\0\0\0\0"s)));

  const tjhandle compressor = tjInitCompress();
  const std::vector<unsigned char> inks(16 * 16 * 4, 40);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  ASSERT_EQ(tjCompress2(compressor, inks.data(), 16, 0, 16, TJPF_CMYK, &bytes, &size, TJSAMP_444, 90, 0), 0);
  EXPECT_FALSE(io::plain_jpeg({reinterpret_cast<const char*>(bytes), size}));
  tjFree(bytes);
  tjDestroy(compressor);

  std::string arithmetic = jpeg(3);
  arithmetic[arithmetic.find("\xff\xc0") + 1] = '\xc9';
  EXPECT_FALSE(io::plain_jpeg(arithmetic));
  std::string deep = jpeg(3);
  deep[deep.find("\xff\xc0") + 4] = 12;
  EXPECT_FALSE(io::plain_jpeg(deep));
}

TEST(JpegHeader, RefusesWhatIsCutOffOrNoJpeg) {
  const std::string whole = jpeg(1);
  for (std::size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(io::plain_jpeg(whole.substr(0, size))) << size;
  EXPECT_FALSE(io::plain_jpeg(whole + '\0'));
  EXPECT_FALSE(io::plain_jpeg("P5 1 1 255 A"));
  EXPECT_FALSE(io::plain_jpeg(ImageCodec().encode({1, 1, 1, {7}}, ImageEncoding::kPng)));
}

// No byte that is changed, and no end, makes it read where nothing is (a sanitizer sees that).
TEST(JpegHeader, BearsDamage) {
  std::mt19937 random(static_cast<unsigned>(test_seed()));
  const std::string whole = jpeg(3);
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = whole.substr(0, random() % (whole.size() + 1));
    for (int k = 0; k < 3 && !damaged.empty(); ++k) damaged[random() % damaged.size()] = static_cast<char>(random());
    if (damaged.size() >= 4 && i % 2 == 0) damaged.replace(damaged.size() - 2, 2, "\xff\xd9");
    const auto header = io::plain_jpeg(damaged);
    EXPECT_TRUE(!header || (header->height > 0 && header->width > 0));
  }
}

}  // namespace
}  // namespace paceline::test

#include <paceline/image.h>

#include <gmock/gmock.h>
#include <paceline/error.h>
#include <paceline/idx_file.h>
#include <paceline/image_list.h>
#include <support/paths.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "fixtures.h"

namespace paceline::test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

Image gradient(int height, int width, int channels) {
  Image image{height, width, channels, {}};
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) image.pixels.push_back(static_cast<std::uint8_t>(2 * y + x + 60 * c));
    }
  }
  return image;
}

Image decode(const std::string& bytes, int channels = 0) {
  ImageCodec codec;
  Image image;
  codec.decode(bytes, image, channels);
  return image;
}

std::string encode(const Image& image, ImageEncoding encoding, int quality = 95) {
  return ImageCodec().encode(image, encoding, quality);
}

TEST(ImageCodec, LosesNothingAsPngAndRaw) {
  for (const int channels : {1, 3}) {
    const Image image = gradient(19, 23, channels);
    for (const ImageEncoding encoding : {ImageEncoding::kRaw, ImageEncoding::kPng}) {
      const Image back = decode(encode(image, encoding));
      EXPECT_EQ(back.height, 19);
      EXPECT_EQ(back.width, 23);
      EXPECT_EQ(back.channels, channels);
      EXPECT_EQ(back.pixels, image.pixels);
    }
  }
}

TEST(ImageCodec, LosesLittleAsJpeg) {
  for (const int channels : {1, 3}) {
    const Image image = gradient(32, 40, channels);
    const Image back = decode(encode(image, ImageEncoding::kJpeg, 100));
    ASSERT_EQ(back.pixels.size(), image.pixels.size());
    int worst = 0;
    for (std::size_t i = 0; i < image.pixels.size(); ++i)
      worst = std::max(worst, std::abs(back.pixels[i] - image.pixels[i]));
    EXPECT_LE(worst, 6);
  }
  const Image image = gradient(64, 64, 3);
  EXPECT_LT(encode(image, ImageEncoding::kJpeg, 20).size(), encode(image, ImageEncoding::kJpeg, 95).size());
  EXPECT_THAT(error_of<InvalidArgument>([&] { encode(image, ImageEncoding::kJpeg, 101); }),
              HasSubstr("1 to 100, not 101"));
}

TEST(ImageCodec, ADamagedJpegSpoilsNoneAfterIt) {
  const std::string whole = encode(gradient(24, 32, 3), ImageEncoding::kJpeg);
  const Image expected = decode(whole);
  ImageCodec codec;
  Image image;
  for (std::size_t size = 3; size < whole.size(); size += 5) {
    error_of<Corrupt>([&] { codec.decode(whole.substr(0, size), image); });
    ASSERT_NO_THROW(codec.decode(whole, image)) << "after one that was cut off at " << size;
    EXPECT_EQ(image.pixels, expected.pixels);
  }
}

TEST(ImageCodec, RawImagesArePnm) {
  EXPECT_EQ(encode({1, 2, 1, {65, 66}}, ImageEncoding::kRaw), "P5\n2 1\n255\nAB");
  EXPECT_EQ(encode({1, 1, 3, {65, 66, 67}}, ImageEncoding::kRaw), "P6\n1 1\n255\nABC");
  EXPECT_THAT(decode("P5 # comment\n# another\n 2\t1 255 AB").pixels, ElementsAre(65, 66));
}

TEST(ImageCodec, ConvertsChannels) {
  const std::string colour = encode({1, 2, 3, {255, 255, 255, 255, 0, 0}}, ImageEncoding::kPng);
  EXPECT_THAT(decode(colour, 1).pixels, ElementsAre(255, 76));  // 0.299 * 255
  EXPECT_THAT(decode(encode({1, 2, 1, {7, 9}}, ImageEncoding::kRaw), 3).pixels, ElementsAre(7, 7, 7, 9, 9, 9));
  EXPECT_EQ(decode(encode(gradient(8, 8, 3), ImageEncoding::kJpeg), 1).channels, 1);
  EXPECT_EQ(decode(encode(gradient(8, 8, 1), ImageEncoding::kJpeg), 3).channels, 3);
}

TEST(ImageCodec, SaysWhyBytesAreNoImage) {
  const auto reason = [](const std::string& bytes) { return error_of<Corrupt>([&] { decode(bytes); }); };
  EXPECT_EQ(reason(""), "the image is empty");
  EXPECT_EQ(reason("hello"), "the image is neither JPEG nor PNG nor PNM");
  EXPECT_EQ(reason("P5\n2 2\n255\nabc"), "a PNM image of 2 x 2 holds 3 bytes of pixels");
  EXPECT_EQ(reason("P5\n99999999 99999999\n255\nabc"), "a PNM image of 99999999 x 99999999 holds 3 bytes of pixels");
  EXPECT_THAT(reason("P5\n2 2\n65535\nabcdefgh"), HasSubstr("values up to 65535"));
  EXPECT_THAT(reason("P5\n2 -2\n255\nabcd"), HasSubstr("header is damaged"));
  const std::string png = encode(gradient(8, 8, 3), ImageEncoding::kPng);
  EXPECT_THAT(reason(png.substr(0, png.size() / 2)), HasSubstr("libpng"));
  const std::string jpeg = encode(gradient(64, 64, 3), ImageEncoding::kJpeg);
  EXPECT_THAT(reason(jpeg.substr(0, jpeg.size() / 2)), HasSubstr("libjpeg"));
  EXPECT_THAT(reason(jpeg.substr(0, 20)), HasSubstr("libjpeg"));
}

TEST(ImageCodec, SurvivesMutatedImages) {
  std::mt19937_64 random(test_seed());
  ImageCodec codec;
  Image image;
  int decoded = 0;
  for (const ImageEncoding encoding : {ImageEncoding::kRaw, ImageEncoding::kPng, ImageEncoding::kJpeg}) {
    const std::string original = encode(gradient(12, 13, 3), encoding);
    for (int round = 0; round < 1500; ++round) {
      std::string bytes = original;
      for (std::size_t n = 1 + random() % 4; n > 0; --n) bytes[random() % bytes.size()] = static_cast<char>(random());
      if (random() % 4 == 0) bytes.resize(random() % bytes.size());
      try {
        codec.decode(bytes, image, static_cast<int>(random() % 2 * 3));
        EXPECT_EQ(image.pixels.size(), static_cast<std::size_t>(image.height) * static_cast<std::size_t>(image.width) *
                                           static_cast<std::size_t>(image.channels));
        ++decoded;
      } catch (const Corrupt&) {  // NOLINT(bugprone-empty-catch): to be refused is as good as to be decoded
      }
    }
  }
  EXPECT_GT(decoded, 0);
}

TEST(Resize, RefusesWhatNoMemoryHolds) {
  const Image column{60000, 1, 1, std::vector<std::uint8_t>(60000)};
  EXPECT_THROW(resize(column, 256 * 60000, 256), Corrupt);
  EXPECT_THROW(resize(column, 1, 1 << 20), Corrupt);
  EXPECT_EQ(resize(column, 2, 3).pixels.size(), 6);
}

// A number before it is rounded to a pixel: a triangle around the centre of the output pixel, two input pixels wide, or
// as many more as the image shrinks. Pixels are squares, so the centre of the first is half a pixel from the edge.
double resized(const Image& image, int height, int width, int y, int x, int channel) {
  const auto weight = [](int from, int to, int output, int input) {
    const double step = static_cast<double>(from) / to, centre = (output + 0.5) * step - 0.5;
    return std::max(0.0, 1 - std::abs(input - centre) / std::max(step, 1.0));
  };
  double sum = 0, total = 0;
  for (int i = 0; i < image.height; ++i) {
    for (int j = 0; j < image.width; ++j) {
      const double both = weight(image.height, height, y, i) * weight(image.width, width, x, j);
      sum += both * image.pixels[static_cast<std::size_t>((i * image.width + j) * image.channels + channel)];
      total += both;
    }
  }
  return sum / total;
}

Image noise(int height, int width, int channels) {
  std::mt19937 random(7);
  Image image{height, width, channels, {}};
  for (int i = 0; i < height * width * channels; ++i) image.pixels.push_back(static_cast<std::uint8_t>(random() % 256));
  return image;
}

// The nearest pixel; of a number within a thousandth of a half, either neighbour, for float32 carries no further.
TEST(Resize, IsBilinearBetweenCentresOfPixels) {
  const std::array<int, 2> shapes[][2] = {{{7, 5}, {10, 13}}, {{13, 11}, {5, 7}}, {{5, 14}, {9, 3}}, {{3, 1}, {1, 4}}};
  for (const auto& [from, to] : shapes) {
    for (const int channels : {1, 3}) {
      const Image image = noise(from[0], from[1], channels), result = resize(image, to[0], to[1]);
      SCOPED_TRACE(str(from[0], " x ", from[1], " to ", to[0], " x ", to[1]));
      ASSERT_EQ(result.pixels.size(), static_cast<std::size_t>(to[0] * to[1] * channels));
      auto pixel = result.pixels.begin();
      for (int y = 0; y < to[0]; ++y) {
        for (int x = 0; x < to[1]; ++x)
          for (int c = 0; c < channels; ++c)
            EXPECT_NEAR(*pixel++, resized(image, to[0], to[1], y, x, c), 0.501) << y << " " << x << " " << c;
      }
    }
  }
}

TEST(Resize, HasKnownValues) {
  EXPECT_THAT(resize({1, 2, 1, {0, 100}}, 1, 4).pixels, ElementsAre(0, 25, 75, 100));
  EXPECT_THAT(resize({1, 3, 1, {0, 90, 180}}, 1, 5).pixels, ElementsAre(0, 36, 90, 144, 180));
  EXPECT_THAT(resize({2, 1, 1, {0, 100}}, 4, 1).pixels, ElementsAre(0, 25, 75, 100));
  EXPECT_THAT(resize({1, 6, 1, {0, 0, 0, 240, 0, 0}}, 1, 2).pixels, ElementsAre(30, 60));  // an eighth, a quarter
}

TEST(Resize, KeepsConstantsAndAveragesWhenShrinking) {
  Image image{6, 8, 1, std::vector<std::uint8_t>(48, 77)};
  EXPECT_THAT(resize(image, 11, 5).pixels, Each(77));
  for (std::size_t i = 0; i < 48; ++i) image.pixels[i] = i % 2 ? 200 : 100;
  const Image half = resize(image, 3, 4);
  EXPECT_EQ(half.height, 3);
  EXPECT_EQ(half.width, 4);
  // At the edges one pixel of the four is missing.
  EXPECT_THAT(half.pixels, ElementsAre(143, 150, 150, 157, 143, 150, 150, 157, 143, 150, 150, 157));
  EXPECT_EQ(resize(gradient(9, 7, 3), 9, 7).pixels, gradient(9, 7, 3).pixels);
}

TEST(Crop, CutsARectangleOut) {
  const Image image = gradient(5, 6, 3);
  const Image part = crop(image, 1, 2, 3, 2);
  EXPECT_EQ(part.height, 3);
  EXPECT_EQ(part.width, 2);
  EXPECT_EQ(part.pixels[0], 2 * 1 + 2);
  EXPECT_EQ(part.pixels.back(), 2 * 3 + 3 + 120);
  EXPECT_THAT(error_of<InvalidArgument>([&] { crop(image, 3, 0, 3, 2); }), HasSubstr("not inside"));
}

TEST(ImageRecord, HasMxnetsBytes) {
  const float four = 4;
  const std::string record = pack_image_record({&four, 1}, 2574, "image");
  EXPECT_EQ(record, std::string("\0\0\0\0\0\0\x80\x40\x0e\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\0image", 29));
  const std::vector<float> labels = {1, 2, 3};
  const std::string wide = pack_image_record(labels, 7, "i");
  EXPECT_EQ(wide, std::string("\x03\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
                              "\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40i",
                              37));
  const ImageRecord parsed(wide);
  EXPECT_EQ(parsed.label_count(), 3);
  EXPECT_EQ(parsed.label(2), 3.0f);
  EXPECT_EQ(parsed.id(), 7u);
  EXPECT_EQ(parsed.image(), "i");
  EXPECT_EQ(ImageRecord(record).label(0), 4.0f);
  EXPECT_EQ(ImageRecord(record).image(), "image");
}

TEST(ImageRecord, RefusesShortRecords) {
  EXPECT_THAT(error_of<Corrupt>([] { ImageRecord record("short"); }), HasSubstr("at least 24 bytes, this one 5"));
  const std::vector<float> labels = {1, 2, 3};
  std::string record = pack_image_record(labels, 7, "");
  record.pop_back();
  EXPECT_THAT(error_of<Corrupt>([&] { ImageRecord view(record); }), HasSubstr("claims 3 labels"));
}

TEST(IdxFile, RoundTripsPlainAndCompressed) {
  TemporaryFolder folder;
  IdxFile file{{2, 3, 2}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255}};
  for (const char* name : {"a-ubyte", "a-ubyte.gz"}) {
    write_idx(folder / name, file);
    const IdxFile back = read_idx(folder / name);
    EXPECT_EQ(back.shape, file.shape);
    EXPECT_EQ(back.values, file.values);
  }
  EXPECT_EQ(read_all(folder / "a-ubyte").substr(0, 16), std::string("\0\0\x08\x03\0\0\0\x02\0\0\0\x03\0\0\0\x02", 16));
  EXPECT_EQ(read_all(folder / "a-ubyte.gz").substr(0, 2), "\x1f\x8b");
}

// More than one block of values, and values that hardly shrink.
TEST(IdxFile, LargeOnesRoundTrip) {
  TemporaryFolder folder;
  IdxFile file{{3, 1 << 20}, std::vector<std::uint8_t>(3 << 20)};
  std::minstd_rand random;
  for (std::uint8_t& value : file.values) value = static_cast<std::uint8_t>(random() >> 8);
  for (const char* name : {"a", "a.gz"}) {
    write_idx(folder / name, file);
    EXPECT_EQ(read_idx(folder / name).values, file.values) << name;
  }
  EXPECT_EQ(folder.files().size(), 2u);
  EXPECT_THAT(error_of<IoError>([&] { write_idx(folder / "no/a", file); }), HasSubstr("cannot create"));
}

TEST(IdxFile, RefusesToWriteAnotherNumberOfValues) {
  TemporaryFolder folder;
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{2, 2}, {-1, -3}, {3, std::int64_t{1} << 32}, {std::int64_t{1} << 62, 4}}) {
    EXPECT_THAT(error_of<InvalidArgument>([&] { write_idx(folder / "a", {shape, {1, 2, 3}}); }), HasSubstr("3 values"));
  }
  EXPECT_TRUE(folder.files().empty());
}

TEST(IdxFile, NamesDamage) {
  TemporaryFolder folder;
  const std::string path = folder / "a";
  const auto load = [&] { read_idx(path); };
  EXPECT_THAT(error_of<IoError>(load), HasSubstr("No such file"));
  write_idx(path, {{4}, {1, 2, 3, 4}});
  const std::string bytes = read_all(path);
  write_all(path, bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(error_of<Corrupt>(load), HasSubstr("truncated"));
  write_all(path, bytes + "x");
  EXPECT_THAT(error_of<Corrupt>(load), HasSubstr("bytes follow the 4 values"));
  write_all(path, "\x89PNG");
  EXPECT_THAT(error_of<Corrupt>(load), HasSubstr("no IDX file"));
  write_all(path, std::string("\0\0\x08\x03", 4) + std::string(12, '\xff'));
  EXPECT_THAT(error_of<Corrupt>(load), HasSubstr("impossible size"));
  write_idx(path + ".gz", {{4000}, std::vector<std::uint8_t>(4000, 9)});
  const std::string packed = read_all(path + ".gz");
  write_all(path, packed.substr(0, packed.size() / 2));
  EXPECT_THAT(error_of<Corrupt>(load), HasSubstr("truncated or damaged"));
}

TEST(IdxFile, ReadsMnist) {
  const std::string folder = data_dir("mnist");
  if (folder.empty()) GTEST_SKIP() << "MNIST is not here";
  const IdxFile images = read_idx(folder + "/t10k-images-idx3-ubyte.gz");
  EXPECT_THAT(images.shape, ElementsAre(10000, 28, 28));
  const IdxFile labels = read_idx(folder + "/t10k-labels-idx1-ubyte.gz");
  EXPECT_THAT(std::vector<int>(labels.values.begin(), labels.values.begin() + 5), ElementsAre(7, 2, 1, 0, 4));
}

TEST(ImageList, NumbersClassesOfFoldersInSortedOrder) {
  TemporaryFolder folder;
  for (const char* name : {"dog/2.png", "cat/b.JPEG", "cat/a.jpg", "cat/notes.txt", "ape/deep/x.jpg", "dog/._2.png",
                           ".ipynb_checkpoints/a.png", "__MACOSX/dog/2.png"}) {
    std::filesystem::create_directories(std::filesystem::path(folder / name).parent_path());
    write_all(folder / name, "x");
  }
  const ImageList list = list_image_folder(folder / "");
  EXPECT_THAT(list.classes, ElementsAre("ape/deep", "cat", "dog"));
  ASSERT_EQ(list.entries.size(), 4u);
  EXPECT_EQ(list.entries[1].path, folder / "cat/a.jpg");
  EXPECT_EQ(list.entries[1].id, 1);
  EXPECT_THAT(list.entries[3].labels, ElementsAre(2));
  write_all(folder / "stray.png", "x");
  EXPECT_THAT(error_of<InvalidArgument>([&] { list_image_folder(folder / ""); }), HasSubstr("for instance stray.png"));
}

TEST(ImageList, RefusesEmptyFolders) {
  TemporaryFolder folder;
  EXPECT_THAT(error_of<InvalidArgument>([&] { list_image_folder(folder / ""); }), HasSubstr("holds no images"));
  EXPECT_THAT(error_of<IoError>([&] { list_image_folder(folder / "absent"); }), HasSubstr("absent"));
}

TEST(ImageList, ReadsMxnetsLists) {
  TemporaryFolder folder;
  write_all(folder / "a.lst", "5\t3.000000\tcat/a b.jpg\n 6 \t 4 \tdog.png\r\n\n");
  const ImageList list = read_image_list(folder / "a.lst", "/root");
  ASSERT_EQ(list.entries.size(), 2u);
  EXPECT_EQ(list.entries[0].id, 5);
  EXPECT_THAT(list.entries[0].labels, ElementsAre(3));
  EXPECT_EQ(list.entries[0].path, "/root/cat/a b.jpg");
  EXPECT_EQ(list.entries[1].path, "/root/dog.png");
  write_all(folder / "b.lst", "1\t0.5\t-2\tx.jpg\n");
  EXPECT_THAT(read_image_list(folder / "b.lst", "").entries[0].labels, ElementsAre(0.5f, -2));
}

TEST(ImageList, TakesListsForDetection) {
  TemporaryFolder folder;
  write_all(folder / "a.lst", "1\t2\t3\t0\t0\t1\t1\t0\t1\tx\n2\t2\t3\t0\t0\t1\ty\n3\t2\t3\tz\n");
  const ImageList list = read_image_list(folder / "a.lst", "");
  EXPECT_THAT(list.entries[0].labels, ElementsAre(2, 3, 0, 0, 1, 1, 0, 1));
  EXPECT_THAT(list.entries[1].labels, ElementsAre(2, 3, 0, 0, 1));
  EXPECT_THAT(list.entries[2].labels, ElementsAre(2, 3));
}

TEST(ImageList, NamesWhatIsWrongWithFolders) {
  TemporaryFolder folder;
  std::filesystem::create_directories(folder / "cat/old");
  write_all(folder / "cat/a.jpg", "x");
  const auto list = [&] { list_image_folder(folder / ""); };
  std::filesystem::create_directory_symlink("..", folder / "cat/old/up");
  EXPECT_THAT(error_of<InvalidArgument>(list),
              HasSubstr("the link " + folder / "cat/old/up" + " leads back to the folder " + folder / "cat, which"));
  std::filesystem::remove(folder / "cat/old/up");
  std::filesystem::create_directory(folder / "d\xff");
  write_all(folder / "d\xff/a.jpg", "x");
  EXPECT_THAT(error_of<InvalidArgument>(list), HasSubstr("the name of the folder 'd\\xff' in"));
  std::filesystem::remove_all(folder / "d\xff");
  std::filesystem::create_symlink("nowhere", folder / "cat/b.jpg");
  EXPECT_EQ(list_image_folder(folder / "").entries.size(), 2u);
  if (geteuid() == 0) return;  // reads every folder
  std::filesystem::permissions(folder / "cat/old", std::filesystem::perms::none);
  EXPECT_THAT(error_of<IoError>(list), HasSubstr("cannot read the folder " + folder / "cat/old on host"));
  std::filesystem::permissions(folder / "cat/old", std::filesystem::perms::owner_all);
}

TEST(ImageList, NamesDamagedLines) {
  TemporaryFolder folder;
  const auto message = [&](const std::string& text) {
    write_all(folder / "a.lst", text);
    return error_of<Corrupt>([&] { read_image_list(folder / "a.lst", ""); });
  };
  EXPECT_THAT(message("1\t2\tx\n2\tx\n"), HasSubstr("a.lst: line 2 is damaged"));
  EXPECT_THAT(message("x\t2\tx\n"), HasSubstr("line 1 is damaged"));
  EXPECT_THAT(message("1\tcat\tx\n"), HasSubstr("line 1 is damaged"));
  EXPECT_THAT(message("1\t2\tx\n2\t1\t2\ty\n"),
              HasSubstr("line 2 has 2 labels, but line 1 has 1; only labels for detection may differ in number"));
  EXPECT_THAT(message("4\t2\tx\n\n4\t1\ty\n"), HasSubstr("line 3 has the id 4, as line 1"));
  // Of two whole objects, and of one and a part.
  EXPECT_THAT(message("1\t2\t3\t0\t0\t1\t1\t0\t1\tx\n2\t2\t3\t0\t0\t1\t1\ty\n"), HasSubstr("line 2 has 6 labels"));
  write_all(folder / "a.lst", "\n");
  EXPECT_THAT(error_of<InvalidArgument>([&] { read_image_list(folder / "a.lst", ""); }), HasSubstr("names no images"));
}

}  // namespace
}  // namespace paceline::test

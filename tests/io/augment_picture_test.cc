// Steps that are noted and done at once are the same as steps that are done one by one; boxes move with the pixels.
#include <gmock/gmock.h>
#include <paceline/error.h>
#include <paceline/record_loader.h>

#include <cmath>
#include <functional>

#include "augment/image_pipeline.h"
#include "augment/picture.h"
#include "fixtures.h"

namespace paceline::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Image noise(int height, int width, int channels, std::mt19937_64& random) {
  Image image{height, width, channels, {}};
  for (int i = 0; i < height * width * channels; ++i) image.pixels.push_back(static_cast<std::uint8_t>(random()));
  return image;
}

int between(std::mt19937_64& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<std::uint64_t>(high - low + 1));
}

using Change = std::function<void(io::Picture&)>;

Change draw_change(std::mt19937_64& random, bool& flipped) {
  switch (random() % 5) {
    case 0: flipped = true; return [](io::Picture& picture) { picture.mirror(); };
    case 1: flipped = true; return [](io::Picture& picture) { picture.turn_upside_down(); };
    case 2: {
      const int height = between(random, 1, 30), width = between(random, 1, 30);
      return [=](io::Picture& picture) { picture.resize(height, width); };
    }
    default: {
      // Inside, across the edge and outside.
      const std::uint64_t a = random(), b = random(), c = random(), d = random();
      return [=](io::Picture& picture) {
        const auto pick = [](std::uint64_t number, int low, int high) {
          return low + static_cast<int>(number % static_cast<std::uint64_t>(high - low + 1));
        };
        const int top = pick(a, -3, picture.height()), left = pick(b, -3, picture.width());
        picture.crop({top, left, pick(c, 1, picture.height() + 2), pick(d, 1, picture.width() + 2)}, {7, 200, 30});
      };
    }
  }
}

TEST(Picture, NotedStepsEqualThoseDoneAtOnce) {
  std::mt19937_64 random(test_seed());
  ImageCodec codec;
  for (int round = 0; round < 2000; ++round) {
    const int channels = round % 2 ? 3 : 1;
    const Image image = noise(between(random, 1, 25), between(random, 1, 25), channels, random);
    const std::string bytes = codec.encode(image, round % 3 ? ImageEncoding::kRaw : ImageEncoding::kJpeg);
    bool flipped = false;
    std::vector<Change> changes;
    for (int i = between(random, 1, 6); i > 0; --i) changes.push_back(draw_change(random, flipped));
    io::PictureMemory memories[2];
    Image results[2];
    for (const int at_once : {0, 1}) {
      io::Picture picture(codec, codec.header(bytes), channels, memories[at_once]);
      for (const Change& change : changes) {
        change(picture);
        if (at_once) picture.pixels();
      }
      results[at_once] = picture.pixels();
      EXPECT_EQ(results[at_once].height, picture.height());
      EXPECT_EQ(results[at_once].width, picture.width());
    }
    ASSERT_EQ(results[0].pixels.size(), results[1].pixels.size());
    // A line that was turned round is added up from its other end, so that a sum may round to another level: once in
    // each change of size.
    int worst = 0;
    for (std::size_t i = 0; i < results[0].pixels.size(); ++i)
      worst = std::max(worst, std::abs(results[0].pixels[i] - results[1].pixels[i]));
    ASSERT_LE(worst, flipped ? static_cast<int>(changes.size()) : 0) << "round " << round;
  }
}

// A wave bends by up to 0.25 levels a pixel, so that interpolating between coarse pixels of 8 x 8 changes it by up to 3
// levels, 1.2 in the mean. A place that is off by half a coarse pixel would change it by 2 in the mean where coarse
// pixels are 2 x 2, and by 8 where they are 8 x 8. At an edge the part may end half a coarse pixel elsewhere, up to 4
// pixels, which moves the mean of the pixels there by 2 pixels, with slopes of 5 levels across and 4 down: 18, and 2
// for roundings.
TEST(Picture, OfAReducedJpegIsNearlyTheSame) {
  std::mt19937_64 random(test_seed());
  ImageCodec codec;
  Image image{301, 423, 3, {}};
  for (int y = 0; y < image.height; ++y)
    for (int x = 0; x < image.width; ++x)
      for (int c = 0; c < 3; ++c)
        image.pixels.push_back(
            static_cast<std::uint8_t>(std::lround(128 + 100 * std::sin(0.05 * x + c) * std::cos(0.04 * y - c))));
  const std::string jpeg = codec.encode(image, ImageEncoding::kJpeg, 95);
  for (int round = 0; round < 40; ++round) {
    const int height = between(random, 10, 60), width = between(random, 10, 60);
    const Rectangle part{between(random, 0, 100), between(random, 0, 100), between(random, 2 * height, 200),
                         between(random, 2 * width, 300)};
    Image results[2];
    for (const bool reduced : {false, true}) {
      io::PictureMemory memory;
      io::Picture picture(codec, codec.header(jpeg), 3, memory);
      if (reduced) picture.allow_reduced();
      picture.crop(part);
      picture.resize(height, width);
      results[reduced] = picture.pixels();
    }
    double sum = 0;
    int worst = 0;
    for (std::size_t i = 0; i < results[0].pixels.size(); ++i) {
      const int apart = std::abs(results[0].pixels[i] - results[1].pixels[i]);
      worst = std::max(worst, apart);
      sum += apart;
    }
    EXPECT_LE(worst, 20) << "round " << round;
    EXPECT_LE(sum / static_cast<double>(results[0].pixels.size()), 1.8) << "round " << round;
  }
}

TEST(Picture, OfOneWithoutPixelsHasGeometryAlone) {
  io::Picture picture(20, 30);
  picture.crop({5, 10, 10, 20});
  picture.resize(40, 40);
  picture.mirror();
  picture.crop({0, 0, 40, 10});
  EXPECT_EQ(picture.geometry().source, (Rectangle{5, 10, 10, 20}));
  EXPECT_EQ(picture.geometry().window, (Rectangle{0, 30, 40, 10}));
  EXPECT_TRUE(picture.geometry().mirrored);
}

// The smallest rectangle around what is bright.
std::vector<double> bright_box(const Image& image) {
  int left = image.width, top = image.height, right = 0, bottom = 0;
  for (int y = 0; y < image.height; ++y)
    for (int x = 0; x < image.width; ++x)
      if (image.pixels[static_cast<std::size_t>(y * image.width + x)] > 100) {
        left = std::min(left, x);
        right = std::max(right, x + 1);
        top = std::min(top, y);
        bottom = std::max(bottom, y + 1);
      }
  return {left / static_cast<double>(image.width), top / static_cast<double>(image.height),
          right / static_cast<double>(image.width), bottom / static_cast<double>(image.height)};
}

// The middle of a black image is white.
TEST(Boxes, MoveWithTheirPixels) {
  const std::uint64_t seed = test_seed();
  Image image{60, 80, 1, std::vector<std::uint8_t>(60 * 80)};
  for (int y = 20; y < 35; ++y)
    for (int x = 30; x < 55; ++x) image.pixels[static_cast<std::size_t>(y * 80 + x)] = 255;
  ImageCodec codec;
  const std::string bytes = codec.encode(image, ImageEncoding::kRaw);
  const std::vector<float> labels = {2, 5, 4, 30 / 80.0f, 20 / 60.0f, 55 / 80.0f, 35 / 60.0f};
  int kept = 0;
  for (const char* text : {"flip(p=1)", "flip_vertical(p=1)", "pad(pixels=7)", "resize(size=100:50)",
                           "resize(short=90)", "center_crop(size=30:40)", "random_crop(size=50,pad=3)",
                           "random_resized_crop(size=120,scale=0.3:1);flip;flip_vertical", "rotate(degrees=90:90)",
                           "rotate(degrees=40)", "affine(degrees=30,scale=0.6:1,translate=0.1:0.1,shear=20)"}) {
    const io::ImagePipeline pipeline(augment::parse(str(text, ";resize(size=200)")), {}, 1);
    for (std::uint64_t draw = 0; draw < 20; ++draw) {
      io::PictureMemory memory;
      io::Picture picture(codec, codec.header(bytes), 1, memory);
      io::Boxes boxes(labels, 60, 80);
      picture.carry(boxes);
      pipeline.run(picture, io::mix(seed, draw));
      std::vector<float> moved(7);
      boxes.write(0.2, -1, moved);
      EXPECT_THAT(std::vector(moved.begin(), moved.begin() + 2), ElementsAre(2, 5));
      if (moved[2] < 0) continue;
      ++kept;
      const std::vector<double> expected = bright_box(picture.pixels());
      // Corners of a turned rectangle are less than bright, by some pixels of the 60 to 80 at most.
      const double near = std::string(text).find("degrees") == std::string::npos ? 0.02 : 0.06;
      for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(moved[3 + i], expected[i], near) << text << " number " << i;
    }
  }
  EXPECT_GT(kept, 180);
}

TEST(Boxes, GoWhenLittleIsLeft) {
  // Halves of two boxes side by side; a header with one more number, and objects with one more.
  const std::vector<float> labels = {3, 6, 77, 1, 0, 0, 0.4f, 1, 8, 2, 0.4f, 0, 1, 1, 9};
  const auto after = [&](const Rectangle& part, double least) {
    io::Picture picture(10, 10);
    io::Boxes boxes(labels, 10, 10);
    picture.carry(boxes);
    picture.crop(part);
    std::vector<float> moved(labels.size());
    boxes.write(least, -1, moved);
    return moved;
  };
  // Columns 3 to 9: a quarter of the first box, all of the second.
  EXPECT_THAT(after({0, 3, 10, 7}, 0.3),
              testing::Pointwise(testing::FloatNear(1e-6f),
                                 std::vector<float>{3, 6, 77, 2, 1 / 7.0f, 0, 1, 1, 9, -1, -1, -1, -1, -1, -1}));
  EXPECT_THAT(after({0, 3, 10, 7}, 0.2)[4], testing::FloatNear(0, 1e-6f));
  EXPECT_EQ(after({0, 3, 10, 7}, 0.2)[3], 1);
  EXPECT_THAT(after({0, 0, 10, 4}, 0), ElementsAre(3, 6, 77, 1, 0, 0, 1, 1, 8, -1, -1, -1, -1, -1, -1));
}

TEST(Boxes, SayWhatLabelsAreNone) {
  const auto reason = [](const std::vector<float>& labels) {
    return error_of<Corrupt>([&] { io::Boxes(labels, 10, 10); });
  };
  EXPECT_THAT(reason({1}), HasSubstr("its labels are no boxes: there are 1"));
  EXPECT_THAT(reason({1, 5}), HasSubstr("the header has length 1"));
  EXPECT_THAT(reason({2.5f, 5, 0, 0, 0, 1, 1}), HasSubstr("the header has length 2.5"));
  EXPECT_THAT(reason({2, 4, 1, 0, 0, 1}), HasSubstr("an object has length 4"));
  EXPECT_THAT(reason({2, 5, 1, 0, 0, 1}), HasSubstr("4 numbers are no objects of length 5"));
  EXPECT_THAT(reason({2, 5, 1, 0.5f, 0, 0.1f, 1}), HasSubstr("object 0 reaches from (0.5, 0) to (0.1, 1)"));
}

// One image whose right half is white, with a box around that.
TEST(Boxes, OfALoaderMove) {
  TemporaryFolder folder;
  DatasetWriter writer(folder / "set", 1);
  const std::vector<float> labels = {2, 5, 1, 0.5f, 0, 1, 1};
  writer.write(0, 0, pack_image_record(labels, 0, ImageCodec().encode({1, 2, 1, {0, 255}}, ImageEncoding::kRaw)));
  Manifest manifest;
  manifest.image = {1, 2, 1};
  manifest.label_width = 7;
  manifest.class_labels = false;
  const std::string set = writer.finish(manifest);
  const std::vector<augment::Step> steps = {augment::flip(1)};
  EXPECT_THAT(error_of<InvalidArgument>([&] { RecordLoader loader(set, {.image = {.steps = steps}}); }),
              HasSubstr("say with ImageOptions::boxes whether the labels are boxes"));
  for (const bool boxes : {false, true}) {
    RecordLoader loader(set, {.image = {.steps = steps, .boxes = boxes}});
    loader.start(0);
    Batch batch;
    ASSERT_TRUE(loader.next(batch));
    EXPECT_THAT(batch.data.to_vector<float>(), ElementsAre(1, 0));
    EXPECT_EQ(batch.label.to_vector<float>(), boxes ? (std::vector<float>{2, 5, 1, 0, 0, 0.5f, 1}) : labels);
  }
}

}  // namespace
}  // namespace paceline::test

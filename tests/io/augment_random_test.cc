// What steps draw: its distribution, its bounds, and that the same seed draws the same. Bounds on samples hold with all
// but a probability of some 1e-6 each, by the inequality that stands beside them.
#include <gmock/gmock.h>
#include <paceline/error.h>
#include <paceline/record_loader.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "augment/draws.h"
#include "augment/mixing.h"
#include "fixtures.h"

namespace paceline::test {
namespace {

constexpr int kDraws = 20000;
// Dvoretzky, Kiefer, Wolfowitz: the largest distance of two distribution functions is above e with a probability of at
// most 2 exp(-2 n e^2).
const double kDistance = std::sqrt(std::log(2 / 1e-6) / (2 * kDraws));
// The normal distribution leaves 6e-7 outside so many deviations.
constexpr double kDeviations = 5;

// The largest distance between the samples' distribution and the one of this function.
template <class Cumulative>
double distance(std::vector<double> samples, const Cumulative& cumulative) {
  std::ranges::sort(samples);
  double largest = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double expected = cumulative(samples[i]), n = static_cast<double>(samples.size());
    largest = std::max({largest, std::abs(expected - static_cast<double>(i) / n),
                        std::abs(expected - static_cast<double>(i + 1) / n)});
  }
  return largest;
}

auto uniform_on(double low, double high) {
  return [=](double x) { return std::clamp((x - low) / (high - low), 0.0, 1.0); };
}

// The geometry of an image of this size after one step, for each of the seeds.
std::vector<io::Geometry> draws(const augment::Step& step, int height, int width) {
  const std::uint64_t seed = test_seed();
  const io::ImagePipeline pipeline({augment::resize(), step}, {height, width}, 3);
  std::vector<io::Geometry> results;
  for (int i = 0; i < kDraws; ++i) {
    io::Picture picture(height, width);
    pipeline.run(picture, io::mix(seed, static_cast<std::uint64_t>(i)));
    results.push_back(picture.geometry());
  }
  return results;
}

TEST(AugmentRandom, ResizedCropsHaveUniformAreasAndLogarithmsOfRatios) {
  // Every rectangle of these areas and ratios fits into the image, so that none is drawn again.
  std::vector<double> shares, ratios, places;
  for (const io::Geometry& drawn :
       draws(augment::random_resized_crop({.size = {2, 3}, .scale = {0.1, 0.5}}), 600, 800)) {
    const Rectangle& part = drawn.source;
    ASSERT_TRUE(part.top >= 0 && part.left >= 0 && part.top + part.height <= 600 && part.left + part.width <= 800);
    EXPECT_EQ(drawn.window, (Rectangle{0, 0, 2, 3}));
    shares.push_back(static_cast<double>(part.height) * part.width / (600 * 800));
    ratios.push_back(std::log(static_cast<double>(part.width) / part.height));
    places.push_back((part.left + 0.5) / (800 - part.width + 1));
  }
  // Sides of 190 pixels or more are rounded: by half a pixel, hence areas and ratios by up to 1 / 190 of themselves.
  EXPECT_LT(distance(shares, uniform_on(0.1, 0.5)), kDistance + 0.5 / 190 / 0.4);
  EXPECT_LT(distance(ratios, uniform_on(std::log(0.75), std::log(4 / 3.0))),
            kDistance + 1 / 190.0 / std::log(16 / 9.0));
  // Of at least 233 places.
  EXPECT_LT(distance(places, uniform_on(0, 1)), kDistance + 1 / 233.0);
}

TEST(AugmentRandom, ResizedCropsThatFitNowhereAreInTheMiddle) {
  const augment::Step step = augment::random_resized_crop({.size = {20, 20}, .scale = {1, 1}, .ratio = {1, 2}});
  EXPECT_EQ(draws(step, 100, 10).front().source, (Rectangle{45, 0, 10, 10}));
  EXPECT_EQ(draws(step, 10, 100).front().source, (Rectangle{0, 40, 10, 20}));
}

TEST(AugmentRandom, CropsReachEveryPlaceEquallyOften) {
  std::map<std::pair<int, int>, int> places;
  for (const io::Geometry& drawn : draws(augment::random_crop({.pad = 2}), 8, 8))
    ++places[{drawn.window.top, drawn.window.left}];
  ASSERT_EQ(places.size(), 25u);
  EXPECT_EQ(places.begin()->first, (std::pair{-2, -2}));
  const double expected = kDraws / 25.0, deviation = std::sqrt(expected * 24 / 25);
  for (const auto& [place, count] : places) EXPECT_NEAR(count, expected, (kDeviations + 1) * deviation);
}

TEST(AugmentRandom, FlipsHaveTheirProbability) {
  for (const double probability : {0.5, 0.1}) {
    int mirrored = 0, upside_down = 0;
    for (const io::Geometry& drawn : draws(augment::flip(probability), 8, 8)) mirrored += drawn.mirrored;
    for (const io::Geometry& drawn : draws(augment::flip_vertical(probability), 8, 8)) upside_down += drawn.upside_down;
    const double deviation = std::sqrt(kDraws * probability * (1 - probability));
    EXPECT_NEAR(mirrored, kDraws * probability, kDeviations * deviation);
    EXPECT_NEAR(upside_down, kDraws * probability, kDeviations * deviation);
  }
  for (const io::Geometry& drawn : draws(augment::flip(0), 8, 8)) EXPECT_FALSE(drawn.mirrored);
  for (const io::Geometry& drawn : draws(augment::flip(1), 8, 8)) EXPECT_TRUE(drawn.mirrored);
}

TEST(AugmentRandom, ErasedRectanglesHaveUniformAreas) {
  const std::uint64_t seed = test_seed();
  const io::CheckedStep step(augment::erase({.probability = 0.75, .scale = {0.05, 0.25}, .ratio = {0.5, 2}}));
  std::vector<double> shares;
  for (int i = 0; i < kDraws; ++i) {
    io::Random random(io::mix(seed, static_cast<std::uint64_t>(i)));
    const auto drawn = io::draw_erased(step, 400, 400, random);
    if (!drawn) continue;
    ASSERT_TRUE(drawn->top >= 0 && drawn->left >= 0 && drawn->top + drawn->height <= 400 &&
                drawn->left + drawn->width <= 400);
    shares.push_back(static_cast<double>(drawn->height) * drawn->width / (400 * 400));
  }
  EXPECT_NEAR(static_cast<double>(shares.size()), kDraws * 0.75, kDeviations * std::sqrt(kDraws * 0.75 * 0.25));
  // A side has at least 63 pixels, and a rounded one is half a pixel off.
  const double distance_of_fewer = kDistance / std::sqrt(0.7);
  EXPECT_LT(distance(shares, uniform_on(0.05, 0.25)), distance_of_fewer + 0.25 / 63 / 0.2);
}

TEST(AugmentRandom, NormalNumbersAndBetaNumbersAreSo) {
  const std::uint64_t seed = test_seed();
  std::vector<double> normals, flat, steep;
  for (int i = 0; i < kDraws; ++i) {
    io::Random random(io::mix(seed, static_cast<std::uint64_t>(i)));
    normals.push_back(io::normal(random));
    flat.push_back(io::beta(random, 1));
    steep.push_back(io::beta(random, 0.5));
  }
  EXPECT_LT(distance(normals, [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2)); }), kDistance);
  EXPECT_LT(distance(flat, uniform_on(0, 1)), kDistance);
  // The arcsine distribution.
  EXPECT_LT(distance(steep, [](double x) { return 2 / std::numbers::pi * std::asin(std::sqrt(x)); }), kDistance);
}

TEST(AugmentRandom, PastedRectanglesHaveTheShareOfTheirLabels) {
  const std::uint64_t seed = test_seed();
  const std::vector<io::CheckedStep> steps = {io::CheckedStep(augment::cutmix(1, 0.5)),
                                              io::CheckedStep(augment::mixup(1, 0.5))};
  int pasted = 0, weighted = 0;
  for (int i = 0; i < kDraws; ++i) {
    const auto drawn = io::draw_mixture(steps, 40, 60, io::mix(seed, static_cast<std::uint64_t>(i)));
    if (!drawn) continue;
    const Rectangle& part = drawn->pasted;
    if (part.height == 0) {
      ++weighted;
      continue;
    }
    ++pasted;
    ASSERT_TRUE(part.top >= 0 && part.left >= 0 && part.top + part.height <= 40 && part.left + part.width <= 60);
    ASSERT_NEAR(drawn->kept, 1 - part.height * part.width / 2400.0, 1e-12);
  }
  // A batch is mixed once. A rectangle without pixels, whose share was below 1 / 400, leaves the batch as it is.
  EXPECT_NEAR(pasted, kDraws * 0.5, kDeviations * std::sqrt(kDraws * 0.25) + kDraws * 0.5 / 300);
  EXPECT_NEAR(weighted, kDraws * 0.25, kDeviations * std::sqrt(kDraws * 0.25 * 0.75));
}

// `count` images of 6 x 8 pixels that all have the level 10 * number, and the class `number % 4`.
std::string write_levels(const TemporaryFolder& folder, int count, bool named = true) {
  DatasetWriter writer(folder / "set", 1);
  for (int i = 0; i < count; ++i) {
    const float label = static_cast<float>(i % 4);
    const Image image{6, 8, 1, std::vector<std::uint8_t>(48, static_cast<std::uint8_t>(10 * i))};
    writer.write(
        0, i,
        pack_image_record({&label, 1}, static_cast<std::uint64_t>(i), ImageCodec().encode(image, ImageEncoding::kRaw)));
  }
  Manifest manifest;
  manifest.encoding = "raw";
  manifest.image = {6, 8, 1};
  if (named) manifest.labels = {"a", "b", "c", "d"};
  return writer.finish(manifest);
}

// Levels are linear: so is their mean in what is mixed, whether values are weighted or a rectangle is pasted.
TEST(AugmentMixing, SharesOfLabelsAreThoseOfTheImages) {
  TemporaryFolder folder;
  const std::string set = write_levels(folder, 14);
  for (const char* text : {"mixup", "cutmix", "cutmix(p=0.5);mixup(alpha=0.2)"}) {
    RecordLoader plain(set, {.batch = 5, .shuffle = 3, .image = {.scale = 1}});
    RecordLoader mixing(
        set, {.batch = 5, .shuffle = 3, .decode_threads = 2, .image = {.scale = 1, .steps = augment::parse(text)}});
    int changed = 0;
    for (int epoch = 0; epoch < 30; ++epoch) {
      plain.start(epoch);
      mixing.start(epoch);
      Batch own, mixed;
      while (plain.next(own)) {
        ASSERT_TRUE(mixing.next(mixed));
        ASSERT_EQ(mixed.label.describe(), str("float32 (", own.examples, ", 4) on cpu"));
        const std::vector<float> values = own.data.to_vector<float>(), results = mixed.data.to_vector<float>();
        const std::vector<float> shares = mixed.label.to_vector<float>();
        const std::vector<std::int32_t> classes = own.label.to_vector<std::int32_t>();
        for (std::size_t i = 0; i < classes.size(); ++i) {
          const std::size_t other = (i + 1) % classes.size();
          double sum = 0, total = 0;
          for (std::size_t j = 0; j < 48; ++j) sum += results[48 * i + j];
          for (std::size_t c = 0; c < 4; ++c) total += shares[4 * i + c];
          EXPECT_NEAR(total, 1, 1e-6);
          if (classes[i] == classes[other]) continue;
          const double kept = shares[4 * i + static_cast<std::size_t>(classes[i])];
          EXPECT_NEAR(sum / 48, kept * values[48 * i] + (1 - kept) * values[48 * other], 1e-3) << text;
          changed += kept < 1;
        }
      }
      EXPECT_FALSE(mixing.next(mixed));
    }
    EXPECT_GT(changed, 100) << text;
  }
}

TEST(AugmentMixing, OfBytesRounds) {
  TemporaryFolder folder;
  RecordLoader loader(write_levels(folder, 2), {.image = {.dtype = DType::kUint8, .steps = {augment::mixup()}}});
  loader.start(0);
  Batch batch;
  ASSERT_TRUE(loader.next(batch));
  const double kept = batch.label.to_vector<float>()[0];
  EXPECT_NEAR(batch.data.to_vector<std::uint8_t>()[0], (1 - kept) * 10, 0.501);
}

TEST(AugmentMixing, NeedsClasses) {
  TemporaryFolder folder;
  const std::string set = write_levels(folder, 4, false);
  const std::vector<augment::Step> steps = {augment::mixup()};
  EXPECT_THAT(error_of<InvalidArgument>([&] { RecordLoader loader(set, {.image = {.steps = steps}}); }),
              testing::HasSubstr("needs the number of classes"));
  RecordLoader loader(set, {.image = {.steps = steps, .classes = 7}});
  loader.start(0);
  Batch batch;
  ASSERT_TRUE(loader.next(batch));
  EXPECT_EQ(batch.label.shape(), (Shape{4, 7}));
}

TEST(AugmentLoader, DeliversTheSameForAnyNumberOfThreads) {
  TemporaryFolder folder;
  const std::string set = write_levels(folder, 14);
  const std::vector<augment::Step> steps = augment::parse(
      "random_resized_crop(size=5:7);flip;flip_vertical;color_jitter(brightness=0.5,contrast=0.5);rotate(degrees=20);"
      "affine(scale=0.5:2,translate=0.2:0.2);normalize(mean=0.3);erase(p=0.8,noise=1);mixup");
  const auto values = [&](int threads, int epoch) {
    RecordLoader loader(set, {.batch = 4, .shuffle = 8, .decode_threads = threads, .image = {.steps = steps}});
    std::vector<float> all;
    loader.start(epoch);
    for (Batch batch; loader.next(batch);)
      for (const float value : batch.data.to_vector<float>()) all.push_back(value);
    return all;
  };
  const std::vector<float> expected = values(1, 0);
  EXPECT_EQ(expected.size(), 14u * 35);
  EXPECT_EQ(values(3, 0), expected);
  EXPECT_NE(values(3, 1), expected);
}

TEST(AugmentLoader, ErasesBehindNormalizeInItsNumbers) {
  TemporaryFolder folder;
  const std::string set = write_levels(folder, 3);
  RecordLoader loader(set,
                      {.image = {.steps = augment::parse("normalize;erase(p=1,scale=0.3:0.3,ratio=1:1,value=-7)")}});
  loader.start(0);
  Batch batch;
  ASSERT_TRUE(loader.next(batch));
  const std::vector<float> values = batch.data.to_vector<float>();
  // A square of 4 x 4 of the 48 pixels of each.
  EXPECT_EQ(std::ranges::count(values, -7.0f), 3 * 16);
}

TEST(AugmentLoader, RefusesCropsThatAreTooLarge) {
  TemporaryFolder folder;
  RecordLoader loader(write_levels(folder, 3), {.image = {.steps = augment::parse("random_crop(size=20,pad=1)")}});
  loader.start(0);
  Batch batch;
  EXPECT_THAT(error_of<InvalidArgument>([&] { loader.next(batch); }),
              testing::HasSubstr("record 0 at offset 0: an image of 8 x 6 is too small for a random crop of 20 x 20"));
}

}  // namespace
}  // namespace paceline::test

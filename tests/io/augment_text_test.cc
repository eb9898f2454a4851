// Lists of steps as text, and what they make of the size of images.
#include <gmock/gmock.h>
#include <paceline/augment.h>
#include <paceline/error.h>
#include <paceline/record_loader.h>

#include <set>

#include "augment/image_pipeline.h"
#include "fixtures.h"

namespace paceline::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string reason(std::string_view text) {
  return error_of<InvalidArgument>([&] { augment::parse(text); });
}

TEST(AugmentText, ReadsSteps) {
  const std::vector<augment::Step> steps = augment::parse(
      " random_resized_crop(scale=0.08:1, ratio = 0.75:1.5,size=224:192) ;flip; normalize(mean=0.5:0.4:0.3)");
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0], augment::random_resized_crop({.size = {224, 192}, .ratio = {0.75, 1.5}}));
  EXPECT_EQ(steps[1], augment::flip());
  EXPECT_EQ(steps[2], augment::normalize({.mean = {0.5, 0.4, 0.3}}));
  EXPECT_EQ(augment::text(steps), "random_resized_crop(ratio=0.75:1.5,size=224:192);flip;normalize(mean=0.5:0.4:0.3)");
  EXPECT_TRUE(augment::parse("").empty());
  EXPECT_TRUE(augment::parse(" \n").empty());
  EXPECT_EQ(augment::parse("flip()"), augment::parse("flip(p=0.5)"));
  EXPECT_EQ(augment::parse("rotate(degrees=15)"), augment::parse("rotate(degrees=-15:15)"));
}

// All steps with other parameters than their defaults.
std::vector<augment::Step> unusual_steps() {
  using namespace augment;
  return {resize({5, 6}),
          resize_short(9),
          center_crop({7, 7}),
          random_crop({.size = {4, 3}, .pad = 2, .fill = {1, 2, 3}}),
          random_resized_crop({.size = {8, 8}, .scale = {0.1, 0.9}, .ratio = {0.5, 2}}),
          pad(3, {255}),
          flip(0.25),
          flip_vertical(1),
          color_jitter({.brightness = 0.1, .contrast = 0.2, .saturation = 0.3, .hue = 0.4}),
          lighting(0.05),
          grayscale(0.7),
          rotate({.degrees = {-5, 20}, .nearest = true, .fill = {9}}),
          affine({.degrees = {1, 2},
                  .translate_across = 0.1,
                  .translate_down = 0.2,
                  .scale = {0.5, 1.5},
                  .shear_across = {-3, 4},
                  .shear_down = {5, 6},
                  .nearest = true,
                  .fill = {1}}),
          erase({.probability = 1, .scale = {0.1, 0.2}, .ratio = {1, 2}, .value = {-3}, .noise = true}),
          normalize({.mean = {1, 2, 3}, .deviation = {0.1}, .scale = 1.0 / 3}),
          mixup(0.2, 0.5),
          cutmix(0.3, 0.75)};
}

TEST(AugmentText, RoundTripsEveryStep) {
  std::set<std::string> seen;
  for (const augment::Step& step : unusual_steps()) {
    EXPECT_EQ(augment::parse(augment::text({step})), std::vector{step}) << augment::text({step});
    seen.insert(step.name);
  }
  EXPECT_THAT(std::vector(seen.begin(), seen.end()), testing::ElementsAreArray(augment::names()));
  EXPECT_EQ(augment::parse(augment::text(unusual_steps())), unusual_steps());
}

TEST(AugmentText, SaysEachMistakeInOneSentence) {
  EXPECT_EQ(reason("filp"),
            "unknown step 'filp'; known: affine center_crop color_jitter cutmix erase flip flip_vertical grayscale "
            "lighting mixup normalize pad random_crop random_resized_crop resize rotate");
  EXPECT_EQ(reason("flip(q=1)"), "step 'flip' has no parameter 'q'; known: p");
  EXPECT_EQ(reason("flip(p=half)"), "step 'flip': p is 'half', expected numbers with ':' between them");
  EXPECT_EQ(reason("flip(p=)"), "step 'flip': p is '', expected numbers with ':' between them");
  EXPECT_EQ(reason("flip(p=0.5:)"), "step 'flip': p is '0.5:', expected numbers with ':' between them");
  EXPECT_EQ(reason("flip(p=1.5)"), "step 'flip': p is 1.5, expected 0 to 1");
  EXPECT_EQ(reason("flip(p=nan)"), "step 'flip': p is nan, expected 0 to 1");
  EXPECT_EQ(reason("flip(p=0.1:0.2)"), "step 'flip': p has 2 numbers, expected 1");
  EXPECT_EQ(reason("erase(scale=0.1)"), "step 'erase': scale has 1 number, expected 2 with ':' between them");
  EXPECT_EQ(reason("erase(scale=0.5:0.1)"), "step 'erase': scale is 0.5:0.1, expected the smaller number first");
  EXPECT_EQ(reason("erase(scale=0:0.1)"), "step 'erase': scale is 0, expected more than 0 to 1");
  EXPECT_EQ(reason("resize(size=2.5)"), "step 'resize': size is 2.5, expected a whole number");
  EXPECT_EQ(reason("resize(size=4,short=4)"), "step 'resize' takes size or short, not both");
  EXPECT_EQ(reason("normalize(deviation=0.1:0)"), "step 'normalize': the deviation of channel 1 is 0");
  EXPECT_EQ(reason("flip(p=1"), "step 'flip' does not end with ')': 'flip(p=1'");
  EXPECT_EQ(reason("flip(0.5)"), "step 'flip': '0.5' is no parameter, expected name=value");
  EXPECT_EQ(reason("flip(p=0.1,p=0.2)"), "step 'flip' has p twice");
  EXPECT_EQ(reason("flip;;flip"), "a step is empty in 'flip;;flip': expected one ';' between two steps");
  EXPECT_EQ(reason("flip;"), "a step is empty in 'flip;': expected one ';' between two steps");
  EXPECT_EQ(reason("(p=1)"), "a step has no name: '(p=1)'");
  EXPECT_THAT(error_of<InvalidArgument>([] { augment::flip(2); }), HasSubstr("p is 2, expected 0 to 1"));
  EXPECT_THAT(error_of<InvalidArgument>([] { augment::resize({5, 0}); }), HasSubstr("a height and a width"));
  EXPECT_THAT(error_of<InvalidArgument>([] { augment::resize_short(0); }), HasSubstr("at least 1 pixel"));
}

TEST(AugmentText, SurvivesMutations) {
  std::mt19937_64 random(test_seed());
  const std::string original = augment::text(unusual_steps());
  int read = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string text = original;
    for (std::size_t n = 1 + random() % 3; n > 0; --n) {
      constexpr std::string_view kMarks = "();:=,.0159-e";
      text[random() % text.size()] = kMarks[random() % kMarks.size()];
    }
    try {
      const std::vector<augment::Step> steps = augment::parse(text);
      EXPECT_EQ(augment::parse(augment::text(steps)), steps) << text;
      ++read;
    } catch (const InvalidArgument&) {  // NOLINT(bugprone-empty-catch): to be refused is as good as to be read
    }
  }
  EXPECT_GT(read, 0);
}

std::vector<int> size_of(std::string_view text, augment::Size size = {}, const ImageOptions& options = {}) {
  ImageOptions all = options;
  all.steps = augment::parse(text);
  const io::ImagePipeline pipeline(io::complete_steps(all), size, 3);
  return {pipeline.size().height, pipeline.size().width};
}

std::string refusal(std::string_view text, augment::Size size = {}, const ImageOptions& options = {}) {
  return error_of<InvalidArgument>([&] { size_of(text, size, options); });
}

TEST(AugmentList, SaysTheSizeOfExamples) {
  EXPECT_THAT(size_of("resize(short=256);center_crop(size=224)"), ElementsAre(224, 224));
  EXPECT_THAT(size_of("random_resized_crop(size=10:12);flip"), ElementsAre(10, 12));
  EXPECT_THAT(size_of("random_resized_crop(size=10);pad(pixels=2)"), ElementsAre(14, 14));
  EXPECT_THAT(size_of("resize(size=10:20);resize(short=5)"), ElementsAre(5, 10));
  EXPECT_THAT(size_of("flip", {8, 9}), ElementsAre(8, 9));
  EXPECT_THAT(size_of("", {8, 9}), ElementsAre(8, 9));
  EXPECT_THAT(size_of("random_crop(pad=4)", {8, 9}), ElementsAre(8, 9));
}

TEST(AugmentList, RefusesWhatCannotBe) {
  EXPECT_THAT(refusal("flip"), HasSubstr("step 'resize' names no size, and the images differ in size: write "));
  EXPECT_THAT(refusal("center_crop(size=9);resize(short=256);pad(pixels=1);random_crop"), HasSubstr("'random_crop'"));
  EXPECT_THAT(refusal("flip;normalize;flip", {8, 8}), HasSubstr("step 'flip' follows normalize, which only erase"));
  EXPECT_THAT(refusal("mixup;flip", {8, 8}), HasSubstr("mixup and cutmix stand last"));
  EXPECT_THAT(refusal("normalize;normalize", {8, 8}), HasSubstr("occurs twice"));
  EXPECT_THAT(refusal("normalize", {8, 8}, {.mean = {1}}), HasSubstr("leave one out"));
  EXPECT_THAT(refusal("flip", {8, 8}, {.random_flip = true}), HasSubstr("put random_crop(pad=4) and flip into it"));
  EXPECT_THAT(refusal("normalize", {8, 8}, {.dtype = DType::kUint8}), HasSubstr("pixels as they are"));
  EXPECT_THAT(refusal("erase(value=-1)", {8, 8}), HasSubstr("a level of 0 to 255"));
  EXPECT_THAT(error_of<InvalidArgument>([] {
                io::ImagePipeline({augment::lighting()}, {8, 8}, 1);
              }),
              HasSubstr("3 channels"));
  EXPECT_THAT(error_of<InvalidArgument>([] {
                io::ImagePipeline({augment::resize_short(8)}, {8, 8}, 1);
              }),
              HasSubstr("make images of different sizes"));
}

TEST(AugmentList, WritesTheShortFormOut) {
  const auto text = [](const ImageOptions& options) { return augment::text(io::complete_steps(options)); };
  EXPECT_EQ(text({}), "resize;normalize");
  EXPECT_EQ(text({.mean = {0.1f}, .random_crop = 4, .random_flip = true}),
            "resize;random_crop(pad=4);flip;normalize(mean=0.1)");
  EXPECT_EQ(text({.dtype = DType::kUint8}), "resize");
  EXPECT_EQ(text({.scale = 1, .steps = augment::parse("flip;erase;mixup")}),
            "resize;flip;erase;normalize(scale=1);mixup");
}

}  // namespace
}  // namespace paceline::test

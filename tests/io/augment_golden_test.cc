// The deterministic steps against what torchvision makes of the same images (torchvision_golden.py).
#include <gtest/gtest.h>

#include <paceline/record_loader.h>
#include <support/paths.h>

#include <cmath>
#include <map>
#include <sstream>

#include "augment/colour.h"
#include "augment/image_pipeline.h"
#include "augment/picture.h"
#include "fixtures.h"

namespace paceline::test {
namespace {

struct Golden {
  std::string function;
  std::string input;
  std::vector<double> arguments;
  Image image;
  std::vector<double> numbers;  // in place of the image's pixels
  double operator[](std::size_t i) const { return arguments.at(i); }
  int whole(std::size_t i) const { return static_cast<int>(arguments.at(i)); }
};

std::vector<Golden> read_goldens() {
  std::istringstream file(read_all(source_dir() + "/tests/io/torchvision_golden.txt"));
  std::vector<Golden> goldens;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    Golden golden;
    std::size_t count = 0;
    words >> golden.function >> golden.input >> count;
    golden.arguments.resize(count);
    for (double& argument : golden.arguments) words >> argument;
    words >> golden.image.height >> golden.image.width >> golden.image.channels;
    std::string values;
    words >> values;
    if (golden.function == "normalize") {
      std::istringstream numbers(values);
      for (std::string number; std::getline(numbers, number, ',');) golden.numbers.push_back(std::stod(number));
    } else {
      for (std::size_t i = 0; i + 1 < values.size(); i += 2)
        golden.image.pixels.push_back(static_cast<std::uint8_t>(std::stoi(values.substr(i, 2), nullptr, 16)));
    }
    EXPECT_TRUE(words) << line;
    goldens.push_back(std::move(golden));
  }
  return goldens;
}

// A step with fixed values for what it draws, or the function behind it.
Image ours(const Golden& golden, const Image& input) {
  ImageCodec codec;
  io::PictureMemory memory;
  const std::string bytes = codec.encode(input, ImageEncoding::kRaw);
  io::Picture picture(codec, codec.header(bytes), input.channels, memory);
  const std::string& name = golden.function;
  const auto step = [&](const augment::Step& made) {
    io::ImagePipeline({made, augment::resize({golden.image.height, golden.image.width})}, {1, 1}, input.channels)
        .run(picture, 1);
  };
  const auto affine = [&](bool nearest, std::size_t fill) {
    const io::Colour outside = io::colour_of({nearest ? golden[fill] : 0});
    picture.warp(
        io::affine_map({golden[0], golden[1], golden[2], golden[3], golden[4], golden[5]}, input.height, input.width),
        nearest, outside);
  };
  if (name == "resize") step(augment::resize({golden.whole(0), golden.whole(1)}));
  if (name == "resize_short") step(augment::resize_short(golden.whole(0)));
  if (name == "crop") picture.crop({golden.whole(0), golden.whole(1), golden.whole(2), golden.whole(3)});
  if (name == "center_crop") step(augment::center_crop({golden.whole(0), golden.whole(1)}));
  if (name == "resized_crop") {
    picture.crop({golden.whole(0), golden.whole(1), golden.whole(2), golden.whole(3)});
    picture.resize(golden.whole(4), golden.whole(5));
  }
  if (name == "pad") step(augment::pad(golden.whole(0), {golden[1]}));
  if (name == "flip") step(augment::flip(1));
  if (name == "flip_vertical") step(augment::flip_vertical(1));
  if (name == "brightness") io::adjust_brightness(picture.pixels(), golden[0]);
  if (name == "contrast") io::adjust_contrast(picture.pixels(), golden[0]);
  if (name == "saturation") io::adjust_saturation(picture.pixels(), golden[0]);
  if (name == "hue") io::adjust_hue(picture.pixels(), golden[0]);
  if (name == "grayscale") step(augment::grayscale(1));
  if (name == "rotate") step(augment::rotate({.degrees = {golden[0], golden[0]}}));
  if (name == "rotate_nearest")
    step(augment::rotate({.degrees = {golden[0], golden[0]}, .nearest = true, .fill = {golden[1]}}));
  if (name == "affine") affine(false, 0);
  if (name == "affine_nearest") affine(true, 6);
  if (name == "erase")
    io::fill(picture.pixels(), {golden.whole(0), golden.whole(1), golden.whole(2), golden.whole(3)},
             io::colour_of({golden[4]}));
  return picture.pixels();
}

// Levels that a pixel may differ by, and the share of pixels that may differ by more.
struct Tolerance {
  int levels = 0;
  double others = 0;
};

// Places, copies and tables are exact. Elsewhere:
Tolerance tolerance(const std::string& function) {
  // torchvision resizes bytes with weights of 16 bits or less, and rounds after each of the two directions.
  if (function.starts_with("resize")) return {1};
  // A product or a sum may be rounded to another float, and then down to another level.
  if (function == "contrast" || function == "saturation" || function == "hue" || function == "grayscale") return {1};
  // torchvision computes places as floats from -1 to 1, we as doubles in pixels; a level is rounded once each.
  if (function == "rotate" || function == "affine") return {1};
  // So where a place lies in the middle between two pixels, the nearest may be the other one.
  if (function == "rotate_nearest" || function == "affine_nearest") return {0, 0.02};
  return {};
}

void expect_alike(const Image& image, const Golden& golden) {
  ASSERT_EQ(image.height, golden.image.height);
  ASSERT_EQ(image.width, golden.image.width);
  ASSERT_EQ(image.channels, golden.image.channels);
  const Tolerance allowed = tolerance(golden.function);
  int worst = 0, others = 0;
  for (std::size_t i = 0; i < image.pixels.size(); ++i) {
    const int apart = std::abs(image.pixels[i] - golden.image.pixels[i]);
    if (apart > allowed.levels) ++others;
    worst = std::max(worst, apart);
  }
  EXPECT_LE(others, allowed.others * static_cast<double>(image.pixels.size())) << "the worst by " << worst;
}

TEST(AugmentGolden, StepsEqualTorchvisions) {
  std::map<std::string, Image> inputs;
  std::map<std::string, int> seen;
  for (const Golden& golden : read_goldens()) {
    std::string arguments;
    for (const double argument : golden.arguments) arguments += str(" ", argument);
    SCOPED_TRACE(golden.function + " of " + golden.input + ":" + arguments);
    ++seen[golden.function];
    if (golden.function == "input")
      inputs[golden.input] = golden.image;
    else if (golden.function != "normalize")
      expect_alike(ours(golden, inputs.at(golden.input)), golden);
  }
  EXPECT_EQ(seen.size(), 20u) << "functions in the file";
}

TEST(AugmentGolden, NormalizeEqualsTorchvisions) {
  std::map<std::string, Image> inputs;
  for (const Golden& golden : read_goldens()) {
    if (golden.function == "input") inputs[golden.input] = golden.image;
    if (golden.function != "normalize") continue;
    TemporaryFolder folder;
    const Image& input = inputs.at(golden.input);
    DatasetWriter writer(folder / "set", 1);
    const float label = 0;
    writer.write(0, 0, pack_image_record({&label, 1}, 0, ImageCodec().encode(input, ImageEncoding::kRaw)));
    Manifest manifest;
    manifest.image = {input.height, input.width, input.channels};
    RecordLoader loader(writer.finish(manifest),
                        {.image = {.steps = {augment::normalize({{golden[0]}, {golden[1]}})}}});
    loader.start(0);
    Batch batch;
    ASSERT_TRUE(loader.next(batch));
    const std::vector<float> values = batch.data.to_vector<float>();
    ASSERT_EQ(values.size(), golden.numbers.size());
    // Planes here, pixels there. Both round three times, in another order, numbers of at most 4.3: an ulp each.
    const auto channels = static_cast<std::size_t>(input.channels);
    const std::size_t plane = values.size() / channels;
    for (std::size_t i = 0; i < plane; ++i)
      for (std::size_t c = 0; c < channels; ++c)
        EXPECT_NEAR(values[c * plane + i], golden.numbers[i * channels + c], 1.5e-6);
  }
}

}  // namespace
}  // namespace paceline::test

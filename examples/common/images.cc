#include "images.h"

#include <paceline/manifest.h>

#include <algorithm>

#include "program.h"
#include "records.h"

DECLARE_string(train);
DECLARE_string(test);

DEFINE_string(decoding, "auto",
              "where images are decoded that a CUDA device computes on: cpu, device (JPEGs by nvJPEG), or auto");

namespace paceline::examples {

const char* const kImageFlags = __FILE__;

namespace {

// A test set of other sizes would fail after an epoch.
void check_size_of_test_set(const ImageOptions& images) {
  if (FLAGS_train.empty()) return;
  const Manifest train = Manifest::load(FLAGS_train), test = Manifest::load(FLAGS_test);
  const ImageSize &of_train = train.image, &of_test = test.image;
  const auto text = [](const ImageSize& size) { return str(size.width, " x ", size.height, " x ", size.channels); };
  const auto channels = [](const ImageSize& size) { return size.channels > 0 ? size.channels : 3; };  // mixed: coloured
  const bool same_channels = images.channels > 0 || channels(of_test) == channels(of_train);
  const bool sized = images.height > 0 || !images.steps.empty();
  const bool same_size = sized || (of_test.height == of_train.height && of_test.width == of_train.width);
  require(same_channels && same_size, "the images of '", FLAGS_test, "' are ", text(of_test), ", but those of '",
          FLAGS_train, "' ", text(of_train),
          " (width, height, channels; 0: they differ); give --image_size or --channels");
}

RecordLoaderOptions loader_options(const ImageOptions& images) {
  RecordLoaderOptions options;
  options.decoding = parse_decoding(FLAGS_decoding);
  options.image = images;
  return options;
}

// The data set whose images say what size all become, by the options for training.
std::string sizing_manifest() { return FLAGS_train.empty() ? FLAGS_test : FLAGS_train; }

// Height and width of the images, where all have one size.
ImageSize size_of(const ImageOptions& training) {
  ImageSize size = Manifest::load(sizing_manifest()).image;
  if (training.height > 0) size = {training.height, training.width, size.channels};
  if (training.channels > 0 || size.channels == 0) size.channels = training.channels > 0 ? training.channels : 3;
  if (training.steps.empty()) return size;
  const Shape shape = RecordLoader(sizing_manifest(), {.image = training}).batch_shape();
  return {static_cast<int>(shape[2]), static_cast<int>(shape[3]), size.channels};
}

std::string text_of(const std::vector<float>& numbers, const char* otherwise) {
  std::string text = numbers.empty() ? otherwise : "";
  for (const float number : numbers) text += str(text.empty() ? "" : ",", number);
  return text;
}

// What the network sees of an image.
void note_images(nn::Notes& notes, const ImageOptions& training) {
  const ImageSize size = size_of(training);
  notes["channels"] = std::to_string(size.channels);
  if (size.height > 0) notes["images"] = str(size.width, " x ", size.height);
  if (size.height > 0 && size.height == size.width) notes["image_size"] = std::to_string(size.height);  // as the flag
  std::vector<float> mean = training.mean, deviation = training.deviation;
  std::vector<float> scale{static_cast<float>(augment::Normalize{}.scale)};
  for (const augment::Step& step : training.steps) {
    if (step.name != "normalize") continue;
    for (const auto& [name, numbers] : step.parameters)
      (name == "mean" ? mean : name == "deviation" ? deviation : scale).assign(numbers.begin(), numbers.end());
  }
  notes["mean"] = text_of(mean, "0");
  notes["deviation"] = text_of(deviation, "1");
  notes["scale"] = text_of(scale, "");
}

// Images of the test set become of the same size as those of the training set, by these steps.
ImageOptions image_options_of_test(const ImageOptions& training, const std::vector<augment::Step>& steps) {
  ImageOptions options = training;
  options.random_crop = 0;
  options.random_flip = false;
  options.steps = steps;
  if (training.steps.empty()) return options;
  const ImageSize size = size_of(training);
  options.height = size.height;
  options.width = size.width;
  const auto normalize = std::ranges::find(training.steps, "normalize", &augment::Step::name);
  if (normalize != training.steps.end() && std::ranges::find(steps, "normalize", &augment::Step::name) == steps.end())
    options.steps.push_back(*normalize);
  return options;
}

}  // namespace

void read_images(Task& task, const ImageOptions& training, const std::vector<augment::Step>& testing_steps) {
  records_manifest();  // refuses missing flags first
  note_images(task.notes, FLAGS_evaluate.empty() ? training : image_options_of_test(training, testing_steps));
  read_records(task, loader_options(training), [=] {
    check_size_of_test_set(training);
    return loader_options(image_options_of_test(training, testing_steps));
  });
}

}  // namespace paceline::examples

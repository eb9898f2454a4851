#include "images.h"

#include <paceline/manifest.h>

#include <algorithm>

#include "program.h"

DEFINE_string(train, "", "manifest of the training set, written by im2rec");
DEFINE_string(test, "",
              "manifest of the test set; without it nothing is evaluated, and test_accuracy and test_loss are null");
DEFINE_string(decoding, "auto",
              "where images are decoded that a CUDA device computes on: cpu, device (JPEGs by nvJPEG), or auto");
DEFINE_int32(window, 16, "shards whose records are mixed in training; 0: all");
DEFINE_int32(virtual_nodes, 0, "nodes to which the shards are dealt, so that a worker reads the same in every epoch");
DEFINE_int64(global_batch, 0,
             "examples in a training step of all workers together, in place of --batch_size; 0: --batch_size for each");
DEFINE_bool(skip_bad, false, "leave out records that are damaged, instead of ending at the first; the log counts them");

namespace paceline::examples {

const char* const kImageFlags = __FILE__;

std::string images_manifest() {
  require(FLAGS_evaluate.empty() || !FLAGS_test.empty(), "--evaluate needs --test, the manifest to evaluate on");
  require(!FLAGS_evaluate.empty() || !FLAGS_train.empty(), "--train is missing: the manifest that im2rec wrote");
  if (FLAGS_evaluate.empty()) require_readable("train", FLAGS_train);
  return FLAGS_evaluate.empty() ? FLAGS_train : FLAGS_test;
}

namespace {

// A test set of other classes or sizes would be evaluated to a number that means nothing, or fail after an epoch.
void check_test_set(const ImageOptions& images) {
  if (FLAGS_train.empty()) return;
  const Manifest train = Manifest::load(FLAGS_train), test = Manifest::load(FLAGS_test);
  require(test.labels.empty() || train.labels.empty() || test.labels == train.labels, "'", FLAGS_test, "' names ",
          test.labels.size(), " classes, which are not the ", train.labels.size(), " of '", FLAGS_train, "' in order");
  const ImageSize &of_train = train.image, &of_test = test.image;
  const auto text = [](const ImageSize& size) { return str(size.width, " x ", size.height, " x ", size.channels); };
  const bool same_channels = images.channels > 0 || of_test.channels == of_train.channels;
  const bool sized = images.height > 0 || !images.steps.empty();
  const bool same_size = sized || (of_test.height == of_train.height && of_test.width == of_train.width);
  require(same_channels && same_size, "the images of '", FLAGS_test, "' are ", text(of_test), ", but those of '",
          FLAGS_train, "' ", text(of_train), " (width, height, channels; 0: they differ)");
}

RecordLoaderOptions loader_options(const ImageOptions& images) {
  RecordLoaderOptions options;
  options.decoding = parse_decoding(FLAGS_decoding);
  options.on_damage = FLAGS_skip_bad ? OnDamage::kSkip : OnDamage::kFail;
  options.image = images;
  return options;
}

// Images of the test set become of the same size as those of the training set, by these steps.
ImageOptions image_options_of_test(const ImageOptions& training, const std::vector<augment::Step>& steps) {
  ImageOptions options = training;
  options.random_crop = 0;
  options.random_flip = false;
  options.steps = steps;
  if (training.steps.empty()) return options;
  const Shape shape = RecordLoader(FLAGS_train.empty() ? FLAGS_test : FLAGS_train, {.image = training}).batch_shape();
  options.height = static_cast<int>(shape[2]);
  options.width = static_cast<int>(shape[3]);
  const auto normalize = std::ranges::find(training.steps, "normalize", &augment::Step::name);
  if (normalize != training.steps.end() && std::ranges::find(steps, "normalize", &augment::Step::name) == steps.end())
    options.steps.push_back(*normalize);
  return options;
}

}  // namespace

void read_images(Task& task, const ImageOptions& training, const std::vector<augment::Step>& testing_steps) {
  images_manifest();
  RecordLoaderOptions options = loader_options(training);
  options.batch = FLAGS_batch_size;
  options.shuffle = FLAGS_seed;
  options.window = FLAGS_window;
  options.virtual_nodes = FLAGS_virtual_nodes;
  options.global_batch = FLAGS_global_batch;
  task.data = [=](std::shared_ptr<Source> source) mutable {
    options.source = std::move(source);
    return std::make_unique<RecordLoader>(FLAGS_train, options);
  };
  if (FLAGS_test.empty()) return;
  task.test = [=] {
    require_readable("test", FLAGS_test);
    check_test_set(training);
    RecordLoaderOptions testing = loader_options(training);
    testing.batch = 500;
    testing.image = image_options_of_test(training, testing_steps);
    return std::make_unique<RecordLoader>(FLAGS_test, testing);
  };
}

}  // namespace paceline::examples

#include "images.h"

#include "program.h"

DEFINE_string(train, "", "manifest of the training set, written by im2rec");
DEFINE_string(test, "", "manifest of the test set; without it nothing is evaluated, and test_accuracy is null");
DECLARE_string(evaluate);

namespace paceline::examples {

const char* const kImageFlags = __FILE__;

std::string images_manifest() {
  require(FLAGS_evaluate.empty() || !FLAGS_test.empty(), "--evaluate needs --test, the manifest to evaluate on");
  require(!FLAGS_evaluate.empty() || !FLAGS_train.empty(), "--train is missing: the manifest that im2rec wrote");
  return FLAGS_evaluate.empty() ? FLAGS_train : FLAGS_test;
}

void read_images(Task& task, const ImageOptions& training) {
  images_manifest();
  task.data = [=](std::shared_ptr<Source> source) {
    RecordLoaderOptions options;
    options.batch = FLAGS_batch_size;
    options.shuffle = FLAGS_seed;
    options.source = std::move(source);
    options.image = training;
    return std::make_unique<RecordLoader>(FLAGS_train, options);
  };
  if (FLAGS_test.empty()) return;
  task.test = [=] {
    RecordLoaderOptions options;
    options.batch = 500;
    options.image = training;
    options.image.random_crop = 0;
    options.image.random_flip = false;
    return std::make_unique<RecordLoader>(FLAGS_test, options);
  };
}

}  // namespace paceline::examples

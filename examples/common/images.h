#pragma once
// Record files of images as what a Task trains and tests on, by the flags --train, --test, --decoding, --window,
// --virtual_nodes, --global_batch and --skip_bad.

#include <paceline/record_loader.h>

#include "training.h"

namespace paceline::examples {

extern const char* const kImageFlags;

// Fills in the task's data and test. `training` is for the training set. Images of the test set become of the same size
// by the steps of `testing`, or are resized where there are none.
void read_images(Task& task, const ImageOptions& training, const std::vector<augment::Step>& testing = {});
// The manifest to train or, with --evaluate, to evaluate on. Throws InvalidArgument where the flag is missing.
std::string images_manifest();

}  // namespace paceline::examples

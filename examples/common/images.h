#pragma once
// Record files of images as what a Task trains and tests on, by the flags of records.h and --decoding.

#include <paceline/record_loader.h>

#include "records.h"

namespace paceline::examples {

extern const char* const kImageFlags;

// Fills in the task's data and test. `training` is for the training set. Images of the test set become of the same size
// by the steps of `testing`, or are resized where there are none.
void read_images(Task& task, const ImageOptions& training, const std::vector<augment::Step>& testing = {});

}  // namespace paceline::examples

#pragma once
// Record files as what a Task trains and tests on, by the flags --train, --test, --window, --virtual_nodes,
// --global_batch and --skip_bad.

#include <paceline/record_loader.h>

#include <functional>
#include <string>

#include "training.h"

namespace paceline::examples {

// The source file that defines this part's flags.
extern const char* const kRecordFlags;

// The manifest to train or, with --evaluate, to evaluate on. Throws InvalidArgument where the flag is missing.
std::string records_manifest();
// Fills in the task's data and test, with the decoders and images of these options. The flags say all else. `testing`
// is called where the test set is needed; none: the options of training.
void read_records(Task& task, const RecordLoaderOptions& training = {},
                  const std::function<RecordLoaderOptions()>& testing = nullptr);

}  // namespace paceline::examples

#pragma once
// Lets a Task train and test on record files. The flags are --train, --test, --window, --virtual_nodes, --global_batch
// and --skip_bad.

#include <paceline/record_loader.h>

#include <functional>
#include <string>
#include <vector>

#include "training.h"

namespace paceline::examples {

// The source file that defines this part's flags.
extern const char* const kRecordFlags;

// The manifest to train or, with --evaluate, to evaluate on. Throws InvalidArgument where the flag is missing.
std::string records_manifest();
// The arrays of its records, as its decoder says. Throws InvalidArgument where it names none, as that of images.
std::vector<ExampleArray> arrays_of_records();
// Fills in the task's data, and with --test its test. `training` gives the options of the loader. Flags replace those
// for damaged records, and in training those for batch size and order. `testing` gives the options for the test set,
// and is called when that set is needed. If it is null, the test set takes `training`, too.
void read_records(Task& task, const RecordLoaderOptions& training = {},
                  const std::function<RecordLoaderOptions()>& testing = nullptr);

}  // namespace paceline::examples

#include "records.h"

#include <paceline/crc32c.h>
#include <paceline/manifest.h>

#include "program.h"

DEFINE_string(train, "", "manifest of the training set, written by im2rec or to_rec");
DEFINE_string(test, "",
              "manifest of the test set, which each worker of a job needs; without it nothing is evaluated, and "
              "test_accuracy and test_loss are null");
DEFINE_int32(window, 16, "shards whose records are mixed in training; 0: all");
DEFINE_int32(virtual_nodes, 0, "nodes to which the shards are dealt, so that a worker reads the same in every epoch");
DEFINE_int64(global_batch, 0,
             "examples in a training step of all workers together, in place of --batch_size; 0: --batch_size for each");
DEFINE_bool(skip_bad, false, "leave out records that are damaged, instead of ending at the first; the log counts them");

namespace paceline::examples {

const char* const kRecordFlags = __FILE__;

std::string records_manifest() {
  require(FLAGS_evaluate.empty() || !FLAGS_test.empty(), "--evaluate needs --test, the manifest to evaluate on");
  require(!FLAGS_evaluate.empty() || !FLAGS_train.empty(),
          "--train is missing: the manifest that im2rec or to_rec wrote");
  FLAGS_evaluate.empty() ? require_readable("train", FLAGS_train) : require_readable("test", FLAGS_test);
  return FLAGS_evaluate.empty() ? FLAGS_train : FLAGS_test;
}

std::vector<ExampleArray> arrays_of_records() {
  const std::string path = records_manifest();
  const Manifest manifest = Manifest::load(path);
  require(!manifest.decoder.name.empty(), "'", path, "' names no decoder of its records, as a set of images; train on ",
          "images with image_classification, and convert other data with to_rec");
  return decoders::named_in(manifest)()->arrays();
}

namespace {

// A test set of other classes or arrays would be evaluated to a number that means nothing, or fail after an epoch.
void check_test_set() {
  if (FLAGS_train.empty()) return;
  const Manifest train = Manifest::load(FLAGS_train), test = Manifest::load(FLAGS_test);
  require(test.labels.empty() || train.labels.empty() || test.labels == train.labels, "'", FLAGS_test, "' names ",
          test.labels.size(), " classes, which are not the ", train.labels.size(), " of '", FLAGS_train,
          "' in order; convert it with --schema and the .schema.json beside that, or with the same folders of classes");
  require(test.decoder.text() == train.decoder.text(), "the records of '", FLAGS_test, "' are read by '",
          test.decoder.text(), "', and those of '", FLAGS_train, "' by '", train.decoder.text(),
          "'; convert both with the same flags, or one source with --split");
  require(!test.columns_crc32c || !train.columns_crc32c || test.columns_crc32c == train.columns_crc32c, "'", FLAGS_test,
          "' has other columns or categories than '", FLAGS_train,
          "'; convert it with --schema and the .schema.json beside that, or one source with --split");
}

// What numbers in the records stand for.
void note_meaning(nn::Notes& notes, const Manifest& manifest) {
  constexpr std::size_t kShown = 200;
  const std::string names = nlohmann::json(manifest.labels).dump();
  if (!manifest.labels.empty())
    notes["class_names"] =
        names.size() <= kShown ? names : str(manifest.labels.size(), " with the checksum ", crc32c(names));
  if (manifest.columns_crc32c) notes["columns"] = str("checksum ", *manifest.columns_crc32c);
}

}  // namespace

void read_records(Task& task, const RecordLoaderOptions& training,
                  const std::function<RecordLoaderOptions()>& testing) {
  note_meaning(task.notes, Manifest::load(records_manifest()));
  RecordLoaderOptions options = training;
  options.batch = FLAGS_batch_size;
  options.shuffle = FLAGS_seed;
  options.window = FLAGS_window;
  options.virtual_nodes = FLAGS_virtual_nodes;
  options.global_batch = FLAGS_global_batch;
  options.on_damage = FLAGS_skip_bad ? OnDamage::kSkip : OnDamage::kFail;
  task.data = [=](std::shared_ptr<Source> source) mutable {
    options.source = std::move(source);
    return std::make_unique<RecordLoader>(FLAGS_train, options);
  };
  if (FLAGS_test.empty()) return;
  task.test = [training, testing] {
    require_readable("test", FLAGS_test);
    check_test_set();
    RecordLoaderOptions options = testing ? testing() : training;
    options.batch = 500;
    options.on_damage = FLAGS_skip_bad ? OnDamage::kSkip : OnDamage::kFail;
    return std::make_unique<RecordLoader>(FLAGS_test, options);
  };
}

}  // namespace paceline::examples

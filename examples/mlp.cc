// A multi-layer perceptron for the rows of a data set, alone or as a worker of a distributed job. Whatever to_rec made
// the records of (a CSV, LibSVM or JSON file, NumPy arrays), their decoder gives numbers and a class. The loop is in
// common/training.cc.
#include <paceline/manifest.h>

#include <algorithm>

#include "common/program.h"
#include "common/records.h"

DEFINE_string(hidden, "64,64", "widths of the hidden layers");
DEFINE_int32(classes, 0, "classes to tell apart; 0: as many as the manifest counts");

namespace {

using namespace paceline;

std::vector<std::int64_t> widths() {
  std::vector<std::int64_t> result = examples::numbers_of_flag<std::int64_t>("hidden", FLAGS_hidden);
  for (const std::int64_t width : result)
    require(width >= 1, "--hidden is '", FLAGS_hidden, "', expected widths of at least 1");
  return result;
}

std::int64_t class_count(const Manifest& manifest) {
  const std::size_t known = std::max(manifest.labels.size(), manifest.statistics.classes.size());
  require(FLAGS_classes == 0 || FLAGS_classes >= 2, "--classes is ", FLAGS_classes,
          ", expected at least 2, or 0 for the manifest's");
  require(FLAGS_classes > 0 || known > 0, "the data set counts no classes: say with --classes how many there are");
  return FLAGS_classes > 0 ? FLAGS_classes : static_cast<std::int64_t>(known);
}

void check_arrays(const std::string& path) {
  for (const ExampleArray& array : examples::arrays_of_records())
    if (array.name == "label")
      return require(array.dtype == DType::kInt32 && array.shape.ndim() == 0, "the labels of '", path,
                     "' are no classes; convert with --label_type class");
  throw InvalidArgument(str("the records of '", path, "' have no label; convert with --label COLUMN"));
}

// Columns of different scales are normalised by what a batch has of them.
nn::Module network(std::int64_t classes) {
  std::vector<nn::Module> layers{nn::Lambda("Float",
                                            [](const NDArray& x) {
                                              return x.view({x.size(0), -1}).cast(DType::kFloat32);
                                            }),
                                 nn::BatchNorm()};
  for (const std::int64_t width : widths()) {
    layers.push_back(nn::Dense(width));
    layers.push_back(nn::Relu());
  }
  layers.push_back(nn::Dense(classes));
  return nn::Sequential(layers);
}

void train() {
  const std::string path = examples::records_manifest();
  const Manifest manifest = Manifest::load(path);
  check_arrays(path);
  examples::Task task;
  task.network = [classes = class_count(manifest)] { return network(classes); };
  task.unit = "examples";
  examples::read_records(task);
  examples::train_or_evaluate(task);
}

}  // namespace

int main(int argc, char** argv) {
  const examples::Program program{
      .name = "mlp",
      .usage =
          "mlp --train MANIFEST [--test MANIFEST] [flags]\n\n"
          "Trains a multi-layer perceptron on records that to_rec wrote, alone or as a worker of a job:\n"
          "  to_rec --label income --split train=0.8,test=0.2 people people.csv\n"
          "  mlp --train people-train.manifest --test people-test.manifest\n"
          "  launch.py -n 2 -s 2 mlp --kvstore dist_async --train people-train.manifest",
      .flags_of = {__FILE__, examples::kRecordFlags, examples::kTrainingFlags},
      .defaults = {{"optimizer", "adam"}, {"lr", "0.002"}, {"schedule", "cosine"}}};
  return examples::run(program, argc, argv, train);
}

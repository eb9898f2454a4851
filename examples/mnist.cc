// Trains a small network on MNIST, alone or as a worker of a distributed job: the same program, the mode is a flag. The
// loop is in common/training.cc.
#include <paceline/manifest.h>

#include "common/images.h"
#include "common/program.h"

DEFINE_string(
    network, "lenet",
    "lenet (LeNet-5, 61,706 parameters), mlp (784-512-512-10), or one of image_classification that suits small images");

using namespace paceline;

int main(int argc, char** argv) {
  const examples::Program program{
      .name = "mnist",
      .usage =
          "mnist --train MANIFEST [--test MANIFEST] [flags]\n\n"
          "Trains LeNet-5 or an MLP on MNIST, alone or as a worker of a job:\n"
          "  mnist --train train.manifest --test test.manifest\n"
          "  launch.py -n 2 -s 2 mnist --kvstore dist_async --train train.manifest --test test.manifest",
      .flags_of = {__FILE__, examples::kImageFlags, examples::kRecordFlags, examples::kTrainingFlags}};
  return examples::run(program, argc, argv, [] {
    const std::string path = examples::records_manifest();
    const std::size_t classes = Manifest::load(path).labels.size();
    require(classes <= 10, "'", path, "' names ", classes,
            " classes, and the network tells 10 apart; train on it with image_classification");
    examples::Task task;
    const auto network = nn::models::catalog().at(FLAGS_network);
    task.network = [=] { return network(10); };
    task.description = {{"network", FLAGS_network}};
    task.notes = {{"network", FLAGS_network}};
    examples::read_images(task, {.mean = {0.1307f}, .deviation = {0.3081f}});
    examples::train_or_evaluate(task);
  });
}

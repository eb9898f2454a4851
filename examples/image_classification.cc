// Trains a network of the literature on images in record files, alone or as a worker of a distributed job. The loop is
// in common/training.cc, the networks are in <paceline/models.h>.
#include <paceline/manifest.h>
#include <paceline/ops.h>

#include <sstream>

#include "common/images.h"
#include "common/program.h"

DEFINE_string(network, "resnet20", "mlp, lenet, resnet20, resnet50, vgg16 or mobilenet_v2");
DEFINE_int32(classes, 0, "classes to tell apart; 0: as many as the manifest names");
DEFINE_int32(image_size, 0, "resize the images to so many pixels square; 0: as they are");
DEFINE_int32(channels, 0, "convert the images: 1 grey, 3 colour; 0: as they are, and colour where they differ");
DEFINE_string(mean, "",
              "of the pixels, from 0 to 1: one number, or one for each channel as in 0.5,0.4,0.4; '' is MNIST's or "
              "CIFAR-10's, as the channels say");
DEFINE_string(deviation, "", "of the pixels, written as --mean is; '' is that of the same data set");
DEFINE_int32(crop, 0, "cut training images out at random after a border of so many pixels was put around them");
DEFINE_bool(flip, false, "mirror every other training image, drawn at random");
DEFINE_string(augment, "",
              "what is done to training images, instead of --crop and --flip: steps as in "
              "'random_resized_crop(scale=0.2:1);flip;color_jitter(brightness=0.4)'; docs/reference.md lists them");
DEFINE_string(augment_test, "",
              "the same for test images, as in 'resize(short=256);center_crop(size=224)'; '' resizes them to the size "
              "of the training images");
DEFINE_string(devices, "",
              "cut the network into stages that take about equally long, one for each of these devices: cpu:0,cpu:1");
DEFINE_int32(pipeline_micro_batches, 4, "with --devices: parts of a batch that pass through the stages");
DEFINE_double(label_smoothing, 0, "share of each label's weight that is spread over all classes");

namespace {

using namespace paceline;

std::vector<float> numbers(const char* flag, const std::string& text, const std::vector<float>& otherwise) {
  return text.empty() ? otherwise : examples::numbers_of_flag<float>(flag, text);
}

std::int64_t class_count(const Manifest& manifest) {
  require(FLAGS_classes >= 0, "--classes is ", FLAGS_classes, ", expected at least 1, or 0 for the manifest's");
  const auto named = static_cast<std::int64_t>(manifest.labels.size());
  require(FLAGS_classes > 0 || named > 0, "the data set names no classes: say with --classes how many there are");
  require(FLAGS_classes == 0 || FLAGS_classes >= named, "--classes is ", FLAGS_classes, ", but the data set names ",
          named);
  return FLAGS_classes > 0 ? FLAGS_classes : named;
}

std::vector<augment::Step> steps(const char* flag, const std::string& text) {
  try {
    return augment::parse(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(str("--", flag, ": ", error.what()));
  }
}

ImageOptions images(const Manifest& manifest) {
  require(FLAGS_crop >= 0 && FLAGS_image_size >= 0, "--crop and --image_size are numbers of pixels");
  require(FLAGS_channels == 0 || FLAGS_channels == 1 || FLAGS_channels == 3, "--channels is 0, 1 or 3, not ",
          FLAGS_channels);
  const bool grey = (FLAGS_channels ? FLAGS_channels : manifest.image.channels) == 1;
  using Numbers = std::vector<float>;
  ImageOptions options;
  options.height = options.width = FLAGS_image_size;
  options.channels = FLAGS_channels;
  options.mean = numbers("mean", FLAGS_mean, grey ? Numbers{0.1307f} : Numbers{0.4914f, 0.4822f, 0.4465f});
  options.deviation =
      numbers("deviation", FLAGS_deviation, grey ? Numbers{0.3081f} : Numbers{0.2470f, 0.2435f, 0.2616f});
  options.random_crop = FLAGS_crop;
  options.random_flip = FLAGS_flip;
  options.steps = steps("augment", FLAGS_augment);
  if (!options.steps.empty()) options.classes = static_cast<int>(class_count(manifest));
  // A list that says how pixels become numbers needs no flags for it.
  for (const augment::Step& step : options.steps) {
    if (step.name != "normalize") continue;
    require(FLAGS_mean.empty() && FLAGS_deviation.empty(),
            "--augment holds normalize, which --mean and --deviation are for, too: leave one out");
    options.mean = options.deviation = {};
  }
  return options;
}

// Labels of mixed examples are shares of the classes, which smoothing spreads as it does class numbers.
NDArray loss_of(const NDArray& scores, const NDArray& label) {
  const double smoothing = FLAGS_label_smoothing;
  if (!is_floating(label.dtype())) return softmax_cross_entropy(scores, label, {.label_smoothing = smoothing});
  const NDArray shares =
      smoothing > 0 ? label * (1 - smoothing) + smoothing / static_cast<double>(label.size(1)) : label;
  return soft_cross_entropy(scores, shares.cast(scores.dtype()));
}

// The network, in stages where --devices says so.
nn::Module over_devices(const nn::Module& net) {
  if (FLAGS_devices.empty()) return net;
  std::vector<Device> devices;
  std::istringstream names(FLAGS_devices);
  for (std::string name; std::getline(names, name, ',');) devices.emplace_back(std::string_view(name));
  return nn::Pipeline(
      net, devices, {.micro_batches = FLAGS_pipeline_micro_batches, .balance = nn::PipelineOptions::Balance::kSeconds});
}

}  // namespace

int main(int argc, char** argv) {
  const examples::Program program{
      .name = "image_classification",
      .usage =
          "image_classification --network NAME --train MANIFEST [--test MANIFEST] [flags]\n\n"
          "Trains a network on images in record files, alone or as a worker of a job:\n"
          "  image_classification --network resnet20 --crop 4 --flip --train train.manifest --test test.manifest\n"
          "  launch.py -n 2 -s 2 image_classification --kvstore dist_async --train train.manifest",
      .flags_of = {__FILE__, examples::kImageFlags, examples::kRecordFlags, examples::kTrainingFlags}};
  return examples::run(program, argc, argv, [] {
    require(FLAGS_label_smoothing >= 0 && FLAGS_label_smoothing < 1, "--label_smoothing is ", FLAGS_label_smoothing,
            ", expected 0 <= label_smoothing < 1");
    examples::Task task;
    const auto network = nn::models::catalog().at(FLAGS_network);
    const Manifest manifest = Manifest::load(examples::records_manifest());
    require(manifest.class_labels, "the labels of '", examples::records_manifest(),
            "' are no classes; pack the images with class numbers");
    if (FLAGS_devices.empty())
      examples::refuse_without_effect({"pipeline_micro_batches"}, "without --devices");
    else
      examples::refuse_without_effect({"device"}, "with --devices");
    task.captured = FLAGS_devices.empty();
    task.network = [network, classes = class_count(manifest)] { return over_devices(network(classes)); };
    task.loss = loss_of;
    task.description = {{"network", FLAGS_network}};
    task.notes = {{"network", FLAGS_network}};
    examples::read_images(task, images(manifest), steps("augment_test", FLAGS_augment_test));
    examples::train_or_evaluate(task);
  });
}

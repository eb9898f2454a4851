#include <paceline/error.h>

#include <algorithm>

#include "example_decoder.h"

namespace paceline::io {

ExampleFormat image_format(const Manifest& manifest, const std::string& path, const ImageOptions& options) {
  if (manifest.payload != "image") {
    throw Corrupt(str("the manifest ", path, " cannot be used without a decoder: its payload is '", manifest.payload,
                      "', not 'image'; set RecordLoaderOptions::decoder"));
  }
  require(options.channels == 0 || options.channels == 1 || options.channels == 3, "images have 1 or 3 channels, not ",
          options.channels);
  require(options.height >= 0 && options.width >= 0, "images cannot have ", options.width, " x ", options.height,
          " pixels");
  require(options.dtype == DType::kFloat32 || options.dtype == DType::kUint8, "images become float32 or uint8, not ",
          name_of(options.dtype));
  ExampleFormat format;
  // Images that differ in channels all become colour.
  format.channels = options.channels ? options.channels : manifest.image.channels ? manifest.image.channels : 3;
  format.dtype = options.dtype;
  format.label_width = manifest.label_width;
  format.variable_labels = manifest.variable_labels;
  format.class_labels = manifest.class_labels && manifest.label_width == 1;
  format.class_count = options.classes ? static_cast<std::size_t>(options.classes) : manifest.labels.size();
  require(options.classes >= 0 && format.class_count >= manifest.labels.size(), "classes is ", options.classes,
          ", but the manifest ", path, " names ", manifest.labels.size());

  const augment::Size size{options.height ? options.height : manifest.image.height,
                           options.width ? options.width : manifest.image.width};
  const bool known = size.height > 0 && size.width > 0;
  require(known || !options.steps.empty(), "the images of ", path,
          " differ in size: pack them in one (im2rec --center_crop --resize 224), or have the loader resize them "
          "(--image_size 224; ImageOptions::height and width in a program of your own)");
  format.pipeline =
      std::make_shared<const ImagePipeline>(complete_steps(options), known ? size : augment::Size{}, format.channels);
  format.height = format.pipeline->size().height;
  format.width = format.pipeline->size().width;
  require(
      (options.height == 0 || options.height == format.height) && (options.width == 0 || options.width == format.width),
      "the steps make images of ", format.width, " x ", format.height, ", but the size of the examples is to be ",
      size.width, " x ", size.height, " (--image_size; ImageOptions::width and height): leave one out");

  const bool one_class = format.class_labels || manifest.label_width == 1;
  require(one_class || options.boxes.has_value() || !format.pipeline->moves(), "the records of ", path,
          " have several labels, and the steps move pixels: say with ImageOptions::boxes whether the labels are boxes "
          "of MXNet's form for detection, which then move along");
  format.boxes = options.boxes.value_or(false);
  format.box_share = options.box_share;
  format.reduced = options.reduced;
  require(!format.boxes || !one_class, "the records of ", path, " have one label each, which is no box");
  require(format.box_share >= 0 && format.box_share <= 1, "box_share is ", format.box_share, ", expected 0 to 1");
  if (!format.pipeline->mixing().empty()) {
    const std::string_view name = format.pipeline->mixing().front().name();
    require(format.class_labels, "step '", name, "' needs class numbers as labels, which the records of ", path,
            " do not have");
    require(format.class_count > 0, "step '", name, "' needs the number of classes, and the manifest ", path,
            " names none: say it with ImageOptions::classes (--classes)");
  }
  return format;
}

}  // namespace paceline::io

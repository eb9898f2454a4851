#include "augment/image_pipeline.h"

#include <paceline/error.h>
#include <paceline/number.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>

#include "augment/draws.h"

namespace paceline::io {
namespace {

bool mixes(std::string_view name) { return name == "mixup" || name == "cutmix"; }

// The numbers that were meant: 0.1, and not the float nearest to it with all its digits.
std::vector<double> doubles(const std::vector<float>& values) {
  std::vector<double> result;
  for (const float value : values) {
    const std::string digits = exact_text(value);
    std::from_chars(digits.data(), digits.data() + digits.size(), result.emplace_back());
  }
  return result;
}

// Steps after which all images have one size, whatever they had before.
bool makes_a_size(const augment::Step& step) {
  constexpr std::array kNames = {"center_crop", "random_crop", "random_resized_crop", "resize"};
  return std::ranges::find(kNames, step.name) != kNames.end();
}

}  // namespace

std::vector<augment::Step> complete_steps(const ImageOptions& options) {
  std::vector<augment::Step> steps = options.steps;
  require(steps.empty() || (options.random_crop == 0 && !options.random_flip),
          "random_crop and random_flip (--crop, --flip) are the short form of a list of steps, and there is a list: "
          "put random_crop(pad=4) and flip into it");
  require(options.random_crop >= 0, "random_crop is a number of pixels, not ", options.random_crop);
  if (steps.empty()) steps.push_back(augment::resize());
  if (options.random_crop > 0) steps.push_back(augment::random_crop({.pad = options.random_crop}));
  if (options.random_flip) steps.push_back(augment::flip());
  // Images that differ in size become equal first, where no step makes them so.
  if (std::ranges::none_of(steps, makes_a_size)) steps.insert(steps.begin(), augment::resize());

  const bool given = !options.mean.empty() || !options.deviation.empty();
  const bool listed = std::ranges::find(steps, "normalize", &augment::Step::name) != steps.end();
  require(!(given && listed), "mean and deviation are given both in the list of steps and beside it: leave one out");
  require(options.dtype == DType::kFloat32 || (!given && !listed),
          "images of uint8 are pixels as they are, without mean and deviation");
  if (options.dtype != DType::kFloat32 || listed) return steps;
  const bool usual = options.scale == ImageOptions{}.scale;
  const augment::Normalize numbers{doubles(options.mean), doubles(options.deviation),
                                   usual ? augment::Normalize{}.scale : options.scale};
  const auto mixing = std::ranges::find_if(steps, [](const augment::Step& step) { return mixes(step.name); });
  steps.insert(mixing, augment::normalize(numbers));
  return steps;
}

ImagePipeline::ImagePipeline(const std::vector<augment::Step>& steps, augment::Size size, int channels)
    : default_size_(size), channels_(channels) {
  for (const augment::Step& step : steps) add(CheckedStep(step), static_cast<std::size_t>(&step - steps.data()));
  require(size_.height > 0, "the steps '", augment::text(steps),
          "' make images of different sizes: add center_crop(size=224) or another step with a size");
}

void ImagePipeline::add(const CheckedStep& step, std::size_t number) {
  const std::string_view name = step.name();
  if (mixes(name)) {
    mixing_.push_back(step);
    host_only_ = name;
    return;
  }
  require(mixing_.empty(), "step '", name, "' follows a step that mixes a batch: mixup and cutmix stand last");
  if (name == "normalize") {
    require(normalize_.empty(), "step 'normalize' occurs twice");
    normalize_.push_back(step);
    return;
  }
  if (!normalize_.empty()) {
    require(name == "erase", "step '", name, "' follows normalize, which only erase, mixup and cutmix may");
    erasing_.push_back(step);
    host_only_ = name;
    return;
  }
  std::unique_ptr<Action> action = make_geometry(step, default_size_);
  if (!action) action = make_colouring(step, channels_);
  size_ = action->size_after(size_);
  // A device resizes to the size of the examples, then crops with a border and flips, in one go.
  const bool resizes =
      number == 0 && name == "resize" && size_.height == default_size_.height && size_.width == default_size_.width;
  const bool crops = number == 1 && name == "random_crop" && size_.height == default_size_.height &&
                     size_.width == default_size_.width && colour_of(step.list("fill")) == Colour{0, 0, 0};
  if (!resizes && !crops && (name != "flip" || number == 0)) host_only_ = name;
  actions_.push_back(std::move(action));
}

bool ImagePipeline::moves() const {
  return std::ranges::any_of(actions_, [](const auto& action) { return action->moves(); });
}

void ImagePipeline::run(Picture& picture, std::uint64_t seed) const {
  // Each step has numbers of its own, so that what one draws does not change what the others draw.
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    Random random(mix(seed, i));
    actions_[i]->apply(picture, random);
  }
}

void ImagePipeline::finish(float* planes, std::uint64_t seed) const {
  for (std::size_t i = 0; i < erasing_.size(); ++i) {
    const CheckedStep& step = erasing_[i];
    Random random(mix(seed, actions_.size() + i));
    const auto erased = draw_erased(step, size_.height, size_.width, random);
    if (!erased) continue;
    const std::vector<double>& values = step.list("value");
    const bool noise = step.number("noise") != 0;
    for (int c = 0; c < channels_; ++c) {
      const double value = values[std::min(static_cast<std::size_t>(c), values.size() - 1)];
      for (int y = erased->top; y < erased->top + erased->height; ++y) {
        float* const row = planes + (std::ptrdiff_t{c} * size_.height + y) * size_.width + erased->left;
        for (int x = 0; x < erased->width; ++x) row[x] = static_cast<float>(noise ? normal(random) : value);
      }
    }
  }
}

}  // namespace paceline::io

#include <paceline/error.h>
#include <paceline/number.h>

#include <algorithm>
#include <array>

#include "augment/actions.h"
#include "augment/colour.h"
#include "augment/draws.h"

namespace paceline::io {
namespace {

class ColorJitter final : public Action {
 public:
  explicit ColorJitter(const CheckedStep& step) : hue_(step.number("hue")) {
    constexpr std::array kNames = {"brightness", "contrast", "saturation"};
    for (std::size_t i = 0; i < kNames.size(); ++i) ranges_[i] = step.number(kNames[i]);
  }
  void apply(Picture& picture, Random& random) const override {
    std::array<int, 4> order = {0, 1, 2, 3};
    for (int i = 3; i > 0; --i)
      std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(up_to(random, i))]);
    // Every range draws, so that one does not change what the others draw.
    std::array<double, 3> factors;
    for (std::size_t i = 0; i < factors.size(); ++i)
      factors[i] = uniform(random, {std::max(0.0, 1 - ranges_[i]), 1 + ranges_[i]});
    const double shift = uniform(random, {-hue_, hue_});
    for (const int which : order) {
      if (which == 0 && ranges_[0] > 0) adjust_brightness(picture.pixels(), factors[0]);
      if (which == 1 && ranges_[1] > 0) adjust_contrast(picture.pixels(), factors[1]);
      if (which == 2 && ranges_[2] > 0) adjust_saturation(picture.pixels(), factors[2]);
      if (which == 3 && hue_ > 0) adjust_hue(picture.pixels(), shift);
    }
  }

 private:
  std::array<double, 3> ranges_;
  const double hue_;
};

class Lighting final : public Action {
 public:
  explicit Lighting(double deviation) : deviation_(deviation) {}
  void apply(Picture& picture, Random& random) const override {
    // Of the covariance of ImageNet's pixels: the roots of the eigenvalues, and the eigenvectors.
    constexpr std::array kLengths = {55.46, 4.794, 1.148};
    constexpr double kDirections[3][3] = {
        {-0.5675, 0.7192, 0.4009}, {-0.5808, -0.0045, -0.8140}, {-0.5836, -0.6948, 0.4203}};
    std::array<double, 3> noise = {};
    for (std::size_t i = 0; i < kLengths.size(); ++i) {
      const double along = kLengths[i] * deviation_ * normal(random);
      for (std::size_t c = 0; c < noise.size(); ++c) noise[c] += kDirections[c][i] * along;
    }
    add_to_channels(picture.pixels(), noise);
  }

 private:
  const double deviation_;
};

class Grayscale final : public Action {
 public:
  explicit Grayscale(double probability) : probability_(probability) {}
  void apply(Picture& picture, Random& random) const override {
    if (happens(random, probability_)) make_grey(picture.pixels());
  }

 private:
  const double probability_;
};

// In front of normalize(): levels of pixels.
class ErasePixels final : public Action {
 public:
  explicit ErasePixels(const CheckedStep& step)
      : step_(step), colour_(colour_of(step.list("value"))), noise_(step.number("noise") != 0) {
    for (const double level : step.list("value"))
      require(level >= 0 && level <= 255, "step 'erase': value is ", exact_text(level),
              ", expected a level of 0 to 255 where the step stands before normalize");
  }
  void apply(Picture& picture, Random& random) const override {
    const auto erased = draw_erased(step_, picture.height(), picture.width(), random);
    if (!erased) return;
    Image& image = picture.pixels();
    if (!noise_) return fill(image, *erased, colour_);
    const auto row = static_cast<std::size_t>(image.width * image.channels);
    for (int y = erased->top; y < erased->top + erased->height; ++y) {
      std::uint8_t* const pixel =
          image.pixels.data() + static_cast<std::size_t>(y) * row + erased->left * image.channels;
      std::generate_n(pixel, erased->width * image.channels,
                      [&] { return static_cast<std::uint8_t>(random.below(256)); });
    }
  }

 private:
  const CheckedStep step_;
  const Colour colour_;
  const bool noise_;
};

}  // namespace

std::unique_ptr<Action> make_colouring(const CheckedStep& step, int channels) {
  if (step.name() == "color_jitter") return std::make_unique<ColorJitter>(step);
  if (step.name() == "grayscale") return std::make_unique<Grayscale>(step.number("p"));
  if (step.name() == "erase") return std::make_unique<ErasePixels>(step);
  if (step.name() != "lighting") return nullptr;
  require(channels == 3, "step 'lighting' is for images of 3 channels, and these have ", channels);
  return std::make_unique<Lighting>(step.number("deviation"));
}

}  // namespace paceline::io

#include <paceline/error.h>

#include <algorithm>
#include <cmath>

#include "augment/actions.h"
#include "augment/draws.h"

namespace paceline::io {
namespace {

constexpr int kAttempts = 10;

int rounded(double number) { return static_cast<int>(std::lrint(number)); }

augment::Size size_of_step(const CheckedStep& step, augment::Size otherwise) {
  const std::vector<double>& size = step.list("size");
  if (size[0] == 0) {
    require(otherwise.height > 0 && otherwise.width > 0, "step '", step.name(),
            "' names no size, and the images differ in size: write ", step.name(),
            "(size=224), or name the size of all examples (--image_size 224; ImageOptions::height and width)");
    return otherwise;
  }
  require(size.back() != 0, "step '", step.name(), "': size is ", size[0], ":0, expected a height and a width");
  return {static_cast<int>(size.front()), static_cast<int>(size.back())};
}

class Resize final : public Action {
 public:
  explicit Resize(augment::Size size) : size_(size) {}
  void apply(Picture& picture, Random&) const override { picture.resize(size_.height, size_.width); }
  augment::Size size_after(augment::Size) const override { return size_; }

 private:
  const augment::Size size_;
};

class ResizeShort final : public Action {
 public:
  explicit ResizeShort(int pixels) : pixels_(pixels) {}
  void apply(Picture& picture, Random&) const override {
    const int height = picture.height(), width = picture.width(), shorter = std::min(height, width);
    picture.resize(scaled(height, shorter), scaled(width, shorter));
  }
  augment::Size size_after(augment::Size before) const override {
    if (before.height == 0) return {};
    const int shorter = std::min(before.height, before.width);
    return {scaled(before.height, shorter), scaled(before.width, shorter)};
  }

 private:
  int scaled(int side, int shorter) const {
    const std::int64_t length = std::int64_t{pixels_} * side / shorter;
    return static_cast<int>(std::min<std::int64_t>(length, 1 << 30));
  }
  const int pixels_;
};

// Crops of a fixed size.
class CropAction : public Action {
 public:
  explicit CropAction(augment::Size size) : size_(size) {}
  augment::Size size_after(augment::Size) const override { return size_; }
  bool moves() const override { return true; }

 protected:
  const augment::Size size_;
};

class CenterCrop final : public CropAction {
 public:
  using CropAction::CropAction;
  void apply(Picture& picture, Random&) const override {
    picture.crop(
        {begin(picture.height(), size_.height), begin(picture.width(), size_.width), size_.height, size_.width});
  }

 private:
  // Halves are rounded to the even number.
  static int begin(int side, int part) { return part > side ? -((part - side) / 2) : rounded((side - part) / 2.0); }
};

class RandomCrop final : public CropAction {
 public:
  RandomCrop(augment::Size size, int pad, const Colour& fill) : CropAction(size), pad_(pad), fill_(fill) {}
  void apply(Picture& picture, Random& random) const override {
    const int down = picture.height() + 2 * pad_ - size_.height, across = picture.width() + 2 * pad_ - size_.width;
    require(down >= 0 && across >= 0, "an image of ", picture.width(), " x ", picture.height(),
            " is too small for a random crop of ", size_.width, " x ", size_.height, " after a border of ", pad_,
            " pixels: put resize before random_crop, or random_resized_crop in its place");
    const int top = up_to(random, down) - pad_, left = up_to(random, across) - pad_;
    picture.crop({top, left, size_.height, size_.width}, fill_);
  }

 private:
  const int pad_;
  const Colour fill_;
};

class RandomResizedCrop final : public CropAction {
 public:
  RandomResizedCrop(augment::Size size, augment::Interval scale, augment::Interval ratio)
      : CropAction(size), scale_(scale), ratio_(ratio) {}
  void apply(Picture& picture, Random& random) const override {
    picture.crop(draw(picture.height(), picture.width(), random));
    picture.resize(size_.height, size_.width);
  }

 private:
  Rectangle draw(int height, int width, Random& random) const {
    const double area = static_cast<double>(height) * width;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const double part = area * uniform(random, scale_), ratio = log_uniform(random, ratio_);
      const int across = rounded(std::sqrt(part * ratio)), down = rounded(std::sqrt(part / ratio));
      if (across < 1 || down < 1 || across > width || down > height) continue;
      const int top = up_to(random, height - down);
      return {top, up_to(random, width - across), down, across};
    }
    const double ratio = std::clamp(static_cast<double>(width) / height, ratio_.low, ratio_.high);
    const int across = std::clamp(rounded(height * ratio), 1, width);
    const int down = std::clamp(rounded(width / ratio), 1, height);
    return {(height - down) / 2, (width - across) / 2, down, across};
  }

  const augment::Interval scale_, ratio_;
};

class Pad final : public Action {
 public:
  Pad(int pixels, const Colour& fill) : pixels_(pixels), fill_(fill) {}
  void apply(Picture& picture, Random&) const override {
    picture.crop({-pixels_, -pixels_, picture.height() + 2 * pixels_, picture.width() + 2 * pixels_}, fill_);
  }
  augment::Size size_after(augment::Size before) const override {
    if (before.height == 0) return {};
    return {before.height + 2 * pixels_, before.width + 2 * pixels_};
  }
  bool moves() const override { return true; }

 private:
  const int pixels_;
  const Colour fill_;
};

class Flip final : public Action {
 public:
  Flip(double probability, bool vertical) : probability_(probability), vertical_(vertical) {}
  void apply(Picture& picture, Random& random) const override {
    if (!happens(random, probability_)) return;
    if (vertical_)
      picture.turn_upside_down();
    else
      picture.mirror();
  }
  bool moves() const override { return true; }

 private:
  const double probability_;
  const bool vertical_;
};

// rotate() and affine().
class Warp final : public Action {
 public:
  explicit Warp(const CheckedStep& step)
      : step_(step), nearest_(step.number("nearest") != 0), fill_(colour_of(step.list("fill"))) {}
  void apply(Picture& picture, Random& random) const override {
    AffineParameters drawn;
    drawn.degrees = uniform(random, step_.interval("degrees"));
    if (step_.name() == "rotate") {
      drawn.degrees = -drawn.degrees;  // counter-clockwise
    } else {
      const auto shift = [&](double share, int side) {
        return std::nearbyint(uniform(random, {-share * side, share * side}));
      };
      drawn.across = shift(step_.list("translate")[0], picture.width());
      drawn.down = shift(step_.list("translate")[1], picture.height());
      drawn.scale = uniform(random, step_.interval("scale"));
      drawn.shear_across = uniform(random, step_.interval("shear"));
      drawn.shear_down = uniform(random, step_.interval("shear_down"));
    }
    picture.warp(affine_map(drawn, picture.height(), picture.width()), nearest_, fill_);
  }
  bool moves() const override { return true; }

 private:
  const CheckedStep step_;
  const bool nearest_;
  const Colour fill_;
};

}  // namespace

Colour colour_of(const std::vector<double>& levels) {
  Colour colour;
  for (std::size_t c = 0; c < colour.size(); ++c)
    colour[c] = static_cast<std::uint8_t>(std::lrint(std::clamp(levels[std::min(c, levels.size() - 1)], 0.0, 255.0)));
  return colour;
}

std::optional<Rectangle> draw_erased(const CheckedStep& step, int height, int width, Random& random) {
  if (!happens(random, step.number("p"))) return {};
  const double area = static_cast<double>(height) * width;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const double part = area * uniform(random, step.interval("scale"));
    const double ratio = log_uniform(random, step.interval("ratio"));
    const int down = rounded(std::sqrt(part * ratio)), across = rounded(std::sqrt(part / ratio));
    if (down < 1 || across < 1 || down >= height || across >= width) continue;
    const int top = up_to(random, height - down);
    return Rectangle{top, up_to(random, width - across), down, across};
  }
  return {};
}

std::unique_ptr<Action> make_geometry(const CheckedStep& step, augment::Size size) {
  const std::string_view name = step.name();
  if (name == "resize" && step.number("short") > 0)
    return std::make_unique<ResizeShort>(static_cast<int>(step.number("short")));
  if (name == "resize") return std::make_unique<Resize>(size_of_step(step, size));
  if (name == "center_crop") return std::make_unique<CenterCrop>(size_of_step(step, size));
  if (name == "random_crop")
    return std::make_unique<RandomCrop>(size_of_step(step, size), static_cast<int>(step.number("pad")),
                                        colour_of(step.list("fill")));
  if (name == "random_resized_crop")
    return std::make_unique<RandomResizedCrop>(size_of_step(step, size), step.interval("scale"),
                                               step.interval("ratio"));
  if (name == "pad")
    return std::make_unique<Pad>(static_cast<int>(step.number("pixels")), colour_of(step.list("fill")));
  if (name == "flip" || name == "flip_vertical")
    return std::make_unique<Flip>(step.number("p"), name == "flip_vertical");
  if (name == "rotate" || name == "affine") return std::make_unique<Warp>(step);
  return nullptr;
}

}  // namespace paceline::io

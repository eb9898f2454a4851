#include "augment/boxes.h"

#include <paceline/error.h>

#include <algorithm>
#include <cmath>

namespace paceline::io {

Boxes::Boxes(std::span<const float> labels, int height, int width)
    : labels_(labels.begin(), labels.end()), height_(height), width_(width) {
  constexpr float kLeastHeader = 2, kLeastObject = 5;
  const auto damaged = [&](const std::string& what) {
    throw Corrupt(str("its labels are no boxes: ", what,
                      "; MXNet's labels for detection are the length of the header, the length of an object, and "
                      "objects of class, left, top, right, bottom"));
  };
  if (labels.size() < 2) damaged(str("there are ", labels.size()));
  const auto whole = [&](float number, float least) {
    return number >= least && number <= static_cast<float>(labels.size()) && number == std::floor(number);
  };
  if (!whole(labels[0], kLeastHeader)) damaged(str("the header has length ", labels[0]));
  if (!(labels[1] >= kLeastObject) || labels[1] != std::floor(labels[1]) || labels[1] > 1e6f)
    damaged(str("an object has length ", labels[1]));
  header_ = static_cast<std::size_t>(labels[0]);
  object_ = static_cast<std::size_t>(labels[1]);
  if ((labels.size() - header_) % object_ != 0)
    damaged(str(labels.size() - header_, " numbers are no objects of length ", labels[1]));
  for (std::size_t i = 0; header_ + i * object_ < labels.size(); ++i) {
    const std::span<const float> object = labels.subspan(header_ + i * object_, object_);
    // What fills up a row in place of an object.
    if (object[0] < 0) continue;
    Box box{object[1] * static_cast<double>(width),
            object[2] * static_cast<double>(height),
            object[3] * static_cast<double>(width),
            object[4] * static_cast<double>(height),
            1,
            i};
    if (!(box.left <= box.right && box.top <= box.bottom && std::isfinite(box.right) && std::isfinite(box.bottom)))
      damaged(
          str("object ", i, " reaches from (", object[1], ", ", object[2], ") to (", object[3], ", ", object[4], ")"));
    boxes_.push_back(box);
  }
}

void Boxes::move(const AffineMap& map, int height, int width) {
  height_ = height;
  width_ = width;
  for (Box& box : boxes_) {
    const Point corners[] = {map(box.left, box.top), map(box.right, box.top), map(box.left, box.bottom),
                             map(box.right, box.bottom)};
    const auto [left, right] = std::ranges::minmax(corners, {}, &Point::x);
    const auto [top, bottom] = std::ranges::minmax(corners, {}, &Point::y);
    const double area = (right.x - left.x) * (bottom.y - top.y);
    box.left = std::clamp(left.x, 0.0, static_cast<double>(width));
    box.right = std::clamp(right.x, 0.0, static_cast<double>(width));
    box.top = std::clamp(top.y, 0.0, static_cast<double>(height));
    box.bottom = std::clamp(bottom.y, 0.0, static_cast<double>(height));
    const double left_over = (box.right - box.left) * (box.bottom - box.top);
    box.share *= area > 0 ? left_over / area : 0;
  }
}

void Boxes::write(double least_share, float filler, std::span<float> to) const {
  std::size_t end = std::min(header_, to.size());
  std::copy_n(labels_.begin(), end, to.begin());
  for (const Box& box : boxes_) {
    if (box.share < least_share || box.share <= 0) continue;
    std::copy_n(labels_.begin() + static_cast<std::ptrdiff_t>(header_ + box.object * object_), object_, &to[end]);
    to[end + 1] = static_cast<float>(box.left / width_);
    to[end + 2] = static_cast<float>(box.top / height_);
    to[end + 3] = static_cast<float>(box.right / width_);
    to[end + 4] = static_cast<float>(box.bottom / height_);
    end += object_;
  }
  std::fill(to.begin() + static_cast<std::ptrdiff_t>(end), to.end(), filler);
}

}  // namespace paceline::io

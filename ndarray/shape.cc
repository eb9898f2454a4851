#include <paceline/shape.h>

#include <algorithm>
#include <ostream>

namespace paceline {

Shape::Shape(std::span<const std::int64_t> sizes) {
  require(sizes.size() <= static_cast<std::size_t>(kMaxDims), "an array has at most ", kMaxDims, " dimensions, got ",
          sizes.size());
  std::copy(sizes.begin(), sizes.end(), values_.begin());
  ndim_ = static_cast<int>(sizes.size());
}

void Shape::push_back(std::int64_t size) {
  require(ndim_ < kMaxDims, "an array has at most ", kMaxDims, " dimensions");
  values_[static_cast<std::size_t>(ndim_++)] = size;
}

std::int64_t Shape::size() const {
  std::int64_t product = 1;
  bool fits = true;
  for (const std::int64_t size : *this) fits &= !__builtin_mul_overflow(product, size, &product);
  require(fits, "shape ", *this, " has more elements than any memory");
  return product;
}

std::string Shape::text() const {
  std::string text = "(";
  for (int i = 0; i < ndim_; ++i) text += (i ? ", " : "") + std::to_string((*this)[i]);
  return text + (ndim_ == 1 ? ",)" : ")");
}

bool operator==(const Shape& a, const Shape& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.text(); }

Strides row_major(const Shape& shape) {
  Strides strides = shape;
  std::int64_t step = 1;
  for (int i = shape.ndim() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<std::int64_t>(shape[i], 1);
  }
  return strides;
}

bool is_dense(const Shape& shape, const Strides& strides) {
  if (shape.size() == 0) return true;
  std::array<std::int64_t, Shape::kMaxDims> steps{};
  std::array<std::int64_t, Shape::kMaxDims> sizes{};
  std::size_t count = 0;
  for (int i = 0; i < shape.ndim(); ++i) {
    if (shape[i] == 1) continue;
    std::size_t at = count++;
    for (; at > 0 && steps[at - 1] > strides[i]; --at) {
      steps[at] = steps[at - 1];
      sizes[at] = sizes[at - 1];
    }
    steps[at] = strides[i];
    sizes[at] = shape[i];
  }
  std::int64_t step = 1;
  for (std::size_t i = 0; i < count; ++i) {
    if (steps[i] != step) return false;
    step *= sizes[i];
  }
  return true;
}

Shape broadcast(const Shape& a, const Shape& b) {
  const Shape& longer = a.ndim() >= b.ndim() ? a : b;
  const Shape& shorter = a.ndim() >= b.ndim() ? b : a;
  Shape result = longer;
  const int offset = longer.ndim() - shorter.ndim();
  for (int i = 0; i < shorter.ndim(); ++i) {
    std::int64_t& size = result[i + offset];
    require(size == shorter[i] || size == 1 || shorter[i] == 1, "shapes ", a, " and ", b,
            " do not broadcast: sizes must match from the right, or be 1");
    if (size == 1) size = shorter[i];
  }
  return result;
}

Strides broadcast_strides(const Shape& shape, const Strides& strides, const Shape& target) {
  const int offset = target.ndim() - shape.ndim();
  require(offset >= 0, "shape ", shape, " does not broadcast to ", target, ": it has more dimensions");
  Strides result = target;
  for (int i = 0; i < target.ndim(); ++i) {
    const bool same = i >= offset && shape[i - offset] == target[i];
    require(same || i < offset || shape[i - offset] == 1, "shape ", shape, " does not broadcast to ", target);
    result[i] = same ? strides[i - offset] : 0;
  }
  return result;
}

int normalize_axis(int axis, int ndim, const char* who) {
  require(axis >= -ndim && axis < ndim, "[", who, "] axis ", axis, " is outside an array of ", ndim, " dimensions");
  return axis < 0 ? axis + ndim : axis;
}

}  // namespace paceline

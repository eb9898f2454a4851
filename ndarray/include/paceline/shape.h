#pragma once
// Sizes and strides of an array, in elements. At most 8 dimensions, sizes 64-bit.

#include <paceline/error.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace paceline {

class Shape {
 public:
  static constexpr int kMaxDims = 8;

  Shape() = default;  // 0 dimensions: a scalar, one element
  Shape(std::initializer_list<std::int64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}
  // Throws InvalidArgument for more than 8 dimensions.
  explicit Shape(std::span<const std::int64_t> sizes);

  int ndim() const { return ndim_; }
  std::int64_t operator[](int i) const { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t& operator[](int i) { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t back() const { return (*this)[ndim_ - 1]; }
  void push_back(std::int64_t size);
  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + ndim_; }
  std::int64_t* begin() { return values_.data(); }
  std::int64_t* end() { return values_.data() + ndim_; }

  // Product of the sizes; 1 for a scalar. Throws InvalidArgument where it is 2^63 or more.
  std::int64_t size() const;
  std::string text() const;  // "(2, 3)"
  friend bool operator==(const Shape& a, const Shape& b);

 private:
  std::array<std::int64_t, kMaxDims> values_{};
  int ndim_ = 0;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape);

// Distance in elements between neighbours along each dimension; same length as the shape.
using Strides = Shape;

// Strides of a dense row-major array.
Strides row_major(const Shape& shape);

// Do these strides describe a dense array without holes in some order of dimensions?
bool is_dense(const Shape& shape, const Strides& strides);

// NumPy's rule: sizes match from the right, or one of them is 1. Throws InvalidArgument naming both shapes.
Shape broadcast(const Shape& a, const Shape& b);

// Strides that read `shape` as if it had `target`'s shape (stride 0 along broadcast dimensions).
Strides broadcast_strides(const Shape& shape, const Strides& strides, const Shape& target);

// Turns a negative axis into its positive form; throws InvalidArgument naming `who` when it is outside.
int normalize_axis(int axis, int ndim, const char* who);

}  // namespace paceline

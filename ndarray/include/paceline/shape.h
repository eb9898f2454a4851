#pragma once
// Sizes and strides of arrays.

#include <paceline/error.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace paceline {

// The sizes of an array along its axes, in elements: 64-bit numbers, at most 8 of them.
class Shape {
 public:
  static constexpr int kMaxDims = 8;  // the most axes

  Shape() = default;  // no axes: a scalar, which has one element
  // These sizes. Throws InvalidArgument for more than 8.
  Shape(std::initializer_list<std::int64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}
  explicit Shape(std::span<const std::int64_t> sizes);

  int ndim() const { return ndim_; }  // the number of axes
  // The size of axis i. The caller ensures that axis i exists; nothing checks it.
  std::int64_t operator[](int i) const { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t& operator[](int i) { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t back() const { return (*this)[ndim_ - 1]; }  // the size of the last axis; there must be one
  void push_back(std::int64_t size);                        // adds an axis; throws InvalidArgument beyond 8
  // The sizes as a range.
  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + ndim_; }
  std::int64_t* begin() { return values_.data(); }
  std::int64_t* end() { return values_.data() + ndim_; }

  // The product of the sizes; 1 for a scalar. Throws InvalidArgument where it is 2^63 or more.
  std::int64_t size() const;
  std::string text() const;  // "(2, 3)"
  friend bool operator==(const Shape& a, const Shape& b);

 private:
  std::array<std::int64_t, kMaxDims> values_{};
  int ndim_ = 0;
};

// Prints text().
std::ostream& operator<<(std::ostream& out, const Shape& shape);

// The distance in elements between neighbours along each axis; as many as the shape has sizes.
using Strides = Shape;

// Strides of a dense row-major array.
Strides row_major(const Shape& shape);

// Do these strides describe an array without holes, in some order of its axes?
bool is_dense(const Shape& shape, const Strides& strides);

// The shape of a result by NumPy's rule: sizes are equal from the right, or one of them is 1. Throws InvalidArgument
// naming both shapes.
Shape broadcast(const Shape& a, const Shape& b);

// The strides that read an array of `shape` and `strides` as if it had the shape `target`: 0 along broadcast axes.
Strides broadcast_strides(const Shape& shape, const Strides& strides, const Shape& target);

// The axis, counted from the front: a negative one counts from the back. Throws InvalidArgument naming `who` where
// there is no such axis.
int normalize_axis(int axis, int ndim, const char* who);

}  // namespace paceline

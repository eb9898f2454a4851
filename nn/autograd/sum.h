#pragma once
// The gradient of one value while its parts are summed.

#include <paceline/detail/layout.h>
#include <paceline/row_sparse.h>

#include <vector>

namespace paceline {

NDArray to_dense(const Gradient& gradient);

// The gradient of an array that shows elements of a value, or of several in one block of memory. What they need of it
// in common is made once.
class GradientPart {
 public:
  GradientPart(Gradient of_array, const detail::Layout& layout) : gradient(std::move(of_array)), at(layout) {}

  // Where every element counts once, though the array may show it several times.
  struct Once {
    NDArray gradient;
    detail::Layout at;
  };
  const Once& once();
  // Of all elements from the first to the last, in the order of memory; zeros where the array shows none.
  const NDArray& block();

  const Gradient gradient;
  const detail::Layout at;

 private:
  Once once_ = {};
  NDArray block_ = {};
};

class Sum {
 public:
  Sum() = default;
  // Of a value with this layout. `owned`: nobody else uses the memory of `gradient`, so it may be added to in place.
  explicit Sum(const detail::Layout& layout) : layout_(layout) {}
  Sum(const detail::Layout& layout, Gradient gradient, bool owned)
      : layout_(layout), gradient_(std::move(gradient)), owned_(owned) {}

  bool is_none() const { return gradient_.is_none() && placed_.empty(); }

  // `part` is of the value's block: all of the value, some of its elements, or more. `owned`: nobody else uses its
  // memory.
  void add(GradientPart& part, bool owned = false);
  void add(Gradient part, const detail::Layout& at, bool owned = false);

  // The whole sum; is_none() where there is no part.
  const Gradient& gradient();
  // Of the elements with this layout, which the value has. The memory may be that of the sum.
  NDArray at(const detail::Layout& layout);
  // Makes the gradient of these elements zero.
  void clear(const detail::Layout& layout);

 private:
  void add_whole(Gradient part, bool owned);
  NDArray new_sum(const NDArray& a, const NDArray& b) const;
  void place(const NDArray& part, const detail::Layout& at);
  void settle();
  void make_flat();

  detail::Layout layout_;
  Gradient gradient_ = {};
  bool owned_ = false;
  // The gradients of all elements between the value's first and last one, in the order of memory, where parts of the
  // value were added; gradient_ is a view of it, and owned. Elements outside of the value hold anything.
  NDArray flat_ = {};
  // While parts that have no element in common are placed in flat_, the rest is not initialised and gradient_ is none.
  std::vector<detail::Layout> placed_ = {};
};

}  // namespace paceline

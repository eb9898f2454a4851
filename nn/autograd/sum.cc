#include "autograd/sum.h"

#include <paceline/detail/array_builder.h>
#include <paceline/ops.h>

#include <algorithm>
#include <tuple>

namespace paceline {

using detail::Layout;

namespace {

// All elements from the first to the last of `layout`, in the order of memory.
NDArray new_block(const Layout& layout, const NDArray& like) {
  return NDArray({layout.end() - layout.offset}, like.dtype(), like.device(), like.engine());
}

// A view of the elements of `layout` in a block that begins with element `first`.
NDArray view_of(const NDArray& block, const Layout& layout, std::int64_t first) {
  return ArrayBuilder::view(block, layout.offset - first, layout.shape, layout.strides, block.dtype());
}

// A broadcast view shows an element several times: its gradient is the sum of theirs.
std::pair<NDArray, Layout> each_once(const NDArray& part, Layout at) {
  bool repeats = false;
  for (int i = 0; i < at.shape.ndim(); ++i) {
    if (at.strides[i] != 0 || at.shape[i] == 1) continue;
    repeats = true;
    at.shape[i] = 1;
  }
  return {repeats ? sum_to(part, at.shape) : part, at};
}

}  // namespace

NDArray to_dense(const Gradient& gradient) {
  if (!gradient.is_sparse()) return gradient.dense;
  const RowSparse& rows = gradient.sparse;
  const NDArray dense = NDArray::zeros(rows.shape, rows.values.dtype(), rows.values.device(), rows.values.engine());
  scatter_add(dense, rows);
  return dense;
}

const GradientPart::Once& GradientPart::once() {
  if (once_.gradient.is_none()) std::tie(once_.gradient, once_.at) = each_once(to_dense(gradient), at);
  return once_;
}

const NDArray& GradientPart::block() {
  if (!block_.is_none()) return block_;
  const auto& [dense, where] = once();
  const std::int64_t size = where.end() - where.offset;
  if (where.shape.size() == size && dense.is_contiguous() && where.strides == row_major(where.shape)) {
    block_ = dense.view({-1});
  } else {
    block_ = NDArray::zeros({size}, dense.dtype(), dense.device(), dense.engine());
    view_of(block_, where, where.offset).copy_from(dense);
  }
  return block_;
}

void Sum::add(Gradient part, const Layout& at, bool owned) {
  GradientPart one(std::move(part), at);
  add(one, owned);
}

void Sum::add(GradientPart& part, bool owned) {
  if (part.at == layout_) return add_whole(part.gradient, owned);
  const auto& [dense, where] = part.once();
  if (where.shape.size() == 0) return;
  if (where.offset >= layout_.offset && where.end() <= layout_.end()) return place(dense, where);
  // The array shows more than the value. Its gradient, laid out as its memory, holds the value's.
  if (where.offset <= layout_.offset && layout_.end() <= where.end()) {
    const NDArray& block = part.block();
    return add_whole(view_of(block, layout_, where.offset - ArrayBuilder::offset(block)), false);
  }
  const Layout all = detail::hull(where, layout_);
  const NDArray block = NDArray::zeros(all.shape, dense.dtype(), dense.device(), dense.engine());
  view_of(block, where, all.offset).copy_from(dense);
  add_whole(view_of(block, layout_, all.offset), false);
}

void Sum::add_whole(Gradient part, bool owned) {
  settle();
  if (gradient_.is_none()) {
    gradient_ = std::move(part);
    owned_ = owned;
    flat_ = {};
  } else if (gradient_.is_sparse() && part.is_sparse()) {
    const RowSparse &a = gradient_.sparse, &b = part.sparse;
    gradient_ = RowSparse{concat({a.rows, b.rows}, 0), concat({a.values, b.values}, 0), a.shape};
  } else {
    const NDArray a = to_dense(gradient_), b = to_dense(part);
    const bool in_place = owned_ && !gradient_.is_sparse();
    const NDArray out = in_place ? a : new_sum(a, b);
    kernels::add(a, b, out);
    gradient_ = out;
    owned_ = true;
  }
}

// Memory for a + b, which lies as the two do, or as the value does where they differ: the operators that computed the
// value and read this gradient would copy another order of axes.
NDArray Sum::new_sum(const NDArray& a, const NDArray& b) const {
  Layout like = layout_;
  if (a.strides() == b.strides()) like = Layout::of(a);
  if (!is_dense(like.shape, like.strides)) return NDArray(a.shape(), a.dtype(), a.device(), a.engine());
  return view_of(new_block(like, a), like, like.offset);
}

// Puts the gradient of some of the value's elements into flat_.
void Sum::place(const NDArray& part, const Layout& at) {
  if (is_none()) flat_ = new_block(layout_, part);
  const auto overlaps = [&](const Layout& other) { return detail::may_overlap(other, at); };
  if (gradient_.is_none() && std::ranges::none_of(placed_, overlaps)) {
    view_of(flat_, at, layout_.offset).copy_from(part);
    placed_.push_back(at);
    return;
  }
  settle();
  make_flat();
  const NDArray target = view_of(flat_, at, layout_.offset);
  kernels::add(target, part, target);
}

// Ends the placing of parts.
void Sum::settle() {
  if (placed_.empty()) return;
  std::int64_t count = 0;
  for (const Layout& part : placed_) count += part.shape.size();
  if (count < layout_.shape.size() || !is_dense(layout_.shape, layout_.strides)) {
    const NDArray parts = flat_;
    flat_ = NDArray::zeros(parts.shape(), parts.dtype(), parts.device(), parts.engine());
    for (const Layout& part : placed_)
      view_of(flat_, part, layout_.offset).copy_from(view_of(parts, part, layout_.offset));
  }
  placed_.clear();
  gradient_ = view_of(flat_, layout_, layout_.offset);
  owned_ = true;
}

void Sum::make_flat() {
  if (owned_ && !flat_.is_none()) return;
  const NDArray whole = to_dense(gradient_);
  flat_ = new_block(layout_, whole);
  gradient_ = view_of(flat_, layout_, layout_.offset);
  gradient_.dense.copy_from(whole);
  owned_ = true;
}

const Gradient& Sum::gradient() {
  settle();
  return gradient_;
}

NDArray Sum::at(const Layout& layout) {
  settle();
  if (layout == layout_) return to_dense(gradient_);
  make_flat();
  return view_of(flat_, layout, layout_.offset);
}

void Sum::clear(const Layout& layout) {
  settle();
  make_flat();
  view_of(flat_, layout, layout_.offset).fill(0);
}

}  // namespace paceline

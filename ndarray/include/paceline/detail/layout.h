#pragma once
// Which elements of a block of memory an array shows, without holding the memory.

#include <paceline/ndarray.h>

#include <utility>

namespace paceline::detail {

struct Layout {
  std::int64_t offset = 0;  // in elements, from the beginning of the block
  Shape shape = {};
  Strides strides = {};
  DType dtype = DType::kFloat32;

  static Layout of(const NDArray& array);
  // One behind the last element that it shows, in elements; `offset` where it shows none.
  std::int64_t end() const;
  friend bool operator==(const Layout&, const Layout&) = default;
};

// May the two, of one block, have an element in common? False only where they certainly have none: where their ranges
// of memory are disjoint, or where both are boxes of one larger array and the boxes are disjoint.
bool may_overlap(const Layout& a, const Layout& b);

// Does `outer` certainly show every element of `inner`? Both are of one block.
bool covers(const Layout& outer, const Layout& inner);

// Does the array show an element more than once (broadcast_to)?
bool repeats_elements(const NDArray& array);

// All elements from the first to the last of the two.
Layout hull(const Layout& a, const Layout& b);

// All elements of the array's block, in its type.
Layout whole_block(const NDArray& array);

// The number of writes to the array's block so far.
std::uint64_t writes_to(const NDArray& array);
// Has any write after the first `count` touched an element of the array, and of `within`, in its block? Also true where
// that is no longer known.
bool written_since(const NDArray& array, std::uint64_t count);
bool written_since(const NDArray& array, std::uint64_t count, const Layout& within);
// The same of `layout` in the array's block, but for the latest write.
bool written_before_the_latest(const NDArray& array, std::uint64_t count, const Layout& layout);

// While one of these lives, blocks note which of their elements each write touches. Before the first one, and without
// any, all writes count as writes to the whole block.
class NotesWrites {
 public:
  NotesWrites();
  ~NotesWrites();
  NotesWrites(const NotesWrites&) = delete;
  NotesWrites& operator=(const NotesWrites&) = delete;
};

}  // namespace paceline::detail

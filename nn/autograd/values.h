#pragma once
// The values that a Tape follows. A value is what some elements of a block of memory hold between two writes.

#include <paceline/detail/layout.h>

#include <unordered_map>
#include <vector>

namespace paceline {

using ValueId = std::size_t;
using ValueIds = std::vector<ValueId>;

struct Value {
  static constexpr std::size_t kWatched = static_cast<std::size_t>(-1);

  Variable variable;  // of the block; held, so that no other block gets it
  detail::Layout layout;
  std::uint64_t writes;  // to the block, after which the value was there; the later ones that a Tape saw left it alone
  std::size_t made_by;   // the number of the entry that computes it, or kWatched
};

class Values {
 public:
  const Value& operator[](ValueId id) const { return values_[id]; }

  // The values of which `array` shows elements now. Throws InvalidArgument "[who] ..." where one that is computed was
  // overwritten without the Tape being told.
  ValueIds shown_by(const NDArray& array, const char* who) const;
  // The values that the block holds now and that have elements in common with `layout`.
  ValueIds under(const NDArray& array, const detail::Layout& layout) const;

  // A value that its block does not hold, or not yet.
  ValueId add(const NDArray& array, std::size_t made_by) { return add(array, detail::Layout::of(array), made_by); }
  ValueId add(const NDArray& array, const detail::Layout& layout, std::size_t made_by);
  // It holds elements of a value that was there after that many writes.
  void has_seen(ValueId id, std::uint64_t writes);
  // Its block holds it from now on.
  void enter(ValueId id);
  // Its block does not hold it any more.
  void leave(ValueId id);
  // The latest write to the block of `array` is one that the Tape knows of.
  void saw_write(const NDArray& array);
  void clear();

 private:
  std::vector<Value> values_;
  std::unordered_map<const detail::VariableState*, ValueIds> held_;
};

}  // namespace paceline

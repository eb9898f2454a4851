#include "autograd/values.h"

#include <paceline/detail/array_builder.h>

#include <algorithm>

namespace paceline {

using detail::Layout;

ValueIds Values::under(const NDArray& array, const Layout& layout) const {
  ValueIds found;
  if (array.is_none()) return found;
  const auto held = held_.find(array.variable().state());
  if (held == held_.end()) return found;
  for (const ValueId id : held->second)
    if (detail::may_overlap(values_[id].layout, layout)) found.push_back(id);
  return found;
}

ValueIds Values::shown_by(const NDArray& array, const char* who) const {
  if (array.is_none() || held_.empty() || ArrayBuilder::is_stopped(array)) return {};
  ValueIds found = under(array, Layout::of(array));
  if (array.size() == 0)
    if (const auto held = held_.find(array.variable().state()); held != held_.end()) found = held->second;
  for (const ValueId id : found)
    require(
        values_[id].made_by == Value::kWatched || !detail::written_since(array, values_[id].writes, values_[id].layout),
        "[", who, "] ", array.describe(),
        " is computed from watched arrays, and was written since by something that a Tape does not see: a task, a "
        "kernel, or an operator with recording off; write with operators, copy_from() or fill(), or into a copy");
  return found;
}

ValueId Values::add(const NDArray& array, const Layout& layout, std::size_t made_by) {
  values_.push_back({array.variable(), layout, detail::writes_to(array), made_by});
  return values_.size() - 1;
}

void Values::has_seen(ValueId id, std::uint64_t writes) { values_[id].writes = std::min(values_[id].writes, writes); }

void Values::enter(ValueId id) { held_[values_[id].variable.state()].push_back(id); }

void Values::leave(ValueId id) {
  const auto held = held_.find(values_[id].variable.state());
  if (held == held_.end()) return;
  const auto place = std::ranges::find(held->second, id);
  if (place != held->second.end()) held->second.erase(place);
  if (held->second.empty()) held_.erase(held);
}

void Values::saw_write(const NDArray& array) {
  const auto held = held_.find(array.variable().state());
  if (held == held_.end()) return;
  // A value that another write may have touched stays behind, so that reading it, or what becomes of it, is an error.
  for (const ValueId id : held->second) {
    Value& value = values_[id];
    if (!detail::written_before_the_latest(array, value.writes, value.layout)) value.writes = detail::writes_to(array);
  }
}

void Values::clear() {
  values_.clear();
  held_.clear();
}

}  // namespace paceline

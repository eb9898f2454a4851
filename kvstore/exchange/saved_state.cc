#include "exchange/saved_state.h"

#include <paceline/error.h>
#include <paceline/kernel.h>

#include <algorithm>
#include <charconv>

namespace paceline {
namespace {

std::int64_t number(const std::string& name, const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc() && end == text.data() + text.size() && value >= 0, "the checkpoint's counter ", name,
          " is '", text, "', expected a whole number");
  return value;
}

// "worker3:conv/velocity" -> 3.
std::optional<int> worker_of(const std::string& name, std::size_t colon) {
  constexpr std::string_view kPrefix = "worker";
  if (colon == std::string::npos || !name.starts_with(kPrefix) || colon == kPrefix.size()) return std::nullopt;
  int rank = 0;
  const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + colon, rank);
  if (error != std::errc() || end != name.data() + colon) return std::nullopt;
  return rank;
}

}  // namespace

StoreState SavedStore::write() const {
  StoreState state;
  for (const auto& [name, key] : keys) {
    state.arrays.emplace_back(name, key.weight);
    for (const auto& [slot, array] : key.slots) state.arrays.emplace_back(name + ":" + slot, array);
    state.counters.emplace_back("version:" + name, std::to_string(key.version));
    state.counters.emplace_back("examples:" + name, std::to_string(key.examples));
  }
  for (const auto& [rank, arrays] : workers)
    for (const auto& [name, array] : arrays) state.arrays.emplace_back(str("worker", rank, ":", name), array);
  return state;
}

SavedStore SavedStore::read(const StoreState& state) {
  SavedStore store;
  for (const auto& [name, array] : state.arrays) {
    const std::size_t first = name.find(':'), last = name.rfind(':');
    if (const auto rank = worker_of(name, first))
      store.workers[*rank].emplace_back(name.substr(first + 1), array);
    else if (last != std::string::npos)
      store.keys[name.substr(0, last)].slots[name.substr(last + 1)] = array;
    else
      store.keys[name].weight = array;
  }
  for (const auto& [name, text] : state.counters) {
    const std::size_t colon = name.find(':');
    const auto found = colon == std::string::npos ? store.keys.end() : store.keys.find(name.substr(colon + 1));
    if (found == store.keys.end()) continue;
    if (name.starts_with("version:")) found->second.version = static_cast<std::uint64_t>(number(name, text));
    if (name.starts_with("examples:")) found->second.examples = number(name, text);
  }
  return store;
}

NamedArrays share_of(const SavedStore& store, int rank, int workers) {
  std::map<std::string, NDArray> sums;
  for (const auto& [old_rank, arrays] : store.workers) {
    if (old_rank % workers != rank) continue;
    for (const auto& [name, array] : arrays) {
      NDArray& sum = sums[name];
      if (sum.is_none())
        sum = array.clone();
      else
        kernels::axpy(1, array, sum);
    }
  }
  NamedArrays share;
  for (const auto& [name, array] : sums) {
    array.wait();
    share.emplace_back(name, array);
  }
  return share;
}

}  // namespace paceline

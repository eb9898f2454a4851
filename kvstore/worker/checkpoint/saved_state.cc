#include "checkpoint/saved_state.h"

#include <paceline/error.h>
#include <paceline/kernel.h>
#include <paceline/log.h>
#include <paceline/staleness.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "checkpoint/saved_names.h"

namespace paceline {
namespace {

// "worker3:conv/velocity" -> 3.
std::optional<int> worker_of(const std::string& name, std::size_t colon) {
  constexpr std::string_view kPrefix = "worker";
  if (!name.starts_with(kPrefix) || colon == kPrefix.size()) return std::nullopt;
  int rank = 0;
  const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + colon, rank);
  if (error != std::errc() || end != name.data() + colon || rank < 0) return std::nullopt;
  return rank;
}

constexpr std::array<std::pair<std::string_view, std::int64_t SliceCounters::*>, 3> kCounters{{
    {"examples", &SliceCounters::examples},
    {"optimizer_updates", &SliceCounters::optimizer_updates},
    {"policy_updates", &SliceCounters::policy_updates},
}};

constexpr const char* kClock = "clock";
constexpr const char* kMomentum = "momentum";        // state of the optimizers momentum and nesterov
constexpr std::string_view kVelocity = "/velocity";  // state of a worker's rule

void add_to(NDArray& sum, const NDArray& array) {
  if (sum.is_none())
    sum = array.clone();
  else
    kernels::axpy(1, array, sum);
}

void move_momentum_to_worker(SavedStore& store) {
  for (auto& [name, key] : store.keys) {
    const auto found = key.slots.find(kMomentum);
    if (found == key.slots.end()) continue;
    store.workers[0].emplace_back(name + std::string(kVelocity), found->second);
    key.slots.erase(found);
  }
}

void move_momentum_to_servers(SavedStore& store) {
  for (auto& [rank, arrays] : store.workers) {
    std::erase_if(arrays, [&store](const auto& entry) {
      const auto& [name, array] = entry;
      if (!name.ends_with(kVelocity)) return false;
      const auto key = store.keys.find(name.substr(0, name.size() - kVelocity.size()));
      if (key == store.keys.end()) return false;
      add_to(key->second.slots[kMomentum], array);
      return true;
    });
  }
  std::erase_if(store.workers, [](const auto& worker) { return worker.second.empty(); });
}

// Adds the policy's name to state of the user's own policies that was saved without it.
void name_own_state(SavedStore& store, const std::vector<std::string>& known, const Extensions& own) {
  for (const auto& [policy, object] : own.policies) {
    for (const std::string& state : object->state_names()) {
      const std::string name = str(policy, "_", state);
      if (std::ranges::count(known, name) == 0 || std::ranges::count(known, state) > 0) continue;
      for (auto& [key_name, key] : store.keys) {
        auto slot = key.slots.extract(state);
        if (slot.empty()) continue;
        slot.key() = name;
        key.slots.insert(std::move(slot));
      }
    }
  }
}

}  // namespace

StoreState SavedStore::write() const {
  StoreState state;
  for (const auto& [key_name, key] : keys) {
    const std::string name = escaped(key_name);
    state.arrays.emplace_back(name, key.weight);
    for (const auto& [slot, array] : key.slots) state.arrays.emplace_back(name + ":" + slot, array);
    state.counters.emplace_back("version:" + name, std::to_string(key.counters.version));
    for (const auto& [counter, member] : kCounters)
      state.counters.emplace_back(str(counter, ":", name), std::to_string(key.counters.*member));
  }
  for (const auto& [rank, arrays] : workers)
    for (const auto& [name, array] : arrays)
      state.arrays.emplace_back(str("worker", rank, ":", escaped_state(name)), array);
  if (clock > 0) state.counters.emplace_back(kClock, std::to_string(clock));
  return state;
}

SavedStore SavedStore::read(const StoreState& state) {
  SavedStore store;
  for (const auto& [name, array] : state.arrays)
    if (find_separator(name) == std::string::npos) store.keys[unescaped(name)].weight = array;
  for (const auto& [name, array] : state.arrays) {
    const std::size_t separator = find_separator(name);
    if (separator == std::string::npos) continue;
    if (const auto table = parse_table_slot(name)) {
      store.tables.insert(table->first);
      continue;
    }
    const std::string key = unescaped(std::string_view(name).substr(0, separator)), rest = name.substr(separator + 1);
    const bool of_key = rest.find('/') == std::string::npos && store.keys.count(key) > 0;
    if (const auto rank = of_key ? std::nullopt : worker_of(name, separator))
      store.workers[*rank].emplace_back(unescaped_state(rest), array);
    else
      store.keys[key].slots[rest] = array;
  }
  for (const auto& [name, text] : state.counters) {
    if (name == kClock) store.clock = static_cast<std::uint64_t>(read_counter(name, text));
    const std::size_t colon = name.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = name.substr(colon + 1);  // the key of a table's counter has a separator
    const auto found = find_separator(key) == std::string::npos ? store.keys.find(unescaped(key)) : store.keys.end();
    if (found == store.keys.end()) continue;
    SliceCounters& counters = found->second.counters;
    if (name.starts_with("version:")) counters.version = static_cast<std::uint64_t>(read_counter(name, text));
    for (const auto& [counter, member] : kCounters)
      if (std::string_view(name).substr(0, colon) == counter) counters.*member = read_counter(name, text);
  }
  return store;
}

const SavedKey& SavedStore::find(const std::string& key, const Shape& shape, DType dtype) const {
  const auto found = keys.find(key);
  require(found != keys.end(), "the checkpoint has no key '", key, "'");
  const SavedKey& saved = found->second;
  require(!saved.weight.is_none() && saved.weight.shape() == shape && saved.weight.dtype() == dtype, "key '", key,
          "' is ", name_of(dtype), " ", shape, " here and ",
          saved.weight.is_none() ? "without weights" : saved.weight.describe(), " in the checkpoint");
  for (const auto& [slot, array] : saved.slots)
    require(array.size() == shape.size() && array.dtype() == dtype, "state '", slot, "' of key '", key, "' is ",
            array.describe(), ", expected ", name_of(dtype), " ", shape);
  saved.weight.wait();
  for (const auto& [slot, array] : saved.slots) array.wait();
  return saved;
}

void SavedStore::refuse_unknown(const std::vector<std::string>& names) {
  constexpr std::size_t kNamed = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(kNamed, names.size()); ++i) text += (i > 0 ? ", '" : "'") + names[i] + "'";
  if (names.size() > kNamed) text += str(" and ", names.size() - kNamed, " more");
  throw InvalidArgument("the checkpoint has " + text + ", which this job's network does not have");
}

bool is_policy_state(const std::string& slot) {
  for (const auto& [policy, make] : staleness_catalog().entries())
    if (slot.starts_with(policy + "_")) return true;
  return false;
}

void adapt_state(SavedStore& store, const Optimizer& optimizer, const Staleness& policy, bool worker_momentum,
                 const Extensions& own) {
  std::vector<std::string> known = optimizer.state_names();
  if (worker_momentum)
    move_momentum_to_worker(store);
  else if (std::ranges::count(known, kMomentum) > 0)
    move_momentum_to_servers(store);

  for (const std::string& name : policy.state_names()) known.push_back(name);
  name_own_state(store, known, own);
  std::set<std::string> dropped;
  for (auto& [name, key] : store.keys) {
    std::erase_if(key.slots, [&](const auto& entry) {
      const bool unused = std::ranges::count(known, entry.first) == 0 && is_policy_state(entry.first);
      if (unused) dropped.insert(entry.first);
      return unused;
    });
    for (const auto& [slot, array] : key.slots)
      require(std::ranges::count(known, slot) > 0, "key '", name, "' has no state '", slot, "' under these rules");
  }
  if (dropped.empty()) return;
  std::string names;
  for (const std::string& name : dropped) names += " " + name;
  LOG(WARNING) << "the checkpoint's state of a staleness policy that this job does not use is dropped:" << names;
}

NamedArrays share_of(const SavedStore& store, int rank, int workers) {
  std::map<std::string, NDArray> sums;
  for (const auto& [old_rank, arrays] : store.workers) {
    if (old_rank % workers != rank) continue;
    for (const auto& [name, array] : arrays) {
      add_to(sums[name], array);
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

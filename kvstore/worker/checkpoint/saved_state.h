#pragma once
// How a store's state is named, the same for every backend, so that a checkpoint of one is read by another:
//   <key>                       weights, in the key's shape
//   <key>:<slot>                state of the optimizer or of the staleness policy, in the key's shape
//   worker<rank>:<key>/<slot>   state of a worker's rule
// and as counters version:<key>, examples:<key>, optimizer_updates:<key>, policy_updates:<key>, workers, and clock
// where workers have one. A ':' of a key is escaped (saved_names.h).

#include <paceline/backend.h>
#include <paceline/updater.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace paceline {

// The state of one key, whole.
struct SavedKey {
  NDArray weight;
  std::map<std::string, NDArray> slots;
  SliceCounters counters;
};

struct SavedStore {
  std::map<std::string, SavedKey> keys;
  std::map<int, NamedArrays> workers;
  std::set<std::string> tables;  // names of what saved_tables.h reads; write() knows nothing of them
  std::uint64_t clock = 0;       // of all workers

  StoreState write() const;
  // Throws InvalidArgument on counters that are not numbers.
  static SavedStore read(const StoreState& state);

  // Throws InvalidArgument where the state lacks the key, or holds another array under the name.
  const SavedKey& find(const std::string& key, const Shape& shape, DType dtype) const;
  // Throws InvalidArgument that names the first of the keys and tables that are in no store with these maps by name.
  template <class Keys>
  void require_known(const Keys& keys) const {
    require_known(keys, std::map<std::string, int>());
  }
  template <class Keys, class Tables>
  void require_known(const Keys& keys_here, const Tables& tables_here) const {
    std::vector<std::string> unknown;
    for (const auto& [name, key] : keys)
      if (keys_here.count(name) == 0) unknown.push_back(name);
    for (const std::string& name : tables)
      if (tables_here.count(name) == 0) unknown.push_back("table:" + name);
    if (!unknown.empty()) refuse_unknown(unknown);
  }

 private:
  [[noreturn]] static void refuse_unknown(const std::vector<std::string>& names);
};

// Makes the state that another mode saved fit these rules. Momentum moves between the servers (slot "momentum") and the
// workers ("velocity" of dana), the sum kept: one worker with dana goes on as the NAG it is. State of staleness
// policies that `policy` does not have is dropped with one warning; the optimizer's is not: the servers refuse what is
// unknown.
void adapt_state(SavedStore& store, const Optimizer& optimizer, const Staleness& policy, bool worker_momentum);

// What the workers of another number take over: rank r gets the state of r, r + workers, ... added up, which keeps the
// sum of all momenta. Waits for the arrays.
NamedArrays share_of(const SavedStore& store, int rank, int workers);

}  // namespace paceline

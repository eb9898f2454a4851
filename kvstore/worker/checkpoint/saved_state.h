#pragma once
// The names in a store's state. They are the same for every backend, so that a backend can read the checkpoint of
// another one:
//   <key>                       weights, in the key's shape
//   <key>:<slot>                state of the optimizer or of the staleness policy, in the key's shape
//   worker<rank>:<key>/<slot>   state of a worker's rule
// The counters are version:<key>, examples:<key>, optimizer_updates:<key>, policy_updates:<key>, workers, and clock if
// it is not 0. A ':' of a key is escaped (saved_names.h).

#include <paceline/backend.h>
#include <paceline/extensions.h>
#include <paceline/updater.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace paceline {

// The state of one whole key.
struct SavedKey {
  NDArray weight;
  std::map<std::string, NDArray> slots;
  SliceCounters counters;
};

struct SavedStore {
  std::map<std::string, SavedKey> keys;
  std::map<int, NamedArrays> workers;
  std::set<std::string> tables;  // names of tables, which saved_tables.h reads; write() ignores them
  std::uint64_t clock = 0;       // the same for all workers

  StoreState write() const;
  // Throws InvalidArgument if a counter is no number.
  static SavedStore read(const StoreState& state);

  // Waits for the arrays of the key. Throws InvalidArgument if the state lacks the key, or has an array of another
  // shape or type.
  const SavedKey& find(const std::string& key, const Shape& shape, DType dtype) const;
  // Throws InvalidArgument naming keys or tables of the state that are not in these maps.
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

// Is the slot a state of a built-in staleness policy, such as "gap_aware_mean_square"?
bool is_policy_state(const std::string& slot);

// Adapts a state that another mode has saved to these rules. Momentum is the slot "momentum" at the servers, or
// "velocity" of dana at the workers. `worker_momentum`: moves it to worker 0. Otherwise moves it to the servers if the
// optimizer has such a slot. The sum of all momenta stays the same. One worker with dana therefore goes on exactly as
// with the optimizer nesterov. State of staleness policies that `policy` does not have is dropped with a warning. For
// other state that the rules do not have, throws InvalidArgument naming the key and the slot. Version 0.1.0 saved the
// state of the user's own policies (`own`) without the policy's name, which is added here.
void adapt_state(SavedStore& store, const Optimizer& optimizer, const Staleness& policy, bool worker_momentum,
                 const Extensions& own = {});

// The state of one worker when the job resumes with another number of workers. Rank r gets the sum of the states of
// ranks r, r + workers, ..., which keeps the sum of all momenta. Waits for the arrays.
NamedArrays share_of(const SavedStore& store, int rank, int workers);

}  // namespace paceline

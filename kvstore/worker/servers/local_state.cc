#include "servers/local_state.h"

#include <paceline/kernel.h>

#include <algorithm>
#include <string>
#include <vector>

#include "checkpoint/saved_state.h"

namespace paceline {

void divide_among_workers(SavedStore& store, int workers) {
  const auto former = std::exchange(store.workers, {});
  std::vector<int> ranks;
  for (const auto& [rank, arrays] : former) ranks.push_back(rank);
  for (int worker = 0; worker < workers; ++worker) {
    SavedStore mine;
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (static_cast<int>(i) % workers == worker) mine.workers[static_cast<int>(i)] = former.at(ranks[i]);
    if (mine.workers.empty() && !ranks.empty())
      mine.workers[worker] = former.at(ranks[static_cast<std::size_t>(worker) % ranks.size()]);
    NamedArrays& state = store.workers[worker];
    state = share_of(mine, worker, workers);
    for (const auto& [name, array] : state)
      kernels::scale(1.0 / static_cast<double>(std::max<std::size_t>(1, mine.workers.size())), array);
    for (auto& [name, key] : store.keys) {
      for (const auto& [slot, array] : key.slots) state.emplace_back(name + "/" + slot, array);
      if (ranks.empty()) state.emplace_back(name + "/" + kCounters, pack(key.counters));
    }
    for (const auto& [name, array] : state) array.wait();
  }
  for (auto& [name, key] : store.keys) key.slots.clear();
}

}  // namespace paceline

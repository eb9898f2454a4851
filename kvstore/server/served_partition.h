#pragma once
// A partition at its server, and who waits for it. Belongs to its shard, save for sizes and figures.

#include <cstdint>
#include <exception>
#include <map>
#include <unordered_map>
#include <vector>

#include "dense_partition.h"
#include "push_pull_call.h"

namespace paceline {

struct ServedPartition {
  // What waits for rounds of a slice.
  struct Watch {
    // Who asks for what a round agreed on, or answers and asks for what that comes to.
    struct Asking {
      Request request;
      std::uint64_t round;
      bool answers;
    };
    std::vector<WaitingPull<PushPullCall>> pulls;
    std::vector<Asking> asking;
    // Where late contributions are dropped: the workers' clocks when the open round got its first.
    std::map<int, std::uint64_t> clocks_at_opening;

    bool empty() const { return pulls.empty() && asking.empty() && clocks_at_opening.empty(); }
  };

  DensePartition state;
  ServerShard* const shard;
  std::unordered_map<std::uint32_t, Watch> watches;      // by slice
  std::map<std::uint32_t, std::exception_ptr> failures;  // of slices whose last round could not be applied

  ServedPartition(std::uint32_t id, std::span<const std::pair<SliceInfo, const void*>> slices,
                  std::shared_ptr<const Staleness> policy, ServerShard& owner)
      : state(id, slices, std::move(policy)), shard(&owner) {}
};

}  // namespace paceline

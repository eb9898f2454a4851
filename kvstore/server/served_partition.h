#pragma once
// A partition at its server, with the requests that wait for it. Only its shard may use it. Other threads may read
// sizes and figures.

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "dense_partition.h"
#include "failed_rounds.h"
#include "served_call.h"

namespace paceline {

class ServerShard;

struct ServedPartition {
  // Requests that wait for rounds of a slice.
  struct Watch {
    // A worker that asks about the agreement of a round. `answers`: the worker has sent its answer, and asks for the
    // mean of all answers. Otherwise the worker asks what was agreed on.
    struct Asking {
      Request request;
      std::uint64_t round;
      bool answers;
    };
    std::vector<WaitingPull<PushPullCall>> pulls;
    std::vector<Asking> asking;
    // For backup_rounds.cc: the workers' clocks when the open round got its first contribution.
    std::map<int, std::uint64_t> clocks_at_opening;

    bool empty() const { return pulls.empty() && asking.empty() && clocks_at_opening.empty(); }
  };

  DensePartition state;
  ServerShard* const shard;
  std::unordered_map<std::uint32_t, Watch> watches;  // by slice
  std::map<std::uint32_t, FailedRounds> failures;    // by slice

  ServedPartition(std::uint32_t id, std::span<const std::pair<SliceInfo, const void*>> slices, const Extensions& own,
                  ServerShard& owner)
      : state(id, slices, own), shard(&owner) {}
};

}  // namespace paceline

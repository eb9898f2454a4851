#pragma once
// The partitions of a server. Each has the requests that wait for it. Only the shard that owns a ServedPartition may
// use it. Other threads may read its sizes and figures.

#include <paceline/error.h>
#include <paceline/mutex.h>

#include <cstdint>
#include <map>
#include <memory>
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

// All partitions of a server.
class PartitionTable {
 public:
  // Null if there is no such partition.
  ServedPartition* find(std::uint32_t id) const {
    Lock lock(mutex_);
    const auto found = partitions_.find(id);
    return found == partitions_.end() ? nullptr : found->second.get();
  }
  // Throws Corrupt if there is no such partition.
  ServedPartition& at(std::uint32_t id) const {
    ServedPartition* partition = find(id);
    if (!partition)
      throw Corrupt(str("this server has no partition ", id,
                        ": it was placed on another server, or no worker has sent its initial values"));
    return *partition;
  }
  void add(std::unique_ptr<ServedPartition> partition) {
    Lock lock(mutex_);
    for (const DensePartition::Slice& slice : partition->state.slices()) bytes_ += slice.bytes;
    partitions_[partition->state.id()] = std::move(partition);
  }
  // The sum of the figures of all partitions.
  DensePartition::Figures figures() const {
    DensePartition::Figures all;
    Lock lock(mutex_);
    for (const auto& [id, partition] : partitions_) all.add(partition->state.figures());
    return all;
  }
  std::size_t bytes() const {
    Lock lock(mutex_);
    return bytes_;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::uint32_t, std::unique_ptr<ServedPartition>> partitions_ PACELINE_GUARDED_BY(mutex_);
  std::size_t bytes_ PACELINE_GUARDED_BY(mutex_) = 0;
};

}  // namespace paceline

#pragma once
// The partitions of a server. Only the shard that owns a ServedPartition may use it. Other threads may read its sizes
// and figures.

#include <paceline/error.h>
#include <paceline/mutex.h>

#include <map>
#include <memory>

#include "served_partition.h"

namespace paceline {

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

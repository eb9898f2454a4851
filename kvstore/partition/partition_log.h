#pragma once
// The interface of an object that keeps the logs of a server's partitions.

#include <span>
#include <utility>

#include "dense_partition.h"
#include "rows/row_partition.h"

namespace paceline {

class PartitionLog {
 public:
  virtual ~PartitionLog() = default;
  // Called for a new partition, before its first entry. Returns the observer of the partition's entries, or null for
  // none. The observer must outlive the partition. Each call comes on the thread that owns the partition, so several
  // calls may run at a time.
  virtual EntryObserver* begin(const DensePartition& partition,
                               std::span<const std::pair<SliceInfo, const void*>> initial) = 0;
  virtual EntryObserver* begin(const RowPartition& partition) = 0;
};

}  // namespace paceline

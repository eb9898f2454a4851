#pragma once
// The interface of a keeper of logs for a server's partitions.

#include <span>
#include <utility>

#include "dense_partition.h"
#include "rows/row_partition.h"

namespace paceline {

class PartitionLog {
 public:
  virtual ~PartitionLog() = default;
  // A partition was made, and nothing is applied to it yet. Returns the observer of its entries, which must outlive the
  // partition; null: none. Called on the thread that owns the partition, so several threads may call it at a time.
  virtual EntryObserver* begin(const DensePartition& partition,
                               std::span<const std::pair<SliceInfo, const void*>> initial) = 0;
  virtual EntryObserver* begin(const RowPartition& partition) = 0;
};

}  // namespace paceline

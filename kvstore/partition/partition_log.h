#pragma once
// Whoever keeps the logs of a server's partitions.

#include <span>
#include <utility>

#include "dense_partition.h"
#include "rows/row_partition.h"

namespace paceline {

class PartitionLog {
 public:
  virtual ~PartitionLog() = default;
  // A partition was made; nothing is applied to it yet. Returns what is to see its entries, which must outlive it;
  // null: nobody. Called on the thread that owns the partition, from several threads for several partitions.
  virtual EntryObserver* begin(const DensePartition& partition,
                               std::span<const std::pair<SliceInfo, const void*>> initial) = 0;
  virtual EntryObserver* begin(const RowPartition& partition) = 0;
};

}  // namespace paceline

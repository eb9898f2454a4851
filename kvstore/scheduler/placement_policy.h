#pragma once
// Decides on which servers new partitions go.

#include <paceline/row_tables.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace paceline {

// Calls come one at a time. What a function throws is what the declaration is refused with.
class PlacementPolicy {
 public:
  virtual ~PlacementPolicy() = default;
  // The server of each new partition of dense keys, which have these sizes.
  virtual std::vector<int> place_keys(std::span<const std::int64_t> bytes) = 0;
  // The server of each partition of a new table.
  virtual std::vector<int> place_table(const TableSpec& table, int partitions) = 0;
};

// Dense keys: servers hold equal bytes. Tables: one partition after the other on the next server; where a table begins
// follows from its name.
std::unique_ptr<PlacementPolicy> make_balanced_placement(int servers);

}  // namespace paceline

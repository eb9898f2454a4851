#pragma once
// The policy that chooses the servers of new partitions.

#include <paceline/row_tables.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace paceline {

// Calls come one at a time. If a function throws, the declaration is refused with the text of the error.
class PlacementPolicy {
 public:
  virtual ~PlacementPolicy() = default;
  // Returns the server of each new partition of dense keys. `bytes`: the sizes of these partitions.
  virtual std::vector<int> place_keys(std::span<const std::int64_t> bytes) = 0;
  // Returns the server of each partition of a new table.
  virtual std::vector<int> place_table(const TableSpec& table, int partitions) = 0;
};

// Gives every server about the same number of bytes of dense keys. Deals the partitions of a table to the servers in
// turn. The first server follows from the table's name.
std::unique_ptr<PlacementPolicy> make_balanced_placement(int servers);

}  // namespace paceline

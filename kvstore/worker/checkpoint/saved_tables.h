#pragma once
// The names of row-sparse tables in a store's state. The state holds only rows that exist, in any order.
//   table:<name>:ids        int64 (n)
//   table:<name>:versions   int64 (n), updates that each row has taken
//   table:<name>:weight     (n, width)
//   table:<name>:<slot>     state of the optimizer or of the staleness policy, (n, width)
// The counter is examples:table:<name>. A ':' of the name is escaped (saved_names.h).

#include <paceline/backend.h>

#include <string>
#include <utility>
#include <vector>

#include "rows/row_table.h"

namespace paceline {

// Rows that are written to a state.
class SavedTable {
 public:
  void add(SavedRowArrays rows) { parts_.push_back(std::move(rows)); }
  // Appends the arrays to the state, and clears this object.
  void write(const TableSpec& table, StoreState& state, Engine& engine);

 private:
  std::vector<SavedRowArrays> parts_;
};

// Rows that were read from a state.
class LoadedTable {
 public:
  // Drops state of staleness policies that `rules` do not have, with a warning. Throws InvalidArgument if the state
  // lacks the table, or if its arrays do not fit `table` or `rules`. RowTable::load() then takes all arrays.
  static LoadedTable read(const TableSpec& table, const StoreState& state, const RowRules& rules);

  std::span<const std::int64_t> ids() const {
    return {ids_.data_as<const std::int64_t>(), static_cast<std::size_t>(ids_.size())};
  }
  const std::uint64_t* versions() const { return versions_.data_as<const std::uint64_t>(); }
  // The rows of "weight" and of each state, by name.
  std::vector<std::pair<std::string, const std::byte*>> arrays() const;
  std::int64_t examples = 0;

 private:
  NDArray ids_, versions_;
  NamedArrays arrays_;
};

// Lets `values` write the first values of rows [begin, end), and waits for this. Returns these rows, in host memory.
NDArray first_rows(const TableSpec& table, const FirstRows& values, std::int64_t begin, std::int64_t end,
                   Engine& engine);

}  // namespace paceline

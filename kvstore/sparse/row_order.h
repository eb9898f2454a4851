#pragma once
// Row ids as a user gives them, in the order in which they travel: by partition, ascending in each.

#include <cstdint>
#include <span>
#include <vector>

#include "sparse/table_layout.h"

namespace paceline {

struct OrderedRow {
  std::int64_t id;
  std::uint32_t position;  // in what the user gave
  std::uint32_t partition;
};

// Equal ids stay in the order given. Throws InvalidArgument on an id outside the table; `use`: "the push to".
std::vector<OrderedRow> order_rows(std::span<const std::int64_t> ids, const TableSpec& table, const TableLayout& layout,
                                   const char* use);

// Rows [begin, end) of an order.
struct RowRange {
  std::size_t begin = 0, end = 0;
};

// Writes their ids, each once; `ids` has room for all. Returns how many.
std::size_t write_ids(const std::vector<OrderedRow>& rows, RowRange range, std::int64_t* ids);
// For each id the place of its row among the `given` ones, or, where several rows are of that id, one of the places after
// those, which stand for the ranges of such rows that are returned.
std::vector<RowRange> place_rows(const std::vector<OrderedRow>& rows, RowRange range, std::size_t given,
                                 std::uint32_t* places);
// Writes the row of `values` for each id; rows of the same id are added up.
void gather_rows(const std::vector<OrderedRow>& rows, RowRange range, const TableSpec& table, const std::byte* values,
                 std::byte* out);
// The other way round: rows of `values`, one for each id, to every position in `out` that asked for it.
void scatter_rows(const std::vector<OrderedRow>& rows, RowRange range, const TableSpec& table, const std::byte* values,
                  std::byte* out);

// Begin of each partition's rows, and the end.
std::vector<std::size_t> partition_bounds(const std::vector<OrderedRow>& rows, int partitions);

}  // namespace paceline

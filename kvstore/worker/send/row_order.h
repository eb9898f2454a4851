#pragma once
// Row ids as a user gives them, in the order in which they travel: by partition, ascending in each.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rows/table_layout.h"

namespace paceline {

struct OrderedRow {
  std::int64_t id;
  std::uint32_t position;  // in what the user gave
};

// The rows of a call. Making it deals them to their partitions; a partition's rows are ordered when they are asked for,
// so that those of the first are on their way while the others wait.
class RowOrder {
 public:
  // Throws InvalidArgument on an id outside the table; `use`: "the push to".
  RowOrder(std::span<const std::int64_t> ids, const TableSpec& table, const TableLayout& layout, const char* use);

  std::size_t size() const { return size_; }
  int partitions() const { return static_cast<int>(partitions_.size()); }
  // Ascending; equal ids stay in the order given. The first call for a partition orders it: not thread-safe.
  const std::vector<OrderedRow>& partition(int number);

 private:
  struct Partition {
    std::vector<std::uint64_t> dealt;  // ids and positions in one number each: half the memory to move
    std::vector<OrderedRow> rows;
    bool in_order = false;
  };

  std::size_t size_;
  int id_bits_ = 0;        // 0: rows were given in order
  int position_bits_ = 0;  // of a number; 0: ids are too large for that, and rows are dealt as they are
  std::vector<Partition> partitions_;
};

// Rows [begin, end) of a partition's.
struct RowRange {
  std::size_t begin = 0, end = 0;
};

// Writes their ids, each once; `ids` has room for all. Returns how many.
std::size_t write_ids(const std::vector<OrderedRow>& rows, RowRange range, std::int64_t* ids);
// For each id the place of its row among the `given` ones, or, where several rows are of that id, one of the places
// after those, which stand for the ranges of such rows that are returned.
std::vector<RowRange> place_rows(const std::vector<OrderedRow>& rows, RowRange range, std::size_t given,
                                 std::uint32_t* places);
// Writes the row of `values` for each id; rows of the same id are added up.
void gather_rows(const std::vector<OrderedRow>& rows, RowRange range, const TableSpec& table, const std::byte* values,
                 std::byte* out);
// The other way round: rows of `values`, one for each id, to every position in `out` that asked for it.
void scatter_rows(const std::vector<OrderedRow>& rows, RowRange range, const TableSpec& table, const std::byte* values,
                  std::span<std::byte> out);

}  // namespace paceline

#pragma once
// Brings the row ids of a call into the order in which they travel: by partition, and ascending in each partition.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rows/table_layout.h"

namespace paceline {

struct OrderedRow {
  std::int64_t id;
  std::uint32_t position;  // index in the caller's array
};

// The rows of a call. The constructor divides them among their partitions. The rows of a partition are sorted on first
// use, so that the rows of the first partition travel while the others are sorted.
class RowOrder {
 public:
  // Throws InvalidArgument for an id outside the table. `use` is for the error text, for instance "the push to".
  RowOrder(std::span<const std::int64_t> ids, const TableSpec& table, const TableLayout& layout, const char* use);

  std::size_t size() const { return size_; }
  int partitions() const { return static_cast<int>(partitions_.size()); }
  // The rows of a partition, ascending. Equal ids stay in the order given. The first call sorts. Not thread-safe.
  const std::vector<OrderedRow>& partition(int number);

 private:
  struct Partition {
    std::vector<std::uint64_t> dealt;  // id and position of a row in one number, which halves the memory to move
    std::vector<OrderedRow> rows;
    bool in_order = false;
  };

  std::size_t size_;
  int id_bits_ = 0;        // bits to sort by; 0: rows were given in order
  int position_bits_ = 0;  // bits of a position in `dealt`; 0: ids are too large, and `rows` is filled at once
  std::vector<Partition> partitions_;
};

// Rows [begin, end) of the rows of a partition.
struct RowRange {
  std::size_t begin = 0, end = 0;
};

// Writes the distinct ids of a range to `ids`, which has room for all. Returns their number.
std::size_t write_ids(const std::vector<OrderedRow>& rows, RowRange range, std::int64_t* ids);
// Writes one number to `places` for each distinct id: the index of its row in the caller's array, which has `given`
// rows. If several rows have the id, the number is `given` plus an index into the returned list, which holds the range
// of these rows.
std::vector<RowRange> place_rows(const std::vector<OrderedRow>& rows, RowRange range, std::size_t given,
                                 std::uint32_t* places);
// Writes the row of `values` for each id. Rows with the same id are added up.
void gather_rows(const std::vector<OrderedRow>& rows, RowRange range, const TableSpec& table, const std::byte* values,
                 std::byte* out);
// The inverse: copies the rows of `values`, one for each id, to every position in `out` that asked for the id.
void scatter_rows(const std::vector<OrderedRow>& rows, RowRange range, const TableSpec& table, const std::byte* values,
                  std::span<std::byte> out);

}  // namespace paceline

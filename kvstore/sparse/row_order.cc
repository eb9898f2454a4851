#include "sparse/row_order.h"

#include <paceline/error.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace paceline {
namespace {

template <class T>
void add_row(std::byte* sum, const std::byte* row, std::int64_t width) {
  T* to = reinterpret_cast<T*>(sum);
  const T* from = reinterpret_cast<const T*>(row);
  for (std::int64_t e = 0; e < width; ++e) to[e] += from[e];
}

// Asks for the row's memory, for writing where `kWrite`.
template <int kWrite>
void prefetch_row(const std::byte* row, std::size_t bytes) {
  for (std::size_t line = 0; line < std::min<std::size_t>(bytes + 63, 512); line += 64)
    __builtin_prefetch(row + line, kWrite);
}

// How many rows ahead memory is asked for.
constexpr std::size_t kAhead = 16;

}  // namespace

std::vector<OrderedRow> order_rows(std::span<const std::int64_t> ids, const TableSpec& table, const TableLayout& layout,
                                   const char* use) {
  require(ids.size() < std::numeric_limits<std::uint32_t>::max(), use, " table '", table.name, "' names ", ids.size(),
          " rows; a call takes fewer than 2^32");
  std::vector<OrderedRow> rows(ids.size());
  std::int64_t largest = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int64_t id = ids[i];
    require(id >= 0 && id < table.rows, use, " table '", table.name, "' names row ", id, " at position ", i,
            "; the table has rows 0 to ", table.rows - 1);
    rows[i] = {id, static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(layout.partition_of(id))};
    largest = std::max(largest, id);
  }
  constexpr std::size_t kFew = 512;
  if (rows.size() < kFew) {
    std::sort(rows.begin(), rows.end(), [](const OrderedRow& a, const OrderedRow& b) {
      if (a.partition != b.partition) return a.partition < b.partition;
      return a.id != b.id ? a.id < b.id : a.position < b.position;
    });
    return rows;
  }
  // A stable radix sort; the last pass is by partition.
  constexpr int kDigitBits = 8;
  constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;
  std::vector<OrderedRow> scratch(rows.size());
  std::vector<std::size_t> starts;
  const auto pass = [&](std::size_t digits, auto digit) {
    starts.assign(digits + 1, 0);
    for (const OrderedRow& row : rows) ++starts[digit(row) + 1];
    for (std::size_t d = 0; d < digits; ++d) starts[d + 1] += starts[d];
    for (const OrderedRow& row : rows) scratch[starts[digit(row)]++] = row;
    rows.swap(scratch);
  };
  const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(largest)));
  for (int shift = 0; shift < bits; shift += kDigitBits)
    pass(kDigits, [shift](const OrderedRow& row) { return static_cast<std::size_t>(row.id >> shift) & (kDigits - 1); });
  pass(static_cast<std::size_t>(layout.partitions()), [](const OrderedRow& row) { return std::size_t{row.partition}; });
  return rows;
}

std::size_t write_ids(const std::vector<OrderedRow>& rows, RowRange range, std::int64_t* ids) {
  std::size_t count = 0;
  for (std::size_t i = range.begin; i < range.end; ++i)
    if (i == range.begin || rows[i].id != rows[i - 1].id) ids[count++] = rows[i].id;
  return count;
}

void gather_rows(const std::vector<OrderedRow>& rows, RowRange range, const TableSpec& table, const std::byte* values,
                 std::byte* out) {
  const std::size_t bytes = row_bytes(table);
  for (std::size_t i = range.begin; i < range.end; ++i) {
    if (i + kAhead < range.end) prefetch_row<0>(values + rows[i + kAhead].position * bytes, bytes);
    const std::byte* row = values + rows[i].position * bytes;
    if (i == range.begin || rows[i].id != rows[i - 1].id) {
      std::memcpy(out, row, bytes);
      out += bytes;
    } else if (table.dtype == DType::kFloat32) {
      add_row<float>(out - bytes, row, table.width);
    } else {
      add_row<double>(out - bytes, row, table.width);
    }
  }
}

void scatter_rows(const std::vector<OrderedRow>& rows, RowRange range, const TableSpec& table, const std::byte* values,
                  std::byte* out) {
  const std::size_t bytes = row_bytes(table);
  for (std::size_t i = range.begin; i < range.end; ++i) {
    if (i + kAhead < range.end) prefetch_row<1>(out + rows[i + kAhead].position * bytes, bytes);
    if (i > range.begin && rows[i].id != rows[i - 1].id) values += bytes;
    std::memcpy(out + rows[i].position * bytes, values, bytes);
  }
}

std::vector<std::size_t> partition_bounds(const std::vector<OrderedRow>& rows, int partitions) {
  std::vector<std::size_t> bounds(static_cast<std::size_t>(partitions) + 1);
  for (const OrderedRow& row : rows) ++bounds[row.partition + 1];
  for (std::size_t p = 0; p < static_cast<std::size_t>(partitions); ++p) bounds[p + 1] += bounds[p];
  return bounds;
}

}  // namespace paceline

#include "sparse/row_order.h"

#include <paceline/error.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>

#include "sparse/prefetch.h"
#include "stream_copy.h"

namespace paceline {
namespace {

template <class T>
void add_row(std::byte* sum, const std::byte* row, std::int64_t width) {
  T* to = reinterpret_cast<T*>(sum);
  const T* from = reinterpret_cast<const T*>(row);
  for (std::int64_t e = 0; e < width; ++e) to[e] += from[e];
}

// How many rows ahead memory is asked for.
constexpr std::size_t kAhead = 16;

struct Named {
  std::int64_t id;
  std::uint32_t position;
};

// A stable sort by the low `bits` of key(row); the rest are equal.
template <class Row, class Key>
void sort_by(std::unique_ptr<Row[]>& rows, std::size_t count, int bits, Key key) {
  constexpr std::size_t kFew = 512;
  if (bits > 0 && count < kFew) {
    std::stable_sort(rows.get(), rows.get() + count, [key](const Row& a, const Row& b) { return key(a) < key(b); });
    return;
  }
  if (bits == 0) return;
  // Wide digits: each pass moves all rows. As many counters as there are few rows would cost more than the pass.
  const int most_bits = std::min(12, static_cast<int>(std::bit_width(count)) - 3);
  const int passes = (bits + most_bits - 1) / most_bits, digit_bits = (bits + passes - 1) / passes;
  const std::uint64_t mask = (std::uint64_t{1} << digit_bits) - 1;
  std::vector<std::uint32_t> starts(mask + 2);
  auto scratch = std::make_unique_for_overwrite<Row[]>(count);
  for (int shift = 0; shift < bits; shift += digit_bits) {
    const auto digit = [=](const Row& row) { return static_cast<std::size_t>(key(row) >> shift & mask); };
    std::fill(starts.begin(), starts.end(), 0);
    for (std::size_t i = 0; i < count; ++i) ++starts[digit(rows[i]) + 1];
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    for (std::size_t i = 0; i < count; ++i) scratch[starts[digit(rows[i])]++] = rows[i];
    rows.swap(scratch);
  }
}

// The rows, which ascend, by partition.
template <class Row, class Name>
std::vector<OrderedRow> deal(std::span<const Row> rows, const TableLayout& layout, Name name) {
  std::vector<std::size_t> starts(static_cast<std::size_t>(layout.partitions()) + 1);
  std::int64_t block = -1;
  std::uint32_t partition = 0;
  const auto partition_of = [&](std::int64_t id) {
    if (id >> layout.block_bits() != block) {
      block = id >> layout.block_bits();
      partition = static_cast<std::uint32_t>(layout.partition_of(id));
    }
    return partition;
  };
  for (const Row& row : rows) ++starts[partition_of(name(row).id) + 1];
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  std::vector<OrderedRow> ordered(rows.size());
  for (const Row& row : rows) {
    const Named named = name(row);
    const std::uint32_t at = partition_of(named.id);
    ordered[starts[at]++] = {named.id, named.position, at};
  }
  return ordered;
}

}  // namespace

std::vector<OrderedRow> order_rows(std::span<const std::int64_t> ids, const TableSpec& table, const TableLayout& layout,
                                   const char* use) {
  require(ids.size() < std::numeric_limits<std::uint32_t>::max(), use, " table '", table.name, "' names ", ids.size(),
          " rows; a call takes fewer than 2^32");
  std::int64_t largest = 0;
  bool ascend = true;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int64_t id = ids[i];
    require(id >= 0 && id < table.rows, use, " table '", table.name, "' names row ", id, " at position ", i,
            "; the table has rows 0 to ", table.rows - 1);
    ascend = ascend && (i == 0 || ids[i - 1] <= id);
    largest = std::max(largest, id);
  }
  const int id_bits = ascend ? 0 : std::bit_width(static_cast<std::uint64_t>(largest));
  const int position_bits = std::bit_width(ids.size());
  if (std::bit_width(static_cast<std::uint64_t>(largest)) + position_bits <= 64) {
    // Id and position in one number: half the memory to move.
    auto numbers = std::make_unique_for_overwrite<std::uint64_t[]>(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) numbers[i] = static_cast<std::uint64_t>(ids[i]) << position_bits | i;
    sort_by(numbers, ids.size(), id_bits, [position_bits](std::uint64_t number) { return number >> position_bits; });
    return deal(std::span<const std::uint64_t>(numbers.get(), ids.size()), layout,
                [position_bits](std::uint64_t number) {
                  return Named{static_cast<std::int64_t>(number >> position_bits),
                               static_cast<std::uint32_t>(number & ((std::uint64_t{1} << position_bits) - 1))};
                });
  }
  auto named = std::make_unique_for_overwrite<Named[]>(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) named[i] = {ids[i], static_cast<std::uint32_t>(i)};
  sort_by(named, ids.size(), id_bits, [](const Named& row) { return static_cast<std::uint64_t>(row.id); });
  return deal(std::span<const Named>(named.get(), ids.size()), layout, [](const Named& row) { return row; });
}

std::size_t write_ids(const std::vector<OrderedRow>& rows, RowRange range, std::int64_t* ids) {
  std::size_t count = 0;
  for (std::size_t i = range.begin; i < range.end; ++i)
    if (i == range.begin || rows[i].id != rows[i - 1].id) ids[count++] = rows[i].id;
  return count;
}

std::vector<RowRange> place_rows(const std::vector<OrderedRow>& rows, RowRange range, std::size_t given,
                                 std::uint32_t* places) {
  std::vector<RowRange> repeated;
  for (std::size_t i = range.begin; i < range.end;) {
    const std::size_t begin = i++;
    while (i < range.end && rows[i].id == rows[begin].id) ++i;
    *places++ = i == begin + 1 ? rows[begin].position : static_cast<std::uint32_t>(given + repeated.size());
    if (i > begin + 1) repeated.push_back({begin, i});
  }
  return repeated;
}

void gather_rows(const std::vector<OrderedRow>& rows, RowRange range, const TableSpec& table, const std::byte* values,
                 std::byte* out) {
  const std::size_t bytes = row_bytes(table);
  for (std::size_t i = range.begin; i < range.end; ++i) {
    if (i + kAhead < range.end) prefetch_lines<Cache::kFirst>(values + rows[i + kAhead].position * bytes, bytes);
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
  constexpr std::size_t kLine = 64;
  if (rows.size() * bytes >= kFillsCaches && bytes % kLine == 0 && reinterpret_cast<std::uintptr_t>(out) % kLine == 0) {
    for (std::size_t i = range.begin; i < range.end; ++i) {
      if (i > range.begin && rows[i].id != rows[i - 1].id) values += bytes;
      if (i + kAhead < range.end) prefetch_lines<Cache::kSecond>(values + kAhead * bytes, bytes);
      stream_copy(values, out + rows[i].position * bytes, bytes);
    }
    return stream_end();
  }
  for (std::size_t i = range.begin; i < range.end; ++i) {
    if (i + kAhead < range.end) prefetch_lines<Cache::kFirst>(out + rows[i + kAhead].position * bytes, bytes);
    if (i > range.begin && rows[i].id != rows[i - 1].id) values += bytes;
    std::memcpy(out + rows[i].position * bytes, values, bytes);
  }
}

std::vector<std::size_t> partition_bounds(const std::vector<OrderedRow>& rows, int partitions) {
  std::vector<std::size_t> bounds;
  for (std::size_t p = 0; p <= static_cast<std::size_t>(partitions); ++p) {
    const auto begin = std::ranges::lower_bound(rows, p, {}, &OrderedRow::partition);
    bounds.push_back(static_cast<std::size_t>(begin - rows.begin()));
  }
  return bounds;
}

}  // namespace paceline

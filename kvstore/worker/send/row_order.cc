#include "send/row_order.h"

#include <paceline/error.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>

#include "prefetch.h"
#include "stream_copy.h"

namespace paceline {
namespace {

template <class T>
void add_row(std::byte* sum, const std::byte* row, std::int64_t width) {
  T* to = reinterpret_cast<T*>(sum);
  const T* from = reinterpret_cast<const T*>(row);
  for (std::int64_t e = 0; e < width; ++e) to[e] += from[e];
}

// How many rows ahead memory is prefetched.
constexpr std::size_t kAhead = 16;

// A stable sort by the low `bits` of key(row). With 0 bits it does nothing.
template <class Row, class Key>
void sort_by(std::vector<Row>& rows, int bits, Key key) {
  constexpr std::size_t kFew = 512;
  const std::size_t count = rows.size();
  if (bits > 0 && count < kFew) {
    std::ranges::stable_sort(rows, {}, key);
    return;
  }
  if (bits == 0) return;
  // A radix sort. Digits are wide, because each pass moves all rows. But there are fewer counters than rows, because a
  // pass over the counters costs time too.
  const int most_bits = std::min(12, static_cast<int>(std::bit_width(count)) - 3);
  const int passes = (bits + most_bits - 1) / most_bits, digit_bits = (bits + passes - 1) / passes;
  const std::uint64_t mask = (std::uint64_t{1} << digit_bits) - 1;
  std::vector<std::uint32_t> starts(mask + 2);
  std::vector<Row> scratch(count);
  for (int shift = 0; shift < bits; shift += digit_bits) {
    const auto digit = [=](const Row& row) { return static_cast<std::size_t>(key(row) >> shift & mask); };
    std::ranges::fill(starts, 0);
    for (const Row& row : rows) ++starts[digit(row) + 1];
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    for (const Row& row : rows) scratch[starts[digit(row)]++] = row;
    rows.swap(scratch);
  }
}

}  // namespace

RowOrder::RowOrder(std::span<const std::int64_t> ids, const TableSpec& table, const TableLayout& layout,
                   const char* use)
    : size_(ids.size()), partitions_(static_cast<std::size_t>(layout.partitions())) {
  require(size_ < std::numeric_limits<std::uint32_t>::max(), use, " table '", table.name, "' names ", size_,
          " rows; a call takes fewer than 2^32");
  const auto partition_of = [&](std::int64_t id) { return static_cast<std::size_t>(layout.partition_of(id)); };
  std::vector<std::size_t> counts(partitions_.size());
  std::int64_t largest = 0;
  bool ascend = true;
  for (std::size_t i = 0; i < size_; ++i) {
    const std::int64_t id = ids[i];
    require(id >= 0 && id < table.rows, use, " table '", table.name, "' names row ", id, " at position ", i,
            "; the table has rows 0 to ", table.rows - 1);
    ascend = ascend && (i == 0 || ids[i - 1] <= id);
    largest = std::max(largest, id);
    ++counts[partition_of(id)];
  }
  const int id_bits = std::bit_width(static_cast<std::uint64_t>(largest)), position_bits = std::bit_width(size_);
  id_bits_ = ascend ? 0 : id_bits;
  if (id_bits + position_bits > 64) {
    for (std::size_t i = 0; i < size_; ++i)
      partitions_[partition_of(ids[i])].rows.push_back({ids[i], static_cast<std::uint32_t>(i)});
    return;
  }
  position_bits_ = position_bits;
  std::vector<std::uint64_t*> next;
  for (std::size_t p = 0; p < partitions_.size(); ++p) {
    partitions_[p].dealt.resize(counts[p]);
    next.push_back(partitions_[p].dealt.data());
  }
  for (std::size_t i = 0; i < size_; ++i)
    *next[partition_of(ids[i])]++ = static_cast<std::uint64_t>(ids[i]) << position_bits | i;
}

const std::vector<OrderedRow>& RowOrder::partition(int number) {
  Partition& part = partitions_[static_cast<std::size_t>(number)];
  if (part.in_order) return part.rows;
  if (position_bits_ == 0) {
    sort_by(part.rows, id_bits_, [](const OrderedRow& row) { return static_cast<std::uint64_t>(row.id); });
    part.in_order = true;
    return part.rows;
  }
  const int bits = position_bits_;
  sort_by(part.dealt, id_bits_, [bits](std::uint64_t dealt) { return dealt >> bits; });
  part.rows.reserve(part.dealt.size());
  const std::uint64_t positions = (std::uint64_t{1} << bits) - 1;
  for (const std::uint64_t dealt : part.dealt)
    part.rows.push_back({static_cast<std::int64_t>(dealt >> bits), static_cast<std::uint32_t>(dealt & positions)});
  std::vector<std::uint64_t>().swap(part.dealt);
  part.in_order = true;
  return part.rows;
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
                  std::span<std::byte> out) {
  const std::size_t bytes = row_bytes(table);
  constexpr std::size_t kLine = 64;
  if (out.size() >= kFillsCaches && bytes % kLine == 0 && reinterpret_cast<std::uintptr_t>(out.data()) % kLine == 0) {
    for (std::size_t i = range.begin; i < range.end; ++i) {
      if (i > range.begin && rows[i].id != rows[i - 1].id) values += bytes;
      if (i + kAhead < range.end) prefetch_lines<Cache::kSecond>(values + kAhead * bytes, bytes);
      stream_copy(values, out.data() + rows[i].position * bytes, bytes);
    }
    return stream_end();
  }
  for (std::size_t i = range.begin; i < range.end; ++i) {
    if (i + kAhead < range.end) prefetch_lines<Cache::kFirst>(out.data() + rows[i + kAhead].position * bytes, bytes);
    if (i > range.begin && rows[i].id != rows[i - 1].id) values += bytes;
    std::memcpy(out.data() + rows[i].position * bytes, values, bytes);
  }
}

}  // namespace paceline

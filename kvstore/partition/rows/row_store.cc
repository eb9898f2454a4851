#include "rows/row_store.h"

#include <paceline/error.h>

#include <algorithm>
#include <limits>

namespace paceline {

RowStore::RowStore(int block_bits, std::size_t head_bytes, std::size_t body_bytes)
    : block_bits_(block_bits), head_bytes_(head_bytes), body_bytes_(body_bytes), slots_(block_bits, kAbsent) {
  constexpr std::size_t kChunkBytes = std::size_t{64} << 20, kLine = 64, kManyLines = 4 * kLine;
  const std::size_t unit = body_bytes >= kManyLines ? kLine : 8;
  body_stride_ = (body_bytes + unit - 1) / unit * unit;
  while (((head_bytes + body_stride_) << (chunk_bits_ + 1)) <= kChunkBytes) ++chunk_bits_;
  chunk_mask_ = (std::size_t{1} << chunk_bits_) - 1;
  bodies_ = ((head_bytes << chunk_bits_) + kLine - 1) / kLine * kLine;
}

MappedMemory RowStore::make_chunk() const {
  const std::size_t bytes = bodies_ + (body_stride_ << chunk_bits_);
  // Huge pages of a small table would take more memory than its rows.
  constexpr std::size_t kSmallTable = std::size_t{4} << 20;
  return map_memory(bytes, chunks_.empty() ? std::min(bytes, bodies_ + kSmallTable) : 0);
}

RowStore::Slot RowStore::find(std::int64_t row) const {
  Slot slot = kAbsent;
  find({&row, 1}, &slot);
  return slot;
}

RowStore::Slot RowStore::add(std::int64_t row) {
  if (size_ >= std::numeric_limits<Slot>::max() - 1)
    throw OutOfMemory(str("a partition of a table holds ", size_, " rows and can hold no more; use more servers"));
  if (size_ >> chunk_bits_ == chunks_.size()) chunks_.push_back(make_chunk());
  const Slot slot = static_cast<Slot>(++size_);
  slots_.set({&row, 1}, &slot);
  return slot;
}

std::size_t RowStore::bytes() const { return size_ * (head_bytes_ + body_stride_) + slots_.bytes(); }

std::vector<std::int64_t> RowStore::rows_from(std::int64_t begin, std::size_t limit) const {
  std::vector<std::pair<std::int64_t, const Slot*>> pages;
  slots_.for_each([&](std::int64_t block, const Slot* page) {
    if (block >= begin >> block_bits_) pages.emplace_back(block, page);
  });
  std::sort(pages.begin(), pages.end());
  std::vector<std::int64_t> rows;
  for (const auto& [block, page] : pages) {
    for (std::size_t i = 0; i < slots_.page_size(); ++i) {
      const std::int64_t row = (block << block_bits_) + static_cast<std::int64_t>(i);
      if (page[i] == kAbsent || row < begin) continue;
      if (rows.size() == limit) return rows;
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace paceline

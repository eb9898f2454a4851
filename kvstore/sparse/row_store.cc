#include "sparse/row_store.h"

#include <paceline/error.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace paceline {

RowStore::RowStore(int block_bits, std::size_t record_bytes) : block_bits_(block_bits), record_bytes_(record_bytes) {
  constexpr std::size_t kChunkBytes = std::size_t{256} << 10;
  while ((record_bytes_ << (chunk_bits_ + 1)) <= kChunkBytes) ++chunk_bits_;
  chunk_mask_ = (std::size_t{1} << chunk_bits_) - 1;
  prefetched_ = std::min<std::size_t>(record_bytes_ + 63, 512);
}

RowStore::Slot RowStore::find(std::int64_t row) const {
  Slot slot;
  find({&row, 1}, &slot);
  return slot;
}

void RowStore::find(std::span<const std::int64_t> rows, Slot* slots) const {
  const std::int64_t mask = static_cast<std::int64_t>(page_size()) - 1;
  std::int64_t block = -1;
  const Slot* page = nullptr;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] >> block_bits_ != block) {
      block = rows[i] >> block_bits_;
      const auto found = pages_.find(block);
      page = found == pages_.end() ? nullptr : found->second.get();
    }
    slots[i] = page ? page[rows[i] & mask] : kAbsent;
  }
}

RowStore::Slot RowStore::add(std::int64_t row) {
  if (size_ >= std::numeric_limits<Slot>::max() - 1)
    throw OutOfMemory(str("a partition of a table holds ", size_, " rows and can hold no more; use more servers"));
  Page& page = pages_[row >> block_bits_];
  if (!page) page = std::make_unique<Slot[]>(page_size());
  if (size_ >> chunk_bits_ == chunks_.size()) chunks_.emplace_back(new std::byte[record_bytes_ << chunk_bits_]);
  const Slot slot = static_cast<Slot>(++size_);
  page[row & (static_cast<std::int64_t>(page_size()) - 1)] = slot;
  std::memset(record(slot), 0, record_bytes_);
  return slot;
}

std::size_t RowStore::bytes() const {
  return (record_bytes_ << chunk_bits_) * chunks_.size() + pages_.size() * page_size() * sizeof(Slot);
}

std::vector<std::int64_t> RowStore::rows_from(std::int64_t begin, std::size_t limit) const {
  std::vector<std::int64_t> blocks;
  for (const auto& [block, page] : pages_)
    if (block >= begin >> block_bits_) blocks.push_back(block);
  std::sort(blocks.begin(), blocks.end());
  std::vector<std::int64_t> rows;
  for (const std::int64_t block : blocks) {
    const Slot* page = pages_.at(block).get();
    for (std::size_t i = 0; i < page_size(); ++i) {
      const std::int64_t row = (block << block_bits_) + static_cast<std::int64_t>(i);
      if (page[i] == kAbsent || row < begin) continue;
      if (rows.size() == limit) return rows;
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace paceline

#include "sparse/row_store.h"

#include <paceline/error.h>
#include <sys/mman.h>

#include <algorithm>
#include <limits>

namespace paceline {

RowStore::RowStore(int block_bits, std::size_t record_bytes)
    : block_bits_(block_bits), record_bytes_(record_bytes), slots_(block_bits, kAbsent) {
  constexpr std::size_t kChunkBytes = std::size_t{64} << 20;
  while ((record_bytes_ << (chunk_bits_ + 1)) <= kChunkBytes) ++chunk_bits_;
  chunk_mask_ = (std::size_t{1} << chunk_bits_) - 1;
}

void RowStore::Unmap::operator()(std::byte* memory) const { munmap(memory, bytes); }

RowStore::Chunk RowStore::make_chunk() const {
  const std::size_t bytes = record_bytes_ << chunk_bits_;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw OutOfMemory(str("no memory for ", bytes, " bytes of a table's rows"));
  // Random rows of a large table miss the processor's page tables less if pages are large; a small one would take more
  // memory than it has rows for.
  constexpr std::size_t kSmallTable = std::size_t{4} << 20;
  const std::size_t small = chunks_.empty() ? std::min(bytes, kSmallTable) : 0;
  madvise(static_cast<std::byte*>(memory) + small, bytes - small, MADV_HUGEPAGE);
  return Chunk(static_cast<std::byte*>(memory), Unmap{bytes});
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

std::size_t RowStore::bytes() const { return size_ * record_bytes_ + slots_.bytes(); }

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

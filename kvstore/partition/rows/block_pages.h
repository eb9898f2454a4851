#pragma once
// A map from row numbers to values, in pages of neighbouring rows. The first write to a row of a page makes the page.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rows/mapped_memory.h"

namespace paceline {

template <class T>
class BlockPages {
 public:
  // A page covers a block of 2^block_bits rows. Rows that were never written have the value `absent`.
  BlockPages(int block_bits, T absent) : block_bits_(block_bits), absent_(absent), entries_(kFirstEntries) {}

  // The values of many rows. Ascending rows are faster.
  void get(std::span<const std::int64_t> rows, T* values) const {
    visit<const T>(
        rows, [this](std::int64_t block) { return find(block); },
        [this, values](std::size_t i, const T* at) { values[i] = at ? *at : absent_; });
  }
  void set(std::span<const std::int64_t> rows, const T* values) {
    visit<T>(
        rows, [this](std::int64_t block) { return make(block); }, [values](std::size_t i, T* at) { *at = values[i]; });
  }
  void clear() { *this = BlockPages(block_bits_, absent_); }

  std::size_t page_size() const { return std::size_t{1} << block_bits_; }
  std::size_t bytes() const { return pages_ * page_bytes() + entries_.size() * sizeof(Entry); }
  // Calls visit(block, page) for each page, in no order.
  template <class Visit>
  void for_each(Visit visit) const {
    for (const Entry& entry : entries_)
      if (entry.page) visit(entry.block, static_cast<const T*>(entry.page));
  }

 private:
  struct Entry {
    std::int64_t block = 0;
    T* page = nullptr;
  };
  static constexpr std::size_t kFirstEntries = 16;

  // Calls use(i, address of the value of rows[i]) for each i. Prefetches memory one batch ahead, into the second-level
  // cache, because the first-level cache can have fewer misses outstanding.
  template <class Value, class PageOf, class Use>
  void visit(std::span<const std::int64_t> rows, PageOf page_of, Use use) const {
    constexpr std::size_t kBatch = 64;
    Value* at[2][kBatch];
    std::int64_t block = -1;
    Value* page = nullptr;
    for (std::size_t begin = 0, turn = 0; begin < rows.size() + kBatch; begin += kBatch, turn ^= 1) {
      for (std::size_t i = begin; i < std::min(begin + kBatch, rows.size()); ++i) {
        if (rows[i] >> block_bits_ != block) page = page_of(block = rows[i] >> block_bits_);
        Value* const place = page ? page + place_of(rows[i]) : nullptr;
        __builtin_prefetch(place, 0, 2);
        at[turn][i - begin] = place;
      }
      if (begin == 0) continue;
      const std::size_t before = begin - kBatch;
      for (std::size_t i = before; i < std::min(begin, rows.size()); ++i) use(i, at[turn ^ 1][i - before]);
    }
  }
  std::size_t place_of(std::int64_t row) const { return static_cast<std::size_t>(row) & (page_size() - 1); }
  // The index of the block's entry, or of a free entry if the block has none yet. Neighbouring blocks have entries near
  // each other, because they are read one after the other.
  std::size_t entry_of(std::int64_t block) const {
    constexpr int kNeighbours = 6;
    const std::uint64_t number = static_cast<std::uint64_t>(block);
    const std::uint64_t mixed = (number >> kNeighbours) * 0x9E3779B97F4A7C15u;
    std::size_t at = static_cast<std::size_t>((mixed >> 20) + number) & (entries_.size() - 1);
    while (entries_[at].page && entries_[at].block != block) at = (at + 1) & (entries_.size() - 1);
    return at;
  }
  const T* find(std::int64_t block) const { return entries_[entry_of(block)].page; }
  T* make(std::int64_t block) {
    std::size_t at = entry_of(block);
    if (!entries_[at].page) {
      if (2 * (pages_ + 1) > entries_.size()) {
        std::vector<Entry> old(2 * entries_.size());
        old.swap(entries_);
        for (const Entry& entry : old)
          if (entry.page) entries_[entry_of(entry.block)] = entry;
        at = entry_of(block);
      }
      entries_[at] = {block, make_page()};
    }
    return entries_[at].page;
  }
  T* make_page() {
    if (page_bytes() > room_) {
      constexpr std::size_t kFirstSlab = 64 << 10, kDoublings = 6, kLargestSlab = kFirstSlab << kDoublings;
      const std::size_t bytes = std::max(page_bytes(), kFirstSlab << std::min<std::size_t>(slabs_.size(), kDoublings));
      slabs_.push_back(map_memory(bytes, bytes < kLargestSlab ? bytes : 0));
      room_ = bytes;
    }
    const MappedMemory& slab = slabs_.back();
    T* const page = reinterpret_cast<T*>(slab.get() + slab.get_deleter().bytes - room_);
    room_ -= page_bytes();
    ++pages_;
    std::fill_n(page, page_size(), absent_);
    return page;
  }
  std::size_t page_bytes() const { return page_size() * sizeof(T); }

  int block_bits_;
  T absent_;
  std::size_t pages_ = 0, room_ = 0;  // room_: bytes left in the last slab
  std::vector<MappedMemory> slabs_;
  std::vector<Entry> entries_;  // hash table with linear probing
};

}  // namespace paceline

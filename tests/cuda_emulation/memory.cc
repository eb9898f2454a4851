#include "memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace cuda_emulation {
namespace {

constexpr std::size_t kPage = 4096;
constexpr unsigned char kJunk = 0xff;  // NaN in every floating type, no valid position
constexpr std::size_t kBehind = 64;    // bytes of junk behind every allocation, at least

void check_junk(const char* memory, std::size_t from, std::size_t to, const char* what) {
  for (std::size_t i = from; i < to; ++i)
    if (static_cast<unsigned char>(memory[i]) != kJunk) {
      std::fprintf(stderr, "cuda emulation: memory was written %s: byte %zu of the allocation at %p\n", what, i,
                   static_cast<const void*>(memory));
      std::abort();
    }
}

}  // namespace

Memory::Memory() {
  void* const range = mmap(nullptr, kCapacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) {
    std::perror("cuda emulation: no address range is left for a device");
    std::abort();
  }
  madvise(range, kCapacity, MADV_DONTDUMP);
  base_ = static_cast<char*>(range);
}

void Memory::protect(char* from, std::size_t bytes, bool may_touch) const {
  if (bytes > 0 && mprotect(from, bytes, may_touch ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) {
    std::perror("cuda emulation: protecting the memory of a device");
    std::abort();
  }
}

void* Memory::reserve(std::size_t bytes, const Clock& known) {
  if (bytes > kCapacity / 2) return nullptr;
  std::size_t size = kPage;
  while (size < bytes + kBehind) size *= 2;
  char* found = nullptr;
  for (auto& [memory, block] : blocks_)
    if (block.size == size && !block.is_reserved && known.covers(block.gone)) {
      found = memory;
      break;
    }
  if (!found) {
    if (size > kCapacity - used_) return nullptr;
    found = base_ + used_;
    used_ += size;
    blocks_[found].size = size;
    if (open_) protect(found, size, true);
  }
  Block& block = blocks_[found];
  block.is_reserved = true;
  block.reserved = bytes;
  in_use_ += bytes;
  return found;
}

bool Memory::give_up(void* memory, const Point& end) {
  const auto found = blocks_.find(static_cast<char*>(memory));
  if (found == blocks_.end() || !found->second.is_reserved) return false;
  found->second.is_reserved = false;
  found->second.gone = end;
  in_use_ -= found->second.reserved;
  return true;
}

std::optional<std::size_t> Memory::bytes_from(const void* memory) const {
  auto* const at = static_cast<char*>(const_cast<void*>(memory));
  auto found = blocks_.upper_bound(at);
  if (found == blocks_.begin()) return std::nullopt;
  --found;
  const auto offset = static_cast<std::size_t>(at - found->first);
  if (!found->second.is_reserved || offset > found->second.reserved) return std::nullopt;
  return found->second.reserved - offset;
}

void Memory::begin(void* memory, std::size_t bytes, const Point& begin) {
  auto* const first = static_cast<char*>(memory);
  Block& block = blocks_.at(first);
  protect(first, block.size, true);
  if (block.there > 0) check_junk(first, 0, block.there, "after its end");
  std::memset(first, kJunk, block.size);
  block.there = bytes;
  block.began = begin;
}

void Memory::end(void* memory) {
  auto* const first = static_cast<char*>(memory);
  Block& block = blocks_.at(first);
  protect(first, block.size, true);
  check_junk(first, block.there, block.size, "past its end");
  std::memset(first, kJunk, block.there);
  block.began.reset();
}

void Memory::open(const Clock& known) {
  protect(base_, used_, true);
  open_ = true;
  for (const auto& [memory, block] : blocks_)
    if (block.began ? !known.covers(*block.began) : block.is_reserved) protect(memory, block.size, false);
}

void Memory::close() {
  if (!open_) return;
  protect(base_, used_, false);
  open_ = false;
}

}  // namespace cuda_emulation

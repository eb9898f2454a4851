#pragma once
// Memory mapped from the system. It holds zeros, and takes no physical memory until it is written.

#include <sys/mman.h>

#include <paceline/error.h>

#include <cstddef>
#include <memory>

namespace paceline {

struct Unmap {
  std::size_t bytes = 0;
  void operator()(std::byte* memory) const { munmap(memory, bytes); }
};
using MappedMemory = std::unique_ptr<std::byte[], Unmap>;

// Maps `bytes` bytes. The bytes after the first `small` bytes have huge pages if the system makes them, so that random
// accesses miss the TLB less often. Throws OutOfMemory.
inline MappedMemory map_memory(std::size_t bytes, std::size_t small) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw OutOfMemory(str("no memory for ", bytes, " bytes of a table's rows"));
  std::byte* const first = static_cast<std::byte*>(memory);
  if (small < bytes) madvise(first + small, bytes - small, MADV_HUGEPAGE);
  return MappedMemory(first, Unmap{bytes});
}

}  // namespace paceline

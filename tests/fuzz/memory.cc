// Counts what operator new gives. Memory that libraries take from malloc() is not counted; libFuzzer limits it.

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "fuzz.h"

namespace paceline::fuzz {
namespace {

std::atomic<std::size_t> live = 0, peak = 0;

void count(void* memory) {
  const std::size_t bytes = malloc_usable_size(memory);
  const std::size_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::size_t most = peak.load(std::memory_order_relaxed);
  while (most < now && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
}

void* allocate(std::size_t bytes) {
  void* const memory = std::malloc(bytes > 0 ? bytes : 1);
  if (!memory) throw std::bad_alloc();
  count(memory);
  return memory;
}

void* allocate(std::size_t bytes, std::align_val_t alignment) {
  const auto boundary = static_cast<std::size_t>(alignment);
  void* const memory =
      std::aligned_alloc(boundary, (std::max<std::size_t>(bytes, 1) + boundary - 1) / boundary * boundary);
  if (!memory) throw std::bad_alloc();
  count(memory);
  return memory;
}

void release(void* memory) {
  if (!memory) return;
  live.fetch_sub(malloc_usable_size(memory), std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

std::size_t live_bytes() { return live; }
std::size_t peak_bytes() { return peak; }
void reset_peak() { peak.store(live.load()); }

}  // namespace paceline::fuzz

void* operator new(std::size_t bytes) { return paceline::fuzz::allocate(bytes); }
void* operator new[](std::size_t bytes) { return paceline::fuzz::allocate(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return paceline::fuzz::allocate(bytes, alignment); }
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return paceline::fuzz::allocate(bytes, alignment);
}
void operator delete(void* memory) noexcept { paceline::fuzz::release(memory); }
void operator delete[](void* memory) noexcept { paceline::fuzz::release(memory); }
void operator delete(void* memory, std::size_t) noexcept { paceline::fuzz::release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { paceline::fuzz::release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { paceline::fuzz::release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { paceline::fuzz::release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { paceline::fuzz::release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { paceline::fuzz::release(memory); }

// Counts what operator new gives. Memory that libraries take from malloc() is counted by memory_of_sanitizer.cc only.

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

void* allocate_or_null(std::size_t bytes) noexcept {
  void* const memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory) count(memory);
  return memory;
}

void* allocate(std::size_t bytes) {
  void* const memory = allocate_or_null(bytes);
  if (!memory) throw std::bad_alloc();
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

// Every form that the libraries use: the sanitizer takes memory of one form back by another for a mistake.
void* operator new(std::size_t bytes) { return paceline::fuzz::allocate(bytes); }
void* operator new[](std::size_t bytes) { return paceline::fuzz::allocate(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return paceline::fuzz::allocate(bytes, alignment); }
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return paceline::fuzz::allocate(bytes, alignment);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return paceline::fuzz::allocate_or_null(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return paceline::fuzz::allocate_or_null(bytes);
}
void operator delete(void* memory) noexcept { paceline::fuzz::release(memory); }
void operator delete[](void* memory) noexcept { paceline::fuzz::release(memory); }
void operator delete(void* memory, std::size_t) noexcept { paceline::fuzz::release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { paceline::fuzz::release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { paceline::fuzz::release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { paceline::fuzz::release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { paceline::fuzz::release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { paceline::fuzz::release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { paceline::fuzz::release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { paceline::fuzz::release(memory); }

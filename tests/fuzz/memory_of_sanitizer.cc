// Counts what the sanitizer's allocator gives, to libraries too. libFuzzer must get its own memory from it, so operator
// new cannot be replaced here.

#include <sanitizer/allocator_interface.h>

#include <atomic>

#include "fuzz.h"

namespace paceline::fuzz {
namespace {

std::atomic<std::size_t> live = 0, peak = 0;

void on_malloc(const volatile void*, std::size_t bytes) {
  const std::size_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::size_t most = peak.load(std::memory_order_relaxed);
  while (most < now && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
}

void on_free(const volatile void* memory) {
  live.fetch_sub(__sanitizer_get_allocated_size(memory), std::memory_order_relaxed);
}

}  // namespace

std::size_t live_bytes() {
  static const bool installed = [] {
    live = __sanitizer_get_current_allocated_bytes();
    return __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free) != 0;
  }();
  expect(installed, "the sanitizer takes no hooks");
  return live;
}
std::size_t peak_bytes() { return peak; }
void reset_peak() { peak.store(live.load()); }

}  // namespace paceline::fuzz

#pragma once
// The memory of one simulated device: an address range of its own, blocks of powers of two, given back in stream order.

#include <paceline/detail/device_runtime.h>
#include <paceline/mutex.h>

#include <array>
#include <atomic>
#include <list>
#include <string>

namespace paceline::detail {

class SimulatedMemory {
 public:
  explicit SimulatedMemory(int index);
  ~SimulatedMemory();

  // Memory that `stream` released may come back at once, because later work of the same stream runs after the release;
  // other streams get it once the release has happened.
  void* allocate(std::size_t bytes, Stream* stream);
  void release(void* memory, std::size_t bytes, Stream* stream);

  bool contains(const void* memory, std::size_t bytes) const;

 private:
  struct FreeBlock {
    void* memory;
    Stream* stream;
    std::shared_ptr<std::atomic<bool>> released;
  };
  static constexpr int kSizes = 48;

  void* grow(std::size_t block, const std::string& who) PACELINE_REQUIRES(mutex_);

  const int index_;
  char* begin_ = nullptr;
  Mutex mutex_;
  std::size_t used_ PACELINE_GUARDED_BY(mutex_) = 0;
  std::array<std::list<FreeBlock>, kSizes> free_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline::detail

#pragma once
// Memory of batches, handed out again when the last array that uses it is gone.

#include <paceline/device.h>
#include <paceline/mutex.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace paceline::io {

// Thread-safe. Keeps a few free blocks; blocks outlive it safely.
class BatchMemory : public std::enable_shared_from_this<BatchMemory> {
 public:
  ~BatchMemory();
  // From now on memory is pinned where this is an accelerator. Not beside allocate().
  void use_for(Device device) { device_ = device; }
  // `bytes` of uninitialised memory, aligned for vectors.
  std::shared_ptr<void> allocate(std::size_t bytes);

 private:
  struct Block {
    void* memory;
    std::size_t bytes;
  };
  void release(Block block);

  Device device_;
  Mutex mutex_;
  std::vector<Block> free_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline::io

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

// A batch before it becomes arrays.
struct HostBatch {
  HostBatch() = default;
  HostBatch(const std::shared_ptr<BatchMemory>& from, std::size_t data_bytes, std::size_t label_bytes)
      : data(from->allocate(data_bytes)), label(from->allocate(label_bytes)) {}

  std::shared_ptr<void> data;
  std::shared_ptr<void> label;
  std::int64_t examples = 0;
};

}  // namespace paceline::io

#pragma once
// One block of memory and the engine variable that orders its use. Arrays and their views share it; tasks that use it
// hold it, so the memory is free of work when the last holder lets go.

#include "memory_pool.h"

#include <paceline/engine.h>

#include <atomic>
#include <exception>
#include <memory>

namespace paceline::detail {

class Storage {
 public:
  // Uninitialised memory of the device's pool; pinned memory, which a device copies from and to, is the CPU's. Throws
  // NotAvailable, OutOfMemory.
  Storage(Engine& engine, Device device, MemoryKind kind, std::size_t bytes);
  // Memory that `owner` keeps alive.
  Storage(Engine& engine, Device device, void* memory, std::size_t bytes, std::shared_ptr<void> owner);

  void* data() const { return memory_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  Engine& engine() const { return engine_; }
  const Variable& variable() const { return variable_; }

  // The failure of work that was already issued to a stream when it failed, which the engine cannot see any more.
  // Ordered like the memory itself: set by the writer, read by those who come after it.
  void set_failure(std::exception_ptr failure);
  void throw_failure() const;
  const std::exception_ptr& failure() const { return failure_; }

 private:
  Engine& engine_;
  const Device device_;
  const Variable variable_;
  std::shared_ptr<void> owner_;  // of the memory that is not the pool's
  PoolBlock block_;
  void* const memory_;
  const std::size_t bytes_;
  std::exception_ptr failure_;
};

}  // namespace paceline::detail

#pragma once
// One block of memory and the engine variable that orders its use. Arrays and their views share it; tasks that use it
// hold it, so the memory is free of work when the last holder lets go.

#include "memory_pool.h"

#include <paceline/detail/layout.h>
#include <paceline/engine.h>

#include <atomic>
#include <exception>
#include <initializer_list>
#include <memory>
#include <vector>

namespace paceline::detail {

// One is made for each new array and often freed by another thread. With its counts it stays within the 120 bytes that
// glibc frees without the lock of the heap.
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

  // The number of writes so far: those that were pushed to the engine, and what host_wrote() counted.
  std::uint64_t writes() const { return variable_.version() + host_writes_.load(std::memory_order_relaxed); }
  void host_wrote() { host_writes_.fetch_add(1, std::memory_order_relaxed); }
  // The latest write touched no other elements than those of the layout.
  void note_partial_write(const Layout& layout);
  // Has any of the writes after the first `count`, up to number `last`, touched an element of each of the layouts? Also
  // true where that is not known.
  bool written_between(std::uint64_t count, std::uint64_t last, std::initializer_list<const Layout*> layouts) const;

 private:
  // Consecutive writes that go through the block in equal steps, like those of a loop over rows.
  struct PartialWrites {
    std::uint64_t first, last;  // their numbers
    Layout layout;              // what the first one touched, and nothing else
    std::int64_t step;          // by how many elements further each one lies than that before it

    Layout of(std::uint64_t number) const;
  };
  struct Notes {
    std::uint64_t time = 0;             // in which they were made
    std::vector<PartialWrites> latest;  // in order, and without a gap
  };

  Engine& engine_;
  const Device device_;
  const Variable variable_;
  std::shared_ptr<void> owner_;  // of the memory that is not the pool's
  PoolBlock block_;
  void* const memory_;
  const std::size_t bytes_;
  std::exception_ptr failure_;
  std::atomic<std::uint64_t> host_writes_ = 0;
  std::unique_ptr<Notes> notes_;  // null in most blocks
};

}  // namespace paceline::detail

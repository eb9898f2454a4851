#include "storage.h"

#include "capture/listener.h"
#include "guard.h"

#include <paceline/detail/checking.h>
#include <paceline/detail/host_memory.h>
#include <paceline/detail/shared_heap.h>

#include <utility>

namespace paceline::detail {
namespace {

// The checking build's memory. Not where others than tasks of the CPU use it: peers read the shared heap in place.
std::shared_ptr<void> guarded([[maybe_unused]] Engine& engine, [[maybe_unused]] const Variable& variable, Device device,
                              MemoryKind kind, [[maybe_unused]] std::size_t bytes) {
  if constexpr (kChecksAccess)
    if (device.is_cpu() && kind == MemoryKind::kNormal && !SharedHeap::enabled())
      return allocate_guarded(engine, variable, bytes);
  return nullptr;
}

}  // namespace

Storage::Storage(Engine& engine, Device device, MemoryKind kind, std::size_t bytes)
    : engine_(engine),
      device_(kind == MemoryKind::kPinned ? Device() : device),
      variable_(engine.new_variable()),
      owner_(guarded(engine, variable_, device, kind, bytes)),
      block_(owner_ ? PoolBlock() : PoolBlock(device, kind, bytes)),
      memory_(owner_ ? owner_.get() : block_.data()),
      bytes_(bytes) {
  if (CaptureListener* const listener = CaptureListener::current()) listener->created(*this);
}

Storage::Storage(Engine& engine, Device device, void* memory, std::size_t bytes, std::shared_ptr<void> owner)
    : engine_(engine),
      device_(device),
      variable_(engine.new_variable()),
      owner_(std::move(owner)),
      memory_(memory),
      bytes_(bytes) {
  if constexpr (kChecksAccess) leave_unguarded(memory);
  if (CaptureListener* const listener = CaptureListener::current()) listener->created(*this);
}

void Storage::set_failure(std::exception_ptr failure) { failure_ = std::move(failure); }

void Storage::throw_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

std::shared_ptr<std::byte[]> allocate_host(std::size_t bytes) {
  if (bytes < kSmallestShared) return std::shared_ptr<std::byte[]>(new std::byte[bytes]);
  const auto block = std::make_shared<PoolBlock>(Device{}, MemoryKind::kNormal, bytes);
  return {block, static_cast<std::byte*>(block->data())};
}

void trim_host() { memory_pool(Device{}).trim(); }

}  // namespace paceline::detail

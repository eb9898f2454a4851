#include "storage.h"

#include "capture/listener.h"
#include "guard.h"

#include <paceline/detail/checking.h>
#include <paceline/detail/host_memory.h>
#include <paceline/detail/shared_heap.h>
#include <paceline/mutex.h>

#include <algorithm>
#include <utility>

namespace paceline::detail {
namespace {

// Of NotesWrites: how many there are, and how often there was a first one. Notes of an earlier time are worth nothing.
std::atomic<int> noting = 0;
std::atomic<std::uint64_t> noting_time = 0;

// Guards every block's notes.
Mutex partial_writes_mutex;
constexpr std::size_t kKeptPartialWrites = 4096;  // the older half goes when there would be more

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

NotesWrites::NotesWrites() {
  if (noting.fetch_add(1, std::memory_order_relaxed) == 0) noting_time.fetch_add(1, std::memory_order_relaxed);
}
NotesWrites::~NotesWrites() { noting.fetch_sub(1, std::memory_order_relaxed); }

void Storage::note_partial_write(const Layout& layout) {
  if (noting.load(std::memory_order_relaxed) == 0) return;
  const Lock lock(partial_writes_mutex);
  const std::uint64_t time = noting_time.load(std::memory_order_relaxed);
  if (!partial_writes_) partial_writes_ = std::make_unique<PartialWrites>();
  std::vector<PartialWrite>& latest = partial_writes_->latest;
  if (std::exchange(partial_writes_->time, time) != time) latest.clear();
  if (latest.size() == kKeptPartialWrites) latest.erase(latest.begin(), latest.begin() + kKeptPartialWrites / 2);
  latest.push_back({writes(), layout});
}

bool Storage::written_since(std::uint64_t count, const Layout& layout) const {
  const std::uint64_t now = writes();
  if (now == count) return false;
  const Lock lock(partial_writes_mutex);
  if (!partial_writes_) return true;
  std::uint64_t number = count;  // up to which nothing has touched the elements
  const std::vector<PartialWrite>& latest = partial_writes_->latest;
  const auto first = std::ranges::lower_bound(latest, count + 1, {}, &PartialWrite::number);
  for (auto write = first; write != latest.end(); ++write) {
    if (write->number > number + 1 || may_overlap(write->layout, layout)) return true;
    number = write->number;
  }
  return number != now;
}

std::shared_ptr<std::byte[]> allocate_host(std::size_t bytes) {
  if (bytes < kSmallestShared) return std::shared_ptr<std::byte[]>(new std::byte[bytes]);
  const auto block = std::make_shared<PoolBlock>(Device{}, MemoryKind::kNormal, bytes);
  return {block, static_cast<std::byte*>(block->data())};
}

void trim_host() { memory_pool(Device{}).trim(); }

}  // namespace paceline::detail

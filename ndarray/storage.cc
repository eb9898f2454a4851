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
Mutex notes_mutex;
constexpr std::size_t kKeptNotes = 1 << 20;  // in a block; the older half goes when there would be more

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

Layout Storage::PartialWrites::of(std::uint64_t number) const {
  Layout moved = layout;
  moved.offset += static_cast<std::int64_t>(number - first) * step;
  return moved;
}

void Storage::note_partial_write(const Layout& layout) {
  if (noting.load(std::memory_order_relaxed) == 0) return;
  const Lock lock(notes_mutex);
  const std::uint64_t time = noting_time.load(std::memory_order_relaxed), number = writes();
  if (!notes_) notes_ = std::make_unique<Notes>();
  std::vector<PartialWrites>& latest = notes_->latest;
  if (!latest.empty() && latest.back().last == number) {  // one call that writes two parts of the block
    const Layout both = hull(latest.back().of(number), layout);
    if (latest.back().first == number)
      latest.pop_back();
    else
      --latest.back().last;
    latest.push_back({number, number, both, 0});
    return;
  }
  const bool gap = !latest.empty() && latest.back().last + 1 != number;
  if (std::exchange(notes_->time, time) != time || gap) latest.clear();
  if (!latest.empty()) {
    PartialWrites& run = latest.back();
    const std::int64_t step = layout.offset - run.of(run.last).offset;
    const bool alike =
        layout.shape == run.layout.shape && layout.strides == run.layout.strides && layout.dtype == run.layout.dtype;
    if (alike && (run.first == run.last || step == run.step)) {
      run.step = step;
      run.last = number;
      return;
    }
  }
  if (latest.size() == kKeptNotes) latest.erase(latest.begin(), latest.begin() + kKeptNotes / 2);
  latest.push_back({number, number, layout, 0});
}

bool Storage::written_between(std::uint64_t count, std::uint64_t last,
                              std::initializer_list<const Layout*> layouts) const {
  if (last <= count) return false;
  const Lock lock(notes_mutex);
  if (!notes_) return true;
  const std::vector<PartialWrites>& latest = notes_->latest;
  auto run = std::ranges::lower_bound(latest, count + 1, {}, &PartialWrites::last);
  if (run == latest.end() || run->first > count + 1 || latest.back().last < last) return true;
  const auto touches = [&](const Layout& written) {
    return std::ranges::all_of(layouts, [&](const Layout* layout) { return may_overlap(written, *layout); });
  };
  for (; run != latest.end() && run->first <= last; ++run) {
    const std::uint64_t begin = std::max(run->first, count + 1), end = std::min(run->last, last);
    if (!touches(hull(run->of(begin), run->of(end)))) continue;
    for (std::uint64_t number = begin; number <= end; ++number)
      if (touches(run->of(number))) return true;
  }
  return false;
}

std::shared_ptr<std::byte[]> allocate_host(std::size_t bytes) {
  if (bytes < kSmallestShared) return std::shared_ptr<std::byte[]>(new std::byte[bytes]);
  const auto block = std::make_shared<PoolBlock>(Device{}, MemoryKind::kNormal, bytes);
  return {block, static_cast<std::byte*>(block->data())};
}

void trim_host() { memory_pool(Device{}).trim(); }

}  // namespace paceline::detail

// The host: memory from the C library, or large blocks from the shared heap once there is one; work on the calling
// thread.

#include <paceline/detail/device_runtime.h>
#include <paceline/detail/shared_heap.h>
#include <paceline/error.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace paceline::detail {
namespace {

class CpuStream final : public Stream {
 public:
  void enqueue(std::function<void()> work) override { work(); }
};

class CpuEvent final : public Event {
 public:
  bool reached() const override { return true; }
  void synchronize() override {}
};

class CpuRuntime final : public DeviceRuntime {
 public:
  bool asynchronous() const override { return false; }

  void* allocate(std::size_t bytes, MemoryKind, Stream*) override {
    constexpr std::size_t kAlignment = 64;
    constexpr std::size_t kAddressable = std::size_t{1} << 47;
    const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    if (SharedHeap* heap = SharedHeap::enabled(); heap && bytes >= kSmallestShared && bytes < kAddressable)
      if (void* shared = heap->allocate(bytes)) return shared;
    void* memory = bytes < kAddressable ? std::aligned_alloc(kAlignment, rounded) : nullptr;
    if (!memory) throw OutOfMemory(str("the host has no ", bytes, " bytes left"));
    return memory;
  }

  void release(void* memory, std::size_t bytes, MemoryKind, Stream*) override {
    SharedHeap* heap = SharedHeap::enabled();
    if (heap && heap->contains(memory, bytes))
      heap->release(memory, bytes);
    else
      std::free(memory);
  }

  // Peers read large arrays in the shared heap in place, but not those from elsewhere. While it is full, there are no
  // better ones.
  bool is_reusable(const void* memory, std::size_t bytes) const override {
    const SharedHeap* const heap = SharedHeap::enabled();
    return !heap || bytes < kSmallestShared || heap->contains(memory, bytes) || heap->has_refused(bytes);
  }

  std::unique_ptr<Stream> create_stream(int) override { return std::make_unique<CpuStream>(); }

  void copy(void* to, const void* from, std::size_t bytes, CopyKind, Stream&) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  std::shared_ptr<Event> record(Stream&) override { return std::make_shared<CpuEvent>(); }
  void wait(Stream&, const Event&) override {}
  void when_done(Stream&, std::function<void(std::exception_ptr)> done) override { done(nullptr); }
  void synchronize(Stream&) override {}
};

}  // namespace

std::unique_ptr<DeviceRuntime> make_cpu_runtime(int) { return std::make_unique<CpuRuntime>(); }

}  // namespace paceline::detail

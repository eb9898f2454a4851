// Simulated accelerators: streams are threads that hold work up for random times, so that an order which nobody asked
// for does not come about by luck; memory has an address range of its own, and a copy checks both its ends.

#include "device/callback_thread.h"
#include "device/simulated_memory.h"

#include <paceline/detail/simulated_runtime.h>
#include <paceline/error.h>

#include <atomic>
#include <cassert>
#include <chrono>
#include <cstring>
#include <random>

namespace paceline::detail {
namespace {

std::atomic<std::int64_t> host_waits = 0;
std::atomic<int> streams_created = 0;
std::array<std::atomic<bool>, 4> broken;
constexpr std::uint64_t kPercentHeldUp = 20, kLongestMicroseconds = 100;

// Every device's memory, so that a copy can tell whose address it was given.
std::array<std::atomic<const SimulatedMemory*>, 4> memories;

bool on_some_device(const void* memory, std::size_t bytes) {
  for (const auto& known : memories) {
    const SimulatedMemory* device = known.load();
    if (device && device->contains(memory, bytes)) return true;
  }
  return false;
}

class EventState {
 public:
  void reach() {
    {
      const Lock lock(mutex_);
      reached_ = true;
    }
    changed_.notify_all();
  }
  void wait() {
    const Lock lock(mutex_);
    changed_.wait(mutex_, [this]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return reached_; });
  }
  bool reached() {
    const Lock lock(mutex_);
    return reached_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool reached_ PACELINE_GUARDED_BY(mutex_) = false;
};

class SimulatedEvent final : public Event {
 public:
  bool reached() const override { return state_->reached(); }
  void synchronize() override {
    ++host_waits;
    state_->wait();
  }
  const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  std::shared_ptr<EventState> state_ = std::make_shared<EventState>();
};

class SimulatedStream final : public Stream {
 public:
  SimulatedStream() : random_(1000003 + static_cast<std::uint64_t>(streams_created++)), worker_("sim stream") {}

  void enqueue(std::function<void()> work) override {
    worker_.post([this, work = std::move(work)] {
      hold_up();
      work();
    });
  }

 private:
  void hold_up() {
    if (random_() % 100 >= kPercentHeldUp) return;
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % (kLongestMicroseconds + 1)));
  }

  std::mt19937_64 random_;
  CallbackThread worker_;
};

class SimulatedRuntime final : public DeviceRuntime {
 public:
  explicit SimulatedRuntime(int index) : index_(index), memory_(index), callbacks_("sim callbacks") {
    memories[static_cast<std::size_t>(index)] = &memory_;
  }
  ~SimulatedRuntime() override { memories[static_cast<std::size_t>(index_)] = nullptr; }

  bool asynchronous() const override { return true; }

  void* allocate(std::size_t bytes, MemoryKind kind, Stream* stream) override {
    check();
    return kind == MemoryKind::kNormal ? memory_.allocate(bytes, stream)
                                       : runtime(Device()).allocate(bytes, kind, nullptr);
  }

  void release(void* memory, std::size_t bytes, MemoryKind kind, Stream* stream) override {
    if (kind == MemoryKind::kNormal) {
      memory_.release(memory, bytes, stream);
    } else if (stream) {
      stream->enqueue([=] { runtime(Device()).release(memory, bytes, kind, nullptr); });
    } else {
      runtime(Device()).release(memory, bytes, kind, nullptr);
    }
  }

  std::unique_ptr<Stream> create_stream(int) override { return std::make_unique<SimulatedStream>(); }

  void copy(void* to, const void* from, std::size_t bytes, CopyKind kind, Stream& stream) override {
    check();
    if (bytes == 0) return;
    const bool to_here = memory_.contains(to, bytes);
    const bool from_here = memory_.contains(from, bytes);
    const bool right = kind == CopyKind::kHostToDevice ? to_here && !on_some_device(from, bytes)
                       : kind == CopyKind::kDeviceToHost
                           ? from_here && !on_some_device(to, bytes)
                           : (to_here && on_some_device(from, bytes)) || (from_here && on_some_device(to, bytes));
    if (!right) throw Error(str("sim:", index_, " was asked for a copy whose ends are not where its direction says"));
    stream.enqueue([=] { std::memcpy(to, from, bytes); });
  }

  std::shared_ptr<Event> record(Stream& stream) override {
    check();
    return end_of(stream);
  }

  void wait(Stream& stream, const Event& event) override {
    const auto* other = dynamic_cast<const SimulatedEvent*>(&event);
    if (!other) throw Error(str("sim:", index_, " cannot wait for an event of another kind of device"));
    stream.enqueue([state = other->state()] { state->wait(); });
  }

  void when_done(Stream& stream, std::function<void(std::exception_ptr)> done) override {
    stream.enqueue([this, done = std::move(done)]() mutable {
      callbacks_.post([done = std::move(done), error = error()] { done(error); });
    });
  }

  void synchronize(Stream& stream) override {
    end_of(stream)->synchronize();
    check();
  }

 private:
  static std::shared_ptr<Event> end_of(Stream& stream) {
    auto event = std::make_shared<SimulatedEvent>();
    stream.enqueue([state = event->state()] { state->reach(); });
    return event;
  }
  std::exception_ptr error() const {
    return broken[static_cast<std::size_t>(index_)]
               ? std::make_exception_ptr(DeviceError(str("sim:", index_, " was told to break down")))
               : nullptr;
  }
  void check() const {
    if (const std::exception_ptr found = error()) std::rethrow_exception(found);
  }

  const int index_;
  SimulatedMemory memory_;
  CallbackThread callbacks_;
};

}  // namespace

void break_simulated_device(int index, bool is_broken) { broken[static_cast<std::size_t>(index)] = is_broken; }

std::int64_t simulated_host_waits() { return host_waits; }

std::unique_ptr<DeviceRuntime> make_simulated_runtime(int index) { return std::make_unique<SimulatedRuntime>(index); }

}  // namespace paceline::detail

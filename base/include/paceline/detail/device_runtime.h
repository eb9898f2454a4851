#pragma once
// One device as the engine and the arrays see it: memory, streams, events. No CUDA types. Not installed.

#include <paceline/device.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

namespace paceline::detail {

// Ordered work of one device. On the CPU a stream is empty: work runs on the calling thread.
class Stream {
 public:
  virtual ~Stream() = default;
  // The native handle (cudaStream_t) for kernels of that device; nullptr elsewhere.
  virtual void* native() const { return nullptr; }
  // Appends host work that runs in stream order, on a thread of the device. Must not throw, must not call the device.
  // On the simulated device this is how kernels run. CUDA: a host function, for completions only.
  virtual void enqueue(std::function<void()> work) = 0;
};

// A point in a stream. Created by DeviceRuntime::record, reached when all earlier work of the stream is done.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool reached() const = 0;
  // Blocks the calling host thread. Throws what the device reported for the work before it.
  virtual void synchronize() = 0;
};

enum class MemoryKind : std::uint8_t { kNormal, kPinned, kShared };

// Direction of a copy, seen from this runtime's device.
enum class CopyKind : std::uint8_t { kHostToDevice, kDeviceToHost, kDeviceToDevice };

// Work that was issued once and is issued again as a whole (a CUDA graph). Calls for one of them take turns.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  virtual void issue(Stream& stream) = 0;
};

// All functions are thread-safe. Failures throw NotAvailable, OutOfMemory, DeviceError or Error with the device's own
// words. After a DeviceError all further work of the device fails with one.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  // True: work of this device is issued to streams and completes later. False: it is complete on return (CPU).
  virtual bool asynchronous() const = 0;

  // At least 64-byte aligned. `stream` (may be null) is the one that will use it first.
  virtual void* allocate(std::size_t bytes, MemoryKind kind, Stream* stream) = 0;
  // Memory may be reused once the work that `stream` holds now is done.
  virtual void release(void* memory, std::size_t bytes, MemoryKind kind, Stream* stream) = 0;
  // May a pool hand this block out again? Not if allocate() would now return memory of another kind for this size.
  virtual bool is_reusable(const void* /*memory*/, std::size_t /*bytes*/) const { return true; }

  // Work of streams with a larger priority goes first where the device can do that.
  virtual std::unique_ptr<Stream> create_stream(int priority) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes, CopyKind kind, Stream& stream) = 0;

  virtual std::shared_ptr<Event> record(Stream& stream) = 0;
  // Later work of `stream` waits for `event`, which may come from another stream or device of the same kind.
  virtual void wait(Stream& stream, const Event& event) = 0;
  // Calls `done` (from any thread, not holding locks) when all earlier work of `stream` is complete, or has failed,
  // then with what the device reported.
  virtual void when_done(Stream& stream, std::function<void(std::exception_ptr error)> done) = 0;
  // Blocks until all work of `stream` is complete, or has failed; throws then what the device reported.
  virtual void synchronize(Stream& stream) = 0;

  // Keeps what `issue` issues to `stream` instead of running it; null where the device or the work cannot be kept,
  // which also means that `issue` threw.
  virtual std::unique_ptr<RecordedWork> keep_work(Stream&, const std::function<void()>&) { return nullptr; }

  // How many bytes of new memory a thread may ask for in tasks that are not complete (run_ahead.h).
  virtual std::int64_t run_ahead_bytes() const { return std::int64_t{64} << 20; }
};

// The runtime of a device; throws NotAvailable with what to do where it cannot be used. Lives until the process ends.
DeviceRuntime& runtime(Device device);

// One per kind; called by runtime() only. CMake picks the file that defines make_cuda_runtime.
std::unique_ptr<DeviceRuntime> make_cpu_runtime(int index);
std::unique_ptr<DeviceRuntime> make_simulated_runtime(int index);
std::unique_ptr<DeviceRuntime> make_cuda_runtime(int index);
int cuda_device_count();

}  // namespace paceline::detail

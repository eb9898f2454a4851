// CUDA devices: memory from the driver's stream-ordered pool, streams that do not wait for the default stream.
//
// Completions wait on events instead of running as host functions: a host function stops its stream until it has run,
// may not call CUDA, and is left out after an error.

#include "device/callback_thread.h"

#include <paceline/detail/cuda_check.h>
#include <paceline/detail/device_runtime.h>
#include <paceline/detail/physical_device.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <vector>

namespace paceline::detail {
namespace {

class CudaEvent final : public Event {
 public:
  // A thread that waits for the event sleeps. There is one such thread for each stream, and other threads need the
  // cores.
  CudaEvent() {
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync), "creating an event");
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool reached() const override {
    if (cudaEventQuery(event_) != cudaErrorNotReady) return true;
    cudaGetLastError();  // "not ready" stays behind like an error
    return false;
  }
  void synchronize() override { check_cuda(cudaEventSynchronize(event_), "waiting for an event"); }
  cudaEvent_t native() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Every task asks for events, so they are used again. Each event in use shares the pool and keeps it alive.
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  std::shared_ptr<CudaEvent> take() {
    std::unique_ptr<CudaEvent> event;
    {
      const Lock lock(mutex_);
      if (!free_.empty()) {
        event = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (!event) event = std::make_unique<CudaEvent>();
    return {event.release(), [pool = shared_from_this()](CudaEvent* used) { pool->give(used); }};
  }

 private:
  void give(CudaEvent* event) {
    const Lock lock(mutex_);
    free_.emplace_back(event);
  }

  Mutex mutex_;
  std::vector<std::unique_ptr<CudaEvent>> free_ PACELINE_GUARDED_BY(mutex_);
};

class CudaStream final : public Stream {
 public:
  explicit CudaStream(int priority) : done_("cuda done") {
    int least = 0;
    int greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for stream priorities");
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, std::max(greatest, least - priority)),
               "creating a stream");
  }
  ~CudaStream() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void* native() const override { return stream_; }

  void enqueue(std::function<void()> work) override {
    auto owned = std::make_unique<std::function<void()>>(std::move(work));
    const auto run = [](void* argument) {
      const std::unique_ptr<std::function<void()>> received(static_cast<std::function<void()>*>(argument));
      (*received)();
    };
    check_cuda(cudaLaunchHostFunc(stream_, run, owned.get()), "issuing host work to a stream");
    owned.release();
  }

  CallbackThread& done() { return done_; }

 private:
  cudaStream_t stream_ = nullptr;
  CallbackThread done_;
};

cudaStream_t native(Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

class CudaGraph final : public RecordedWork {
 public:
  explicit CudaGraph(cudaGraphExec_t executable) : executable_(executable) {}
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void issue(Stream& stream) override {
    check_cuda(cudaGraphLaunch(executable_, native(stream)), "issuing recorded work");
  }

 private:
  const cudaGraphExec_t executable_;
};

// Did a call succeed that is allowed to fail? Clears CUDA's last error where it failed. Throws DeviceError where the
// device is lost.
bool succeeded(cudaError_t status, const char* what) {
  if (breaks_device(status)) check_cuda(status, what);
  if (status != cudaSuccess) cudaGetLastError();
  return status == cudaSuccess;
}

int devices_of_the_machine() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

class CudaRuntime final : public DeviceRuntime {
 public:
  explicit CudaRuntime(int index) : index_(index) {
    select();
    int supported = 0;
    check_cuda(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, physical()),
               "asking for memory pools");
    pooled_ = supported != 0;
    if (pooled_) {
      cudaMemPool_t pool = nullptr;
      check_cuda(cudaDeviceGetDefaultMemPool(&pool, physical()), "asking for the memory pool");
      // Otherwise each synchronisation gives all free memory back to the driver.
      std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
      check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "setting up the memory pool");
      let_peers_in(pool);
    }
    std::size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "asking for the size of the memory");
    run_ahead_bytes_ = static_cast<std::int64_t>(total / 8);
    own_stream_ = std::make_unique<CudaStream>(0);
  }

  bool asynchronous() const override { return true; }

  void* allocate(std::size_t bytes, MemoryKind kind, Stream* stream) override {
    select();
    void* memory = nullptr;
    if (kind != MemoryKind::kNormal) {
      check_cuda(cudaHostAlloc(&memory, std::max<std::size_t>(bytes, 1), cudaHostAllocPortable),
                 "allocating pinned memory");
      return memory;
    }
    if (!pooled_) {
      check_cuda(cudaMalloc(&memory, std::max<std::size_t>(bytes, 1)), "allocating memory");
      return memory;
    }
    Stream& user = stream ? *stream : *own_stream_;
    check_cuda(cudaMallocAsync(&memory, std::max<std::size_t>(bytes, 1), native(user)), "allocating memory");
    if (!stream) synchronize(user);
    return memory;
  }

  void release(void* memory, std::size_t, MemoryKind kind, Stream* stream) override {
    select();
    if (kind != MemoryKind::kNormal) {
      if (stream) synchronize(*stream);
      check_cuda(cudaFreeHost(memory), "releasing pinned memory");
    } else if (pooled_) {
      check_cuda(cudaFreeAsync(memory, native(stream ? *stream : *own_stream_)), "releasing memory");
    } else {
      if (stream) synchronize(*stream);
      check_cuda(cudaFree(memory), "releasing memory");
    }
  }

  std::unique_ptr<Stream> create_stream(int priority) override {
    select();
    return std::make_unique<CudaStream>(priority);
  }

  void copy(void* to, const void* from, std::size_t bytes, CopyKind kind, Stream& stream) override {
    select();
    // Between devices the driver finds out from the addresses which ones.
    const cudaMemcpyKind direction = kind == CopyKind::kHostToDevice   ? cudaMemcpyHostToDevice
                                     : kind == CopyKind::kDeviceToHost ? cudaMemcpyDeviceToHost
                                                                       : cudaMemcpyDefault;
    check_cuda(cudaMemcpyAsync(to, from, bytes, direction, native(stream)), "copying memory");
  }

  std::shared_ptr<Event> record(Stream& stream) override {
    select();
    std::shared_ptr<CudaEvent> event = events_->take();
    check_cuda(cudaEventRecord(event->native(), native(stream)), "recording an event");
    return event;
  }

  void wait(Stream& stream, const Event& event) override {
    select();
    const auto* other = dynamic_cast<const CudaEvent*>(&event);
    if (!other) throw Error(str("cuda:", index_, " cannot wait for an event of another kind of device"));
    check_cuda(cudaStreamWaitEvent(native(stream), other->native(), 0), "waiting for an event in a stream");
  }

  // After a kernel's fault every event reports it. So do events of work that was complete before, but was not asked
  // for. The first task that learns of the fault is therefore the one that faulted, or one shortly before.
  void when_done(Stream& stream, std::function<void(std::exception_ptr)> done) override {
    static_cast<CudaStream&>(stream).done().post([event = record(stream), done = std::move(done)] {
      std::exception_ptr error;
      try {
        event->synchronize();
      } catch (const Error&) {
        error = std::current_exception();
      }
      done(error);
    });
  }

  void synchronize(Stream& stream) override {
    select();
    check_cuda(cudaStreamSynchronize(native(stream)), "waiting for a stream");
  }

  std::unique_ptr<RecordedWork> keep_work(Stream& stream, const std::function<void()>& issue) override {
    select();
    // Other threads may meanwhile make calls that cannot be recorded, such as allocations.
    if (!succeeded(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal), "recording work"))
      return nullptr;
    bool complete = true;
    try {
      issue();
    } catch (const std::exception&) {
      complete = false;
    }
    cudaGraph_t recorded = nullptr;
    const bool ended = succeeded(cudaStreamEndCapture(native(stream), &recorded), "recording work");
    const std::unique_ptr<CUgraph_st, cudaError_t (*)(cudaGraph_t)> graph(recorded, cudaGraphDestroy);
    cudaGraphExec_t executable = nullptr;
    if (!complete || !ended ||
        !succeeded(cudaGraphInstantiate(&executable, graph.get(), 0), "making a graph of recorded work"))
      return nullptr;
    return std::make_unique<CudaGraph>(executable);
  }

  std::int64_t run_ahead_bytes() const override { return run_ahead_bytes_; }

 private:
  // Several devices of the program may share one device of the machine (PACELINE_CUDA_DEVICES).
  int physical() const { return physical_cuda_device(index_); }
  // The current device belongs to the calling thread.
  void select() const { select_cuda_device(index_); }

  // Lets the other devices read and write this one's memory, where the hardware can do that.
  void let_peers_in(cudaMemPool_t pool) const {
    const int count = devices_of_the_machine(), own = physical();
    for (int peer = 0; peer < count; ++peer) {
      int possible = 0;
      if (peer == own || !succeeded(cudaDeviceCanAccessPeer(&possible, peer, own), "asking for peers") || !possible)
        continue;
      cudaMemAccessDesc access{};
      access.location.type = cudaMemLocationTypeDevice;
      access.location.id = peer;
      access.flags = cudaMemAccessFlagsProtReadWrite;
      check_cuda(cudaMemPoolSetAccess(pool, &access, 1), "opening memory to other devices");
    }
  }

  const int index_;
  bool pooled_ = false;
  std::int64_t run_ahead_bytes_ = 0;
  const std::shared_ptr<EventPool> events_ = std::make_shared<EventPool>();
  std::unique_ptr<CudaStream> own_stream_;
};

}  // namespace

int cuda_device_count() {
  static const char* const logical = std::getenv("PACELINE_CUDA_DEVICES");
  const int count = devices_of_the_machine();
  return count > 0 && logical ? std::max(count, std::atoi(logical)) : count;
}

int physical_cuda_device(int index) {
  static const int count = std::max(devices_of_the_machine(), 1);
  return index % count;
}

void select_cuda_device(int index) { check_cuda(cudaSetDevice(physical_cuda_device(index)), "selecting the device"); }

std::unique_ptr<DeviceRuntime> make_cuda_runtime(int index) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver)
    throw NotAvailable(str("cuda:", index, " cannot be used: there is no NVIDIA driver, or it is older than the CUDA ",
                           "toolkit that this was built with; install a newer driver, or use cpu"));
  if (status != cudaSuccess)
    throw NotAvailable(str("cuda:", index, " cannot be used: ", cudaGetErrorString(status), "; use cpu"));
  if (index >= cuda_device_count())
    throw NotAvailable(str("there is no device cuda:", index, "; this machine has ", count, ", from cuda:0"));
  return std::make_unique<CudaRuntime>(index);
}

}  // namespace paceline::detail

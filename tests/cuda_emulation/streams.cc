// Devices, streams, events, kernel launches and graphs of the CUDA runtime.
#include "block.h"
#include "call.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace cuda_emulation {
namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local int device_of_thread = 0;
thread_local std::shared_ptr<Graph> captured_by_thread;

struct ErrorName {
  cudaError_t status;
  const char* name;
  const char* text;
};
constexpr ErrorName kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "the driver is too old"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "the device is busy or unavailable"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorContextIsDestroyed, "cudaErrorContextIsDestroyed", "context is destroyed"},
    {cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered"},
    {cudaErrorIllegalInstruction, "cudaErrorIllegalInstruction", "an illegal instruction was encountered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorHardwareStackError, "cudaErrorHardwareStackError", "hardware stack error"},
    {cudaErrorInvalidAddressSpace, "cudaErrorInvalidAddressSpace", "operation not supported on this address space"},
    {cudaErrorInvalidPc, "cudaErrorInvalidPc", "invalid program counter"},
    {cudaErrorNvlinkUncorrectable, "cudaErrorNvlinkUncorrectable", "uncorrectable NVLink error"},
    {cudaErrorMpsClientTerminated, "cudaErrorMpsClientTerminated", "the MPS client has been terminated"},
    {cudaErrorExternalDevice, "cudaErrorExternalDevice", "an external device failed"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered", "memory is already registered"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered", "memory is not registered"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "not permitted while capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated", "the capture is no longer valid"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "the capture has unjoined work"},
};

const ErrorName& known(cudaError_t status) {
  for (const ErrorName& error : kErrors)
    if (error.status == status) return error;
  return kErrors[1];
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

cudaError_t result(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

int current_device() { return device_of_thread; }

cudaError_t refused_while_capturing() {
  if (!captured_by_thread) return cudaSuccess;
  captured_by_thread->valid = false;
  return result(cudaErrorStreamCaptureUnsupported);
}

Call::Call() : scheduler(Scheduler::get()) {
  if (Scheduler::in_host_function()) {
    std::fprintf(stderr, "cuda emulation: a host function of a stream calls CUDA\n");
    std::abort();
  }
  lock = std::unique_lock(scheduler.mutex);
}

void fail_device(int device, cudaError_t status) { Call().scheduler.failure(device) = status; }

void launch(const char* name, dim3 grid, dim3 block, cudaStream_t stream, std::function<void()> thread) {
  Call call;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads < 1 || threads > 1024 || block.z > 64 || grid.x < 1 || grid.x > 0x7fffffffu || grid.y < 1 ||
      grid.y > 65535 || grid.z < 1 || grid.z > 65535) {
    result(cudaErrorInvalidConfiguration);
    return;
  }
  Stream& to = call.stream(stream);
  if (to.device != current_device()) {
    result(cudaErrorInvalidResourceHandle);
    return;
  }
  if (result(call.scheduler.failure(to.device)) != cudaSuccess) return;
  call.scheduler.issue(to, {name, to.device, Reach::kDevice,
                            [=, &random = call.scheduler.random()] { run_kernel(name, grid, block, thread, random); }});
}

}  // namespace cuda_emulation

using namespace cuda_emulation;

const char* cudaGetErrorName(cudaError_t status) { return known(status).name; }
const char* cudaGetErrorString(cudaError_t status) { return known(status).text; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

// ---- devices

cudaError_t cudaGetDeviceCount(int* count) {
  *count = Call().scheduler.devices();
  return result(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= Call().scheduler.devices()) return result(cudaErrorInvalidDevice);
  device_of_thread = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = device_of_thread;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 4; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 8; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  Call call;
  if (const cudaError_t status = refused_while_capturing(); status != cudaSuccess) return status;
  return call.wait(call.scheduler.everything(current_device()), current_device());
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  Call call;
  if (peer < 0 || peer >= call.scheduler.devices() || peer == current_device()) return result(cudaErrorInvalidDevice);
  if (call.scheduler.allows_peer(current_device(), peer)) return result(cudaErrorPeerAccessAlreadyEnabled);
  call.scheduler.allow_peer(current_device(), peer);
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 12040;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }

// ---- streams

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  // Streams that wait for the default stream are not emulated.
  if (flags != cudaStreamNonBlocking) return result(cudaErrorNotSupported);
  *stream = reinterpret_cast<cudaStream_t>(&Call().scheduler.create_stream(current_device()));
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Call().stream(stream).alive = false;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Call call;
  if (const auto& graph = call.stream(stream).graph) {
    graph->valid = false;
    return result(cudaErrorStreamCaptureUnsupported);
  }
  return call.wait(Clock(call.stream(stream).clock), call.stream(stream).device);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Call call;
  if (const auto& graph = call.stream(stream).graph) {
    graph->valid = false;
    return result(cudaErrorStreamCaptureUnsupported);
  }
  const Clock& clock = call.stream(stream).clock;
  if (const cudaError_t status = call.scheduler.failure(call.stream(stream).device); status != cudaSuccess)
    return result(status);
  if (!call.scheduler.reached(clock)) return result(cudaErrorNotReady);
  call.scheduler.know(clock);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  Call call;
  Stream& stream = call.stream(handle);
  const Event& other = *reinterpret_cast<Event*>(event);
  if (!other.graph && stream.graph) return result(cudaErrorStreamCaptureUnsupported);
  if (!other.graph) {
    stream.clock.join(other.clock);
    return result(call.scheduler.failure(stream.device));
  }
  if (!stream.graph) {
    stream.graph = other.graph;
    stream.graph_index = stream.graph->queues.size();
    stream.graph->queues.emplace_back();
    stream.graph_clock = {};
  }
  if (stream.graph != other.graph) return result(cudaErrorStreamCaptureUnsupported);
  stream.graph_clock.join(other.clock);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  Call call;
  Stream& to = call.stream(stream);
  call.scheduler.issue(to, {"host function", to.device, Reach::kHost, [=] { function(argument); }});
  return result(call.scheduler.failure(to.device));
}

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  auto created = std::make_unique<Event>();
  created->timed = (flags & cudaEventDisableTiming) == 0;
  *event = reinterpret_cast<cudaEvent_t>(created.release());
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  Call call;
  Stream& from = call.stream(stream);
  Event& event = *reinterpret_cast<Event*>(handle);
  if (event.timed)
    call.scheduler.issue(from, {"event", from.device, Reach::kHost, [&event] { event.seconds = now(); }});
  event.device = from.device;
  event.graph = from.graph;
  event.clock = from.graph ? from.graph_clock : from.clock;
  return result(call.scheduler.failure(from.device));
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  Call call;
  if (const cudaError_t status = refused_while_capturing(); status != cudaSuccess) return status;
  const Event& event = *reinterpret_cast<Event*>(handle);
  if (event.graph) return result(cudaErrorStreamCaptureUnsupported);
  if (!call.scheduler.reached(event.clock)) return result(cudaErrorNotReady);
  call.scheduler.know(event.clock);
  return result(call.scheduler.failure(event.device));
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  Call call;
  const Event& event = *reinterpret_cast<Event*>(handle);
  if (event.graph) return result(cudaErrorStreamCaptureUnsupported);
  return call.wait(Clock(event.clock), event.device);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  Call call;
  const Event& first = *reinterpret_cast<Event*>(start);
  const Event& last = *reinterpret_cast<Event*>(end);
  if (!first.timed || !last.timed) return result(cudaErrorInvalidResourceHandle);
  if (!call.scheduler.reached(last.clock)) return result(cudaErrorNotReady);
  *milliseconds = static_cast<float>((last.seconds - first.seconds) * 1e3);
  return cudaSuccess;
}

// ---- graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Call call;
  if (!handle || call.stream(handle).graph) return result(cudaErrorStreamCaptureUnsupported);
  Stream& stream = call.stream(handle);
  stream.graph = std::make_shared<Graph>();
  stream.graph->queues.emplace_back();
  stream.graph_index = 0;
  stream.graph_clock = {};
  if (mode != cudaStreamCaptureModeRelaxed) captured_by_thread = stream.graph;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  Call call;
  Stream& stream = call.stream(handle);
  if (!stream.graph || stream.graph_index != 0) return result(cudaErrorStreamCaptureInvalidated);
  const std::shared_ptr<Graph> captured = call.scheduler.end_capture(stream);
  *graph = nullptr;
  captured_by_thread = nullptr;
  if (!captured->valid) return result(cudaErrorStreamCaptureInvalidated);
  for (std::size_t q = 0; q < captured->queues.size(); ++q)
    if (stream.graph_clock.of(q) < captured->queues[q].size()) return result(cudaErrorStreamCaptureUnjoined);
  *graph = reinterpret_cast<cudaGraph_t>(new std::shared_ptr<Graph>(captured));
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = Call().stream(stream).graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable =
      reinterpret_cast<cudaGraphExec_t>(new std::shared_ptr<Graph>(*reinterpret_cast<std::shared_ptr<Graph>*>(graph)));
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  Call call;
  call.scheduler.launch(call.stream(stream), *reinterpret_cast<std::shared_ptr<Graph>*>(executable));
  return result(call.scheduler.failure(call.stream(stream).device));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete reinterpret_cast<std::shared_ptr<Graph>*>(executable);
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<std::shared_ptr<Graph>*>(graph);
  return cudaSuccess;
}

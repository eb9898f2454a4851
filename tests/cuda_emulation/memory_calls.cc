// Memory and copies of the CUDA runtime.
#include "call.h"

#include <cstdlib>
#include <cstring>
#include <limits>

namespace cuda_emulation {
namespace {

// Host memory that a device reads and writes while the host goes on.
std::map<const char*, std::size_t>& pinned() {
  static auto& ranges = *new std::map<const char*, std::size_t>;
  return ranges;
}

bool is_pinned(const void* memory) {
  const char* const at = static_cast<const char*>(memory);
  auto found = pinned().upper_bound(at);
  if (found == pinned().begin()) return false;
  --found;
  return at < found->first + found->second;
}

cudaError_t allocate(Call& call, void** memory, std::size_t bytes, Stream& stream) {
  if (stream.graph) return cudaErrorStreamCaptureUnsupported;
  if (const cudaError_t failure = call.scheduler.failure(stream.device); failure != cudaSuccess) return failure;
  const Clock known = call.scheduler.known_to_next(stream);
  Memory& device = call.scheduler.memory(stream.device);
  void* const found = device.reserve(bytes, known);
  if (!found) return cudaErrorMemoryAllocation;
  call.scheduler.issue(stream,
                       {"allocation", stream.device, Reach::kPages,
                        [&device, &mutex = call.scheduler.mutex, found, bytes, point = call.scheduler.next(stream)] {
                          const std::lock_guard lock(mutex);
                          device.begin(found, bytes, point);
                        }});
  *memory = found;
  return cudaSuccess;
}

cudaError_t release(Call& call, void* memory, Stream& stream) {
  if (stream.graph) return cudaErrorStreamCaptureUnsupported;
  const int owner = call.scheduler.device_of(memory);
  if (owner < 0) return cudaErrorInvalidValue;
  Memory& device = call.scheduler.memory(owner);
  if (!device.give_up(memory, call.scheduler.next(stream))) return cudaErrorInvalidValue;
  call.scheduler.issue(stream, {"release", owner, Reach::kPages, [&device, &mutex = call.scheduler.mutex, memory] {
                                  const std::lock_guard lock(mutex);
                                  device.end(memory);
                                }});
  return call.scheduler.failure(stream.device);
}

bool in_one_allocation(Call& call, const void* memory, std::size_t bytes) {
  const int device = call.scheduler.device_of(memory);
  if (device < 0) return true;
  const auto there = call.scheduler.memory(device).bytes_from(memory);
  return there && *there >= bytes;
}

cudaError_t copy(Call& call, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, Stream& stream) {
  const bool from_host = call.scheduler.device_of(from) < 0, to_host = call.scheduler.device_of(to) < 0;
  const cudaMemcpyKind actual = from_host ? (to_host ? cudaMemcpyHostToHost : cudaMemcpyHostToDevice)
                                          : (to_host ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice);
  if (bytes == 0) return cudaSuccess;
  if (kind != cudaMemcpyDefault && kind != actual) return cudaErrorInvalidValue;
  if (!in_one_allocation(call, from, bytes) || !in_one_allocation(call, to, bytes)) return cudaErrorInvalidValue;
  std::function<void()> body = [=] { std::memmove(to, from, bytes); };
  // Pageable memory is read before the call returns, and was written when it returns.
  if (from_host && !is_pinned(from) && !stream.graph) {
    const char* const first = static_cast<const char*>(from);
    body = [to, held = std::vector<char>(first, first + bytes)] { std::memcpy(to, held.data(), held.size()); };
  }
  call.scheduler.issue(stream, {"copy", stream.device, Reach::kEverywhere, body});
  if (to_host && !is_pinned(to) && !stream.graph) return call.wait(Clock(stream.clock), stream.device);
  return call.scheduler.failure(stream.device);
}

}  // namespace
}  // namespace cuda_emulation

using namespace cuda_emulation;

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  Call call;
  *total = Memory::kCapacity;
  *free = *total - call.scheduler.memory(current_device()).bytes_in_use();
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t stream) {
  Call call;
  return result(allocate(call, memory, bytes, call.stream(stream)));
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  Call call;
  return result(release(call, memory, call.stream(stream)));
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  Call call;
  if (const cudaError_t status = refused_while_capturing(); status != cudaSuccess) return status;
  Stream& stream = call.stream(nullptr);
  if (const cudaError_t status = allocate(call, memory, bytes, stream); status != cudaSuccess) return result(status);
  return call.wait(Clock(stream.clock), stream.device);
}

cudaError_t cudaFree(void* memory) {
  if (!memory) return cudaSuccess;
  Call call;
  if (const cudaError_t status = refused_while_capturing(); status != cudaSuccess) return status;
  const int device = call.scheduler.device_of(memory);
  if (device < 0) return result(cudaErrorInvalidValue);
  call.scheduler.wait(call.lock, call.scheduler.everything(device));
  Stream& stream = call.scheduler.default_stream(device);
  if (const cudaError_t status = release(call, memory, stream); status != cudaSuccess) return result(status);
  return call.wait(Clock(stream.clock), stream.device);
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  Call call;
  if (device < 0 || device >= call.scheduler.devices()) return result(cudaErrorInvalidDevice);
  *pool = reinterpret_cast<cudaMemPool_t>(&call.scheduler.memory(device));
  return cudaSuccess;
}

// The pool keeps what it has; nothing else is to be set.
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) { return cudaSuccess; }

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* access, std::size_t count) {
  Call call;
  for (int d = 0; d < call.scheduler.devices(); ++d)
    if (&call.scheduler.memory(d) == reinterpret_cast<Memory*>(pool))
      for (std::size_t i = 0; i < count; ++i)
        if (access[i].flags != cudaMemAccessFlagsProtNone) call.scheduler.allow_peer(access[i].location.id, d);
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  Call call;
  const std::uint64_t bytes = reinterpret_cast<Memory*>(pool)->bytes_in_use();
  switch (attribute) {
    case cudaMemPoolAttrReleaseThreshold:
      *static_cast<std::uint64_t*>(value) = std::numeric_limits<std::uint64_t>::max();
      break;
    case cudaMemPoolAttrReservedMemCurrent:
    case cudaMemPoolAttrReservedMemHigh:
    case cudaMemPoolAttrUsedMemCurrent:
    case cudaMemPoolAttrUsedMemHigh: *static_cast<std::uint64_t*>(value) = bytes; break;
    default: *static_cast<int*>(value) = 1;
  }
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  Call call;
  if (const cudaError_t status = refused_while_capturing(); status != cudaSuccess) return status;
  constexpr std::size_t kPage = 4096;
  if (bytes > Memory::kCapacity) return result(cudaErrorMemoryAllocation);
  *memory = std::aligned_alloc(kPage, (bytes + kPage) / kPage * kPage);
  if (!*memory) return result(cudaErrorMemoryAllocation);
  std::memset(*memory, 0xff, bytes);
  pinned()[static_cast<const char*>(*memory)] = bytes;
  return cudaSuccess;
}

// Waits for the device, as CUDA does.
cudaError_t cudaFreeHost(void* memory) {
  if (!memory) return cudaSuccess;
  Call call;
  if (const cudaError_t status = refused_while_capturing(); status != cudaSuccess) return status;
  for (int d = 0; d < call.scheduler.devices(); ++d) call.scheduler.wait(call.lock, call.scheduler.everything(d));
  if (pinned().erase(static_cast<const char*>(memory)) == 0) return result(cudaErrorInvalidValue);
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned) {
  Call call;
  if (is_pinned(memory)) return result(cudaErrorHostMemoryAlreadyRegistered);
  pinned()[static_cast<const char*>(memory)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* memory) {
  Call call;
  return result(pinned().erase(static_cast<const char*>(memory)) > 0 ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  Call call;
  if (!is_pinned(host)) return result(cudaErrorInvalidValue);
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  Call call;
  void* const at = const_cast<void*>(memory);
  const int device = call.scheduler.device_of(memory);
  if (device >= 0)
    *attributes = {cudaMemoryTypeDevice, device, at, nullptr};
  else if (is_pinned(memory))
    *attributes = {cudaMemoryTypeHost, current_device(), at, at};
  else
    *attributes = {cudaMemoryTypeUnregistered, -1, nullptr, at};
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  Call call;
  return result(copy(call, to, from, bytes, kind, call.stream(stream)));
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, cudaStream_t stream) {
  Call call;
  return result(copy(call, to, from, bytes, cudaMemcpyDeviceToDevice, call.stream(stream)));
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  Call call;
  if (const cudaError_t status = refused_while_capturing(); status != cudaSuccess) return status;
  Stream& stream = call.stream(nullptr);
  if (const cudaError_t status = copy(call, to, from, bytes, kind, stream); status != cudaSuccess)
    return result(status);
  return call.wait(Clock(stream.clock), stream.device);
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t handle) {
  Call call;
  Stream& stream = call.stream(handle);
  if (!in_one_allocation(call, memory, bytes)) return result(cudaErrorInvalidValue);
  call.scheduler.issue(stream,
                       {"memset", stream.device, Reach::kEverywhere, [=] { std::memset(memory, value, bytes); }});
  return result(call.scheduler.failure(stream.device));
}

#pragma once
// What CUDA C++ adds to the language, for kernels that g++ compiles: the threads of a block are fibers of one host
// thread, and one block runs at a time.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <source_location>
#include <type_traits>

// emulated_nvcc.py makes a check of the size of a block of them.
#define __global__ emulated_kernel
#define __launch_bounds__(...) emulated_bounds(__VA_ARGS__)
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__

namespace cuda_emulation {

struct Position {
  dim3 thread, block, block_size, grid_size;
};
extern Position position;  // of the fiber that runs

constexpr int kWarp = 32;
constexpr std::size_t kSlotBytes = 16;

// Stop until all threads of the block, or all lanes of `mask`, are there.
void sync_block(const std::source_location& where);
void sync_warp(unsigned mask);
// Junk, before the first thread of a block uses it.
void share(void* memory, std::size_t bytes);
void* slot_of(int thread);  // kSlotBytes, for what lanes hand to each other
int linear_thread();
[[noreturn]] void fail(const char* text);
// What __launch_bounds__ says. A kernel without it may take so many registers that more than kThreads do not fit.
inline void require_block_of(int threads = 256) {
  const dim3& size = position.block_size;
  if (size.x * size.y * size.z > static_cast<unsigned>(threads))
    fail("a launch asks for more threads than __launch_bounds__");
}

template <class T, class Source>
T from_lane(unsigned mask, T value, const Source& source) {
  static_assert(sizeof(T) <= kSlotBytes && std::is_trivially_copyable_v<T>);
  const int thread = linear_thread(), lane = thread % kWarp, first = thread - lane;
  std::memcpy(slot_of(thread), &value, sizeof(T));
  sync_warp(mask);
  T result;
  std::memcpy(&result, slot_of(first + source(lane)), sizeof(T));
  sync_warp(mask);
  return result;
}

}  // namespace cuda_emulation

#define threadIdx (::cuda_emulation::position.thread)
#define blockIdx (::cuda_emulation::position.block)
#define blockDim (::cuda_emulation::position.block_size)
#define gridDim (::cuda_emulation::position.grid_size)

inline void __syncthreads(const std::source_location& where = std::source_location::current()) {
  ::cuda_emulation::sync_block(where);
}
inline void __syncwarp(unsigned mask = 0xffffffffu) { ::cuda_emulation::sync_warp(mask); }
inline void __threadfence() {}
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
[[noreturn]] inline void __trap() { ::cuda_emulation::fail("the kernel called __trap()"); }

template <class T>
T __shfl_sync(unsigned mask, T value, int from) {
  return ::cuda_emulation::from_lane(mask, value, [=](int) { return from % ::cuda_emulation::kWarp; });
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with) {
  return ::cuda_emulation::from_lane(mask, value, [=](int lane) { return lane ^ with; });
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, int by) {
  return ::cuda_emulation::from_lane(mask, value,
                                     [=](int lane) { return lane + by < ::cuda_emulation::kWarp ? lane + by : lane; });
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int by) {
  return ::cuda_emulation::from_lane(mask, value, [=](int lane) { return lane >= by ? lane - by : lane; });
}
// Bit i of the result: what lane i says.
inline unsigned __ballot_sync(unsigned mask, int says) {
  const int thread = ::cuda_emulation::linear_thread(), first = thread - thread % ::cuda_emulation::kWarp;
  std::memcpy(::cuda_emulation::slot_of(thread), &says, sizeof(says));
  ::cuda_emulation::sync_warp(mask);
  unsigned result = 0;
  for (int lane = 0; lane < ::cuda_emulation::kWarp; ++lane) {
    int said = 0;
    if (mask >> lane & 1U) std::memcpy(&said, ::cuda_emulation::slot_of(first + lane), sizeof(said));
    result |= (said != 0 ? 1U : 0U) << lane;
  }
  ::cuda_emulation::sync_warp(mask);
  return result;
}
inline int __popc(unsigned bits) { return std::popcount(bits); }

// Threads take turns, so what one does between two barriers is atomic.
template <class T, class Change>
T cuda_emulation_changed(T* to, Change change) {
  const T old = *to;
  *to = static_cast<T>(change(old));
  return old;
}
template <class T>
T atomicAdd(T* to, std::type_identity_t<T> value) {
  return cuda_emulation_changed(to, [=](T old) { return old + value; });
}
template <class T>
T atomicMax(T* to, std::type_identity_t<T> value) {
  return cuda_emulation_changed(to, [=](T old) { return std::max(old, value); });
}
template <class T>
T atomicMin(T* to, std::type_identity_t<T> value) {
  return cuda_emulation_changed(to, [=](T old) { return std::min(old, value); });
}
template <class T>
T atomicExch(T* to, std::type_identity_t<T> value) {
  return cuda_emulation_changed(to, [=](T) { return value; });
}
template <class T>
T atomicCAS(T* to, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return cuda_emulation_changed(to, [=](T old) { return old == expected ? value : old; });
}

using std::max;
using std::min;

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

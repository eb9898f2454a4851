// The emulation finds what it is there to find: each test that plants a mistake sees it.
#include <cuda_runtime.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 256;
constexpr int kTries = 200;  // of something that depends on the order

__global__ void set(int* to, int value) {
  if (blockIdx.x == 0) to[threadIdx.x] = value;
}

__global__ void add(int* to, const int* from) { to[blockIdx.x * blockDim.x + threadIdx.x] += from[threadIdx.x]; }

template <bool kWaits>
__global__ void sum_block(const int* values, int* sum) {
  __shared__ int parts[kThreads];
  parts[threadIdx.x] = values[threadIdx.x];
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (kWaits) __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *sum = parts[0];
}

__global__ void leave_in_shared(int* found) {
  __shared__ int left;
  if (threadIdx.x == 0) found[blockIdx.x] = left;
  __syncthreads();
  left = 1;
}

__global__ void sum_warp(int* sums, unsigned lanes) {
  int value = static_cast<int>(threadIdx.x);
  if (threadIdx.x % 32 >= lanes) return;
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  sums[threadIdx.x] = value;
}

__global__ void half_waits() {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void __launch_bounds__(64) bounded(int* to) { to[threadIdx.x] = 1; }
__global__ void unbounded(int* to) { to[threadIdx.x] = 1; }

__global__ void write_past(int* to) { to[kThreads] = 1; }

void expect_success(cudaError_t status) { ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status); }

class CudaEmulation : public testing::Test {
 protected:
  CudaEmulation() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    expect_success(cudaSetDevice(0));
    for (cudaStream_t* stream : {&first_, &second_})
      expect_success(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    expect_success(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    expect_success(cudaHostAlloc(reinterpret_cast<void**>(&pinned_), kBytes, cudaHostAllocPortable));
    expect_success(cudaMalloc(reinterpret_cast<void**>(&a_), kBytes));
    expect_success(cudaMalloc(reinterpret_cast<void**>(&b_), kBytes));
  }
  ~CudaEmulation() override {
    for (void* memory : {a_, b_}) expect_success(cudaFree(memory));
    expect_success(cudaFreeHost(pinned_));
    expect_success(cudaEventDestroy(event_));
    for (cudaStream_t stream : {first_, second_}) expect_success(cudaStreamDestroy(stream));
  }

  // b = 1 on one stream, then a += b on the other; the first element of a.
  int add_across_streams(bool waits) {
    set<<<1, kThreads, 0, first_>>>(a_, 5);
    set<<<1, kThreads, 0, first_>>>(b_, 0);
    cudaStreamSynchronize(first_);
    set<<<1, kThreads, 0, first_>>>(b_, 1);
    if (waits) {
      cudaEventRecord(event_, first_);
      cudaStreamWaitEvent(second_, event_);
    }
    add<<<1, kThreads, 0, second_>>>(a_, b_);
    cudaStreamSynchronize(first_);
    return first_of(a_, second_);
  }
  int first_of(const int* values, cudaStream_t stream) {
    int result = 0;
    expect_success(cudaMemcpyAsync(&result, values, sizeof result, cudaMemcpyDeviceToHost, stream));
    return result;
  }

  static constexpr std::size_t kBytes = kThreads * sizeof(int);
  cudaStream_t first_ = nullptr, second_ = nullptr;
  cudaEvent_t event_ = nullptr;
  int *pinned_ = nullptr, *a_ = nullptr, *b_ = nullptr;
};

TEST_F(CudaEmulation, BarriersHoldThreadsAndAMissingOneIsSeen) {
  set<<<1, kThreads, 0, first_>>>(a_, 3);
  int wrong = 0;
  for (int i = 0; i < kTries; ++i) {
    sum_block<true><<<1, kThreads, 0, first_>>>(a_, b_);
    ASSERT_EQ(first_of(b_, first_), 3 * kThreads);
    sum_block<false><<<1, kThreads, 0, first_>>>(a_, b_);
    wrong += first_of(b_, first_) != 3 * kThreads;
  }
  EXPECT_GT(wrong, 0);
}

TEST_F(CudaEmulation, SharedMemoryHoldsJunkWhenABlockBegins) {
  leave_in_shared<<<2, kThreads, 0, first_>>>(a_);
  EXPECT_EQ(first_of(a_, first_), -1);
  EXPECT_EQ(first_of(a_ + 1, first_), -1);
}

TEST_F(CudaEmulation, EventsOrderStreamsAndAMissingWaitIsSeen) {
  int wrong = 0;
  for (int i = 0; i < kTries; ++i) {
    ASSERT_EQ(add_across_streams(true), 6);
    wrong += add_across_streams(false) != 6;
  }
  EXPECT_GT(wrong, 0);
}

TEST_F(CudaEmulation, PinnedMemoryIsReadLate) {
  int late = 0;
  for (int i = 0; i < kTries; ++i) {
    std::fill_n(pinned_, kThreads, 1);
    expect_success(cudaMemcpyAsync(a_, pinned_, kBytes, cudaMemcpyHostToDevice, first_));
    std::fill_n(pinned_, kThreads, 2);
    late += first_of(a_, first_) == 2;
  }
  EXPECT_GT(late, 0);
  std::vector<int> pageable(kThreads, 7);
  for (int i = 0; i < kTries; ++i) {
    expect_success(cudaMemcpyAsync(a_, pageable.data(), kBytes, cudaMemcpyHostToDevice, first_));
    pageable.assign(kThreads, i);
    ASSERT_EQ(first_of(a_, first_), i == 0 ? 7 : i - 1);
  }
}

TEST_F(CudaEmulation, LanesExchangeValues) {
  sum_warp<<<1, 64, 0, first_>>>(a_, 32);
  EXPECT_EQ(first_of(a_, first_), 31 * 32 / 2);
  EXPECT_EQ(first_of(a_ + 32, first_), 31 * 32 / 2 + 32 * 32);
}

TEST_F(CudaEmulation, ReleasedMemoryHoldsJunk) {
  int* memory = nullptr;
  expect_success(cudaMallocAsync(reinterpret_cast<void**>(&memory), kBytes, first_));
  EXPECT_EQ(first_of(memory, first_), -1);
  set<<<1, kThreads, 0, first_>>>(memory, 1);
  expect_success(cudaFreeAsync(memory, first_));
  int* again = nullptr;
  expect_success(cudaMallocAsync(reinterpret_cast<void**>(&again), kBytes, first_));
  EXPECT_EQ(again, memory);
  EXPECT_EQ(first_of(again, first_), -1);
  int* elsewhere = nullptr;
  expect_success(cudaFreeAsync(again, first_));
  expect_success(cudaMallocAsync(reinterpret_cast<void**>(&elsewhere), kBytes, second_));
  EXPECT_NE(elsewhere, again) << "the other stream does not come after the release";
  expect_success(cudaFreeAsync(elsewhere, second_));
  EXPECT_EQ(cudaFreeAsync(elsewhere, second_), cudaErrorInvalidValue);
}

TEST_F(CudaEmulation, CapturedWorkRunsAtEachLaunch) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  set<<<1, kThreads, 0, first_>>>(a_, 0);
  set<<<1, kThreads, 0, first_>>>(b_, 1);
  expect_success(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal));
  set<<<1, kThreads, 0, first_>>>(b_, 1);
  expect_success(cudaEventRecord(event_, first_));
  expect_success(cudaStreamWaitEvent(second_, event_));
  add<<<1, kThreads, 0, second_>>>(a_, b_);
  expect_success(cudaEventRecord(event_, second_));
  expect_success(cudaStreamWaitEvent(first_, event_));
  set<<<1, kThreads, 0, first_>>>(b_, 100);
  expect_success(cudaStreamEndCapture(first_, &graph));
  EXPECT_EQ(first_of(a_, first_), 0) << "nothing ran yet";
  expect_success(cudaGraphInstantiate(&executable, graph));
  expect_success(cudaGraphDestroy(graph));
  for (int i = 1; i <= 20; ++i) {
    expect_success(cudaGraphLaunch(executable, first_));
    ASSERT_EQ(first_of(a_, first_), i);
  }
  expect_success(cudaGraphExecDestroy(executable));
}

TEST_F(CudaEmulation, ACaptureFailsByWhatCannotBeCaptured) {
  expect_success(cudaEventRecord(event_, second_));
  void* memory = nullptr;
  const std::function<cudaError_t()> calls[] = {
      [&] { return cudaMalloc(&memory, kBytes); },
      [&] { return cudaHostAlloc(&memory, kBytes, cudaHostAllocPortable); },
      [&] { return cudaFree(b_); },
      [&] { return cudaFreeHost(pinned_); },
      [&] { return cudaDeviceSynchronize(); },
      [&] { return cudaStreamSynchronize(first_); },
      [&] { return cudaStreamQuery(first_); },
      [&] { return cudaEventQuery(event_); },
  };
  for (const auto& call : calls) {
    cudaGraph_t graph = nullptr;
    expect_success(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal));
    set<<<1, kThreads, 0, first_>>>(a_, 1);
    std::thread([] {
      void* other = nullptr;
      expect_success(cudaMalloc(&other, kBytes));
      expect_success(cudaFree(other));
    }).join();
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaErrorStreamCaptureInvalidated);
  }
  set<<<1, kThreads, 0, first_>>>(a_, 2);
  EXPECT_EQ(first_of(a_, first_), 2) << "the stream works as before";
}

TEST_F(CudaEmulation, WrongCallsAreRefused) {
  set<<<1, 2048, 0, first_>>>(a_, 1);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  set<<<0, 32, 0, first_>>>(a_, 1);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaMemcpyAsync(a_, b_, kBytes, cudaMemcpyHostToDevice, first_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(a_, b_, kBytes + 1, cudaMemcpyDeviceToDevice, first_), cudaErrorInvalidValue);
  expect_success(cudaSetDevice(1));
  set<<<1, 32, 0, first_>>>(a_, 1);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle) << "the stream belongs to another device";
  expect_success(cudaSetDevice(0));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaEmulation, ABrokenDeviceDoesNothingMore) {
  set<<<1, kThreads, 0, first_>>>(a_, 1);
  ASSERT_EQ(first_of(a_, first_), 1);
  cuda_emulation::fail_device(0, cudaErrorIllegalAddress);
  set<<<1, kThreads, 0, first_>>>(a_, 2);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaMemsetAsync(a_, 0, kBytes, first_), cudaErrorIllegalAddress);
  cuda_emulation::fail_device(0, cudaSuccess);
  cudaGetLastError();
  EXPECT_EQ(first_of(a_, first_), 1);
}

using CudaEmulationDeathTest = CudaEmulation;

TEST_F(CudaEmulationDeathTest, TheHostMustNotTouchDeviceMemory) {
  EXPECT_DEATH(static_cast<volatile int*>(a_)[1] = 1, "code of the host touches memory of cuda:0");
}

TEST_F(CudaEmulationDeathTest, MemoryIsThereForWhatIsOrderedAfterItsAllocation) {
  const auto use_unordered = [this] {
    int* memory = nullptr;
    cudaMallocAsync(reinterpret_cast<void**>(&memory), kBytes, first_);
    set<<<1, kThreads, 0, second_>>>(memory, 2);
    cudaStreamSynchronize(second_);
  };
  EXPECT_DEATH(use_unordered(), "'set' touches memory of cuda:0 .* not ordered after the allocation");
}

TEST_F(CudaEmulationDeathTest, AnotherDevicesMemoryIsOutOfReachOfAKernel) {
  const auto use_from_another_device = [this] {
    cudaSetDevice(1);
    set<<<1, kThreads>>>(a_, 1);
    cudaDeviceSynchronize();
  };
  EXPECT_DEATH(use_from_another_device(), "'set' touches memory of cuda:0");
}

TEST_F(CudaEmulationDeathTest, AWriteBehindTheEndIsSeen) {
  const auto write_behind_the_end = [this] {
    write_past<<<1, 1, 0, first_>>>(a_);
    cudaFree(a_);
  };
  EXPECT_DEATH(write_behind_the_end(), "memory was written past its end");
}

TEST_F(CudaEmulationDeathTest, BarriersThatCannotBePassedEndTheProgram) {
  const auto leave_a_lane_out = [this] {
    sum_warp<<<1, 32, 0, first_>>>(a_, 31);
    cudaStreamSynchronize(first_);
  };
  EXPECT_DEATH(leave_a_lane_out(), "kernel sum_warp.*lanes wait in a warp for one that is not there");
  const auto wait_at_two_barriers = [this] {
    half_waits<<<1, 32, 0, first_>>>();
    cudaStreamSynchronize(first_);
  };
  EXPECT_DEATH(wait_at_two_barriers(), "kernel half_waits.*wait at different __syncthreads");
}

TEST_F(CudaEmulation, BlocksAreNoLargerThanTheirKernelsAllow) {
  bounded<<<1, 64, 0, first_>>>(a_);
  unbounded<<<1, 256, 0, first_>>>(a_);
  expect_success(cudaStreamSynchronize(first_));
  const auto bounded_by_65 = [this] {
    bounded<<<1, 65, 0, first_>>>(a_);
    cudaStreamSynchronize(first_);
  };
  EXPECT_DEATH(bounded_by_65(), "kernel bounded.*more threads than __launch_bounds__");
  const auto unbounded_of_512 = [this] {
    unbounded<<<1, 512, 0, first_>>>(a_);
    cudaStreamSynchronize(first_);
  };
  EXPECT_DEATH(unbounded_of_512(), "kernel unbounded.*more threads than __launch_bounds__");
}

}  // namespace

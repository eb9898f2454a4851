#include "memory_pool.h"

#include <paceline/detail/host_memory.h>
#include <paceline/error.h>

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <thread>

namespace paceline::detail {
namespace {

constexpr std::int64_t kMegabyte = std::int64_t{1} << 20;

// Host memory that counts what is held, with a limit.
class CountingRuntime final : public DeviceRuntime {
 public:
  bool asynchronous() const override { return asynchronous_; }
  void* allocate(std::size_t bytes, MemoryKind kind, Stream* stream) override {
    if (held_ + static_cast<std::int64_t>(bytes) > limit_) {
      ++refusals_;
      throw OutOfMemory("the counting device is full");
    }
    held_ += static_cast<std::int64_t>(bytes);
    return host_.allocate(bytes, kind, stream);
  }
  void release(void* memory, std::size_t bytes, MemoryKind kind, Stream* stream) override {
    held_ -= static_cast<std::int64_t>(bytes);
    host_.release(memory, bytes, kind, stream);
  }
  std::unique_ptr<Stream> create_stream(int priority) override { return host_.create_stream(priority); }
  void copy(void*, const void*, std::size_t, CopyKind, Stream&) override {}
  std::shared_ptr<Event> record(Stream& stream) override { return host_.record(stream); }
  void wait(Stream&, const Event&) override {}
  void when_done(Stream&, std::function<void(std::exception_ptr)>) override {}
  void synchronize(Stream&) override {}

  std::atomic<std::int64_t> held_ = 0;
  std::int64_t limit_ = std::int64_t{1} << 40;
  bool asynchronous_ = false;
  std::atomic<int> refusals_ = 0;

 private:
  DeviceRuntime& host_ = runtime(Device());
};

TEST(MemoryPoolTest, SizeClassesWasteAnEighthAtMost) {
  std::size_t previous = 0;
  for (std::size_t bytes = 0; bytes < 100000; ++bytes) {
    const std::size_t rounded = MemoryPool::size_class(bytes);
    ASSERT_GE(rounded, std::max<std::size_t>(bytes, 64));
    ASSERT_GE(rounded, previous);
    ASSERT_EQ(rounded % 64, 0u) << bytes;
    ASSERT_EQ(MemoryPool::size_class(rounded), rounded);
    if (bytes > 512) {
      ASSERT_LE(rounded - bytes, bytes / 8) << bytes;
    }
    previous = rounded;
  }
}

TEST(MemoryPoolTest, ReusesFreedBlocks) {
  CountingRuntime runtime;
  MemoryPool pool(runtime, MemoryKind::kNormal);
  void* first = pool.allocate(1000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0u);
  pool.release(first, 1000);
  EXPECT_EQ(pool.allocate(1010), first);
  void* second = pool.allocate(1010);
  EXPECT_NE(second, first);
  const MemoryPoolStatistics statistics = pool.statistics();
  EXPECT_EQ(statistics.allocations, 3);
  EXPECT_EQ(statistics.reused, 1);
  EXPECT_EQ(statistics.bytes_in_use, 2 * 1024);
  EXPECT_EQ(statistics.bytes_cached, 0);
  pool.release(first, 1010);
  EXPECT_EQ(pool.statistics().bytes_cached, 1024);
  pool.release(second, 1010);
}

TEST(MemoryPoolTest, HoldsNoMoreThanItsBound) {
  CountingRuntime runtime;
  MemoryPool pool(runtime, MemoryKind::kNormal, true, kMegabyte);
  std::mt19937 random(7);
  std::vector<std::pair<void*, std::size_t>> blocks;
  for (int i = 0; i < 3000; ++i) {
    if (blocks.empty() || (random() % 100 < 55 && blocks.size() < 60)) {
      const std::size_t bytes = random() % 300000;
      blocks.emplace_back(pool.allocate(bytes), bytes);
      std::memset(blocks.back().first, 1, bytes);
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      pool.release(blocks.back().first, blocks.back().second);
      blocks.pop_back();
    }
    const MemoryPoolStatistics statistics = pool.statistics();
    ASSERT_EQ(runtime.held_, statistics.bytes_in_use + statistics.bytes_cached);
    ASSERT_LE(runtime.held_, statistics.peak_bytes_in_use / 4 * 5 + kMegabyte);
  }
  for (const auto& [memory, bytes] : blocks) pool.release(memory, bytes);
  EXPECT_EQ(pool.statistics().bytes_in_use, 0);
  pool.trim();
  EXPECT_EQ(runtime.held_, 0);
}

TEST(MemoryPoolTest, AFullDeviceGetsItsCacheBack) {
  CountingRuntime runtime;
  runtime.limit_ = 3 * kMegabyte;
  MemoryPool pool(runtime, MemoryKind::kNormal);
  void* first = pool.allocate(2 * kMegabyte);
  EXPECT_THROW(pool.allocate(2 * kMegabyte), OutOfMemory);
  EXPECT_EQ(pool.statistics().bytes_in_use, 2 * kMegabyte);
  EXPECT_EQ(pool.statistics().peak_bytes_in_use, 2 * kMegabyte) << "what was refused is no use";
  pool.release(first, 2 * kMegabyte);
  void* second = pool.allocate(3 * kMegabyte);
  EXPECT_NE(second, nullptr);
  pool.release(second, 3 * kMegabyte);
}

TEST(MemoryPoolTest, AFullAsynchronousDeviceIsWaitedFor) {
  CountingRuntime runtime;
  runtime.limit_ = 4 * kMegabyte;
  runtime.asynchronous_ = true;
  MemoryPool pool(runtime, MemoryKind::kNormal);
  pool.set_patience(std::chrono::minutes(1));  // on a busy machine the others may not run for seconds
  void* const first = pool.allocate(kMegabyte);
  void* const second = pool.allocate(2 * kMegabyte);
  std::thread others([&] {
    while (runtime.refusals_ < 2) std::this_thread::yield();  // the first comes before the pool counts releases
    pool.release(first, kMegabyte);                           // not enough
    while (runtime.refusals_ < 3) std::this_thread::yield();
    pool.release(second, 2 * kMegabyte);
  });
  void* const all = pool.allocate(4 * kMegabyte);
  others.join();
  pool.release(all, 4 * kMegabyte);
  EXPECT_EQ(pool.statistics().bytes_in_use, 0);
}

TEST(MemoryPoolTest, WhatNeverFitsIsRefusedThoughOthersRelease) {
  CountingRuntime runtime;
  runtime.limit_ = 4 * kMegabyte;
  runtime.asynchronous_ = true;
  MemoryPool pool(runtime, MemoryKind::kNormal);
  pool.set_patience(std::chrono::milliseconds(10));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  std::atomic<bool> refused = false, gave_up = false;
  std::thread others([&] {
    while (!refused && !gave_up) {
      pool.release(pool.allocate(64), 64);
      gave_up = std::chrono::steady_clock::now() > deadline;
    }
  });
  EXPECT_THROW(pool.allocate(8 * kMegabyte), OutOfMemory);
  refused = true;
  others.join();
  EXPECT_FALSE(gave_up);
}

TEST(MemoryPoolTest, SaysWhatHoldsTheMemoryOfAFullDevice) {
  CountingRuntime runtime;
  runtime.limit_ = 8 * kMegabyte;
  MemoryPool pool(runtime, MemoryKind::kNormal);
  std::vector<std::pair<void*, std::size_t>> held;
  for (const std::int64_t bytes : {kMegabyte, 2 * kMegabyte, kMegabyte, 2 * kMegabyte, std::int64_t{512}})
    held.emplace_back(pool.allocate(static_cast<std::size_t>(bytes)), bytes);
  pool.release(pool.allocate(kMegabyte), kMegabyte);
  std::string said;
  try {
    pool.allocate(4 * kMegabyte);
  } catch (const OutOfMemory& error) {
    said = error.what();
  }
  EXPECT_EQ(said,
            "the counting device is full; asked for 4.2 MB; in use 6.3 MB in 5 blocks, most of it in 2 of 2.1 MB, "
            "2 of 1.0 MB, 1 of 512 B");
  for (const auto& [memory, bytes] : held) pool.release(memory, bytes);
  EXPECT_EQ(pool.statistics().bytes_in_use, 0);
}

TEST(MemoryPoolTest, DoesNotCallAnAsynchronousDeviceFromRelease) {
  CountingRuntime runtime;
  runtime.asynchronous_ = true;
  MemoryPool pool(runtime, MemoryKind::kNormal, true, 0);
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.allocate(kMegabyte));
  for (void* block : blocks) pool.release(block, kMegabyte);
  EXPECT_EQ(runtime.held_, 8 * kMegabyte);
  pool.release(pool.allocate(4 * kMegabyte), 4 * kMegabyte);
  EXPECT_LE(runtime.held_, 10 * kMegabyte + 4 * kMegabyte);
}

TEST(MemoryPoolTest, WithoutCachingHandsEverythingThrough) {
  CountingRuntime runtime;
  MemoryPool pool(runtime, MemoryKind::kNormal, false);
  pool.release(pool.allocate(5000), 5000);
  EXPECT_EQ(runtime.held_, 0);
  EXPECT_EQ(pool.statistics().bytes_in_use, 0);
}

TEST(MemoryPoolTest, HostMemoryIsGivenBackWhenAsked) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const MemoryPool& pool = memory_pool(Device{});
  const auto used = allocate_host(kBytes);
  allocate_host(kBytes);  // let go at once
  EXPECT_GE(pool.statistics().bytes_cached, static_cast<std::int64_t>(kBytes));
  trim_host();
  EXPECT_EQ(pool.statistics().bytes_cached, 0);
  EXPECT_GE(pool.statistics().bytes_in_use, static_cast<std::int64_t>(kBytes));
  std::memset(used.get(), 1, kBytes);
}

TEST(MemoryPoolTest, ThreadsShareIt) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 500; ++i) {
        const PoolBlock block(Device(), MemoryKind::kNormal, static_cast<std::size_t>(64 + (i * 37 + t) % 4000));
        std::memset(block.data(), t, 64);
        const PoolBlock other(Device(), MemoryKind::kPinned, 128);
        ASSERT_EQ(static_cast<char*>(block.data())[63], t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(memory_pool(Device()).statistics().reused, 0);
}

TEST(MemoryPoolTest, UnknownDevicesAreRefused) {
  EXPECT_THROW(PoolBlock(Device(DeviceKind::kSim, 77), MemoryKind::kNormal, 1), Error);
}

}  // namespace
}  // namespace paceline::detail

#include <paceline/detail/device_runtime.h>
#include <paceline/detail/simulated_runtime.h>
#include <paceline/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <latch>
#include <thread>

namespace paceline::detail {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::size_t kBytes = 1000;

class DeviceRuntimeTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (is_missing()) GTEST_SKIP() << "no CUDA device here";
  }
  bool is_missing() const {
    return Device(GetParam()).kind == DeviceKind::kCuda && device_count(DeviceKind::kCuda) == 0;
  }

  DeviceRuntime& device_ = runtime(is_missing() ? Device() : Device(GetParam()));
};

TEST_P(DeviceRuntimeTest, AllocatesAlignedMemoryOfEveryKind) {
  const auto stream = device_.create_stream(0);
  for (const MemoryKind kind : {MemoryKind::kNormal, MemoryKind::kPinned, MemoryKind::kShared})
    for (const std::size_t bytes : {0u, 1u, 64u, 4097u, 1u << 20}) {
      void* memory = device_.allocate(bytes, kind, stream.get());
      ASSERT_NE(memory, nullptr);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 64, 0u);
      device_.release(memory, bytes, kind, stream.get());
    }
  device_.synchronize(*stream);
}

TEST_P(DeviceRuntimeTest, CopiesThereAndBack) {
  const auto stream = device_.create_stream(0);
  std::vector<char> from(kBytes, 'x');
  std::vector<char> to(kBytes);
  void* a = device_.allocate(kBytes, MemoryKind::kNormal, stream.get());
  void* b = device_.allocate(kBytes, MemoryKind::kNormal, stream.get());
  device_.copy(a, from.data(), kBytes, CopyKind::kHostToDevice, *stream);
  device_.copy(b, a, kBytes, CopyKind::kDeviceToDevice, *stream);
  device_.copy(to.data(), b, kBytes, CopyKind::kDeviceToHost, *stream);
  device_.release(a, kBytes, MemoryKind::kNormal, stream.get());
  device_.release(b, kBytes, MemoryKind::kNormal, stream.get());
  device_.synchronize(*stream);
  EXPECT_EQ(to, from);
}

TEST_P(DeviceRuntimeTest, EventsOrderStreams) {
  const auto first = device_.create_stream(0);
  const auto second = device_.create_stream(1);
  int value = 0;
  for (int i = 1; i <= 50; ++i) {
    Stream& stream = i % 2 ? *first : *second;
    Stream& other = i % 2 ? *second : *first;
    stream.enqueue([&value, i] { value = value * 3 % 1009 + i; });
    device_.wait(other, *device_.record(stream));
  }
  const auto last = device_.record(*second);
  last->synchronize();
  EXPECT_TRUE(last->reached());
  device_.synchronize(*first);
  int expected = 0;
  for (int i = 1; i <= 50; ++i) expected = expected * 3 % 1009 + i;
  EXPECT_EQ(value, expected);
}

TEST_P(DeviceRuntimeTest, CallsBackWhenTheWorkIsDone) {
  const auto stream = device_.create_stream(0);
  const auto done = std::make_shared<std::latch>(1);  // the thread that counts it down is never joined
  bool ran = false;
  stream->enqueue([&] { ran = true; });
  device_.when_done(*stream, [&ran, done](const std::exception_ptr& error) {
    EXPECT_FALSE(error);
    EXPECT_TRUE(ran);
    done->count_down();
  });
  done->wait();
}

TEST_P(DeviceRuntimeTest, TooMuchMemoryIsRefused) {
  EXPECT_THROW(device_.allocate(std::size_t{1} << 60, MemoryKind::kNormal, nullptr), OutOfMemory);
}

TEST_P(DeviceRuntimeTest, IssuesKeptWorkAgain) {
  const auto stream = device_.create_stream(0);
  std::vector<char> values(kBytes, 'a');
  void* from = device_.allocate(kBytes, MemoryKind::kNormal, stream.get());
  void* to = device_.allocate(kBytes, MemoryKind::kNormal, stream.get());
  const auto write = [&](void* at) {
    device_.copy(at, values.data(), kBytes, CopyKind::kHostToDevice, *stream);
    device_.synchronize(*stream);
  };
  const auto read = [&] {
    std::vector<char> there(kBytes);
    device_.copy(there.data(), to, kBytes, CopyKind::kDeviceToHost, *stream);
    device_.synchronize(*stream);
    return there;
  };
  write(to);
  values.assign(kBytes, 'b');
  write(from);
  const auto issue = [&] { device_.copy(to, from, kBytes, CopyKind::kDeviceToDevice, *stream); };
  if (const auto kept = device_.keep_work(*stream, issue)) {
    EXPECT_EQ(read(), std::vector<char>(kBytes, 'a')) << "it was run, too";
    for (const char value : {'c', 'd'}) {
      values.assign(kBytes, value);
      write(from);
      kept->issue(*stream);
      EXPECT_EQ(read(), values);
    }
    EXPECT_EQ(device_.keep_work(*stream, [] { throw Timeout("not now"); }), nullptr);
    const auto waits = [&] {
      issue();
      device_.synchronize(*stream);
    };
    EXPECT_EQ(device_.keep_work(*stream, waits), nullptr) << "the host cannot wait for what does not run";
    bool refused = false;
    device_.keep_work(*stream, [&] { refused = !device_.keep_work(*stream, issue); });
    EXPECT_TRUE(refused) << "the stream's work is being kept";
    issue();
    EXPECT_EQ(read(), values) << "the stream works as before";
  } else {
    EXPECT_NE(Device(GetParam()).kind, DeviceKind::kCuda);
  }
  device_.release(from, kBytes, MemoryKind::kNormal, stream.get());
  device_.release(to, kBytes, MemoryKind::kNormal, stream.get());
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceRuntimeTest, testing::Values("cpu", "cpu:1", "sim:0", "sim:3", "cuda:0"),
                         [](const auto& name) {
                           std::string text = name.param;
                           std::replace(text.begin(), text.end(), ':', '_');
                           return text;
                         });

TEST(Runtime, SaysWhyADeviceCannotBeUsed) {
  EXPECT_THROW(runtime(Device("cpu:16")), NotAvailable);
  EXPECT_THROW(runtime(Device("sim:4")), NotAvailable);
  const Device missing(DeviceKind::kCuda, device_count(DeviceKind::kCuda));
  EXPECT_THROW(runtime(missing), NotAvailable);
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kSim, DeviceKind::kCuda})
    EXPECT_THROW(runtime(Device(kind, -1)), NotAvailable);
}

// ---- the simulated device

class SimulatedDevice : public testing::Test {
 protected:
  void* allocate(Stream* stream = nullptr) { return device_.allocate(kBytes, MemoryKind::kNormal, stream); }
  void release(void* memory, Stream* stream = nullptr) { device_.release(memory, kBytes, MemoryKind::kNormal, stream); }

  DeviceRuntime& device_ = runtime(Device("sim:1"));
  DeviceRuntime& other_device_ = runtime(Device("sim:2"));
  std::unique_ptr<Stream> stream_ = device_.create_stream(0);
};

TEST_F(SimulatedDevice, ChecksBothEndsOfACopy) {
  std::vector<char> host(kBytes);
  void* here = allocate();
  void* there = other_device_.allocate(kBytes, MemoryKind::kNormal, nullptr);
  const auto copy = [&](void* to, const void* from, CopyKind kind) {
    device_.copy(to, from, kBytes, kind, *stream_);
    device_.synchronize(*stream_);
  };
  copy(here, host.data(), CopyKind::kHostToDevice);
  copy(host.data(), here, CopyKind::kDeviceToHost);
  copy(there, here, CopyKind::kDeviceToDevice);
  copy(here, there, CopyKind::kDeviceToDevice);
  EXPECT_THROW(copy(here, host.data(), CopyKind::kDeviceToDevice), Error);
  EXPECT_THROW(copy(host.data(), here, CopyKind::kHostToDevice), Error);
  EXPECT_THROW(copy(here, host.data(), CopyKind::kDeviceToHost), Error);
  EXPECT_THROW(copy(here, there, CopyKind::kHostToDevice), Error);
  EXPECT_THROW(copy(there, host.data(), CopyKind::kHostToDevice), Error);
  release(here);
  other_device_.release(there, kBytes, MemoryKind::kNormal, nullptr);
}

TEST_F(SimulatedDevice, FreshAndReleasedMemoryIsNan) {
  auto* memory = static_cast<float*>(allocate());
  EXPECT_TRUE(std::isnan(memory[0]));
  memory[0] = 1;
  release(memory);
  auto* again = static_cast<float*>(allocate());
  EXPECT_EQ(again, memory);
  EXPECT_TRUE(std::isnan(again[0]));
  release(again);
}

TEST_F(SimulatedDevice, FindsWritesAfterTheRelease) {
  auto* memory = static_cast<float*>(allocate());
  release(memory);
  memory[7] = 1;
  EXPECT_THAT([&] { allocate(); }, ThrowsMessage<Error>(HasSubstr("written after its release")));
}

TEST_F(SimulatedDevice, ReleaseIsInStreamOrder) {
  const auto other = device_.create_stream(0);
  std::latch hold{1};
  std::latch used{1};
  auto* memory = static_cast<float*>(allocate(stream_.get()));
  float seen = 0;
  stream_->enqueue([&] {
    memory[0] = 3;
    hold.wait();
    seen = memory[0];
    used.count_down();
  });
  release(memory, stream_.get());
  void* elsewhere = allocate(other.get());
  EXPECT_NE(elsewhere, memory) << "its last use is still to come";
  EXPECT_EQ(allocate(stream_.get()), memory) << "later work of this stream comes after that use";
  hold.count_down();
  used.wait();
  EXPECT_EQ(seen, 3);
  device_.synchronize(*stream_);
  EXPECT_TRUE(std::isnan(memory[0]));
  release(memory, stream_.get());
  release(elsewhere, other.get());
}

TEST_F(SimulatedDevice, CountsHostWaitsAndBytes) {
  const std::int64_t waits = simulated_host_waits();
  const std::int64_t bytes = simulated_bytes_in_use();
  void* memory = allocate();
  EXPECT_EQ(simulated_bytes_in_use(), bytes + static_cast<std::int64_t>(kBytes));
  device_.synchronize(*stream_);
  device_.record(*stream_)->synchronize();
  EXPECT_EQ(simulated_host_waits(), waits + 2);
  release(memory);
  EXPECT_EQ(simulated_bytes_in_use(), bytes);
}

}  // namespace
}  // namespace paceline::detail

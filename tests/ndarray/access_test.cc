// Wrong declarations, planted: the checking build names the task and the array. Right programs pass: all other suites.

#include "storage.h"

#include <paceline/detail/array_builder.h>
#include <paceline/detail/declared.h>
#include <paceline/error.h>
#include <paceline/kernel.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include <omp.h>

namespace paceline {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class AccessTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!detail::checks_access()) GTEST_SKIP() << "this is not the checking build";
  }

  bool serial() const { return GetParam(); }

  void push(const char* name, const std::vector<NDArray>& reads, const std::vector<NDArray>& writes,
            std::function<void()> work) {
    std::vector<Variable> read, written;
    for (const NDArray& array : reads) read.push_back(array.variable());
    for (const NDArray& array : writes) written.push_back(array.variable());
    engine_->push({name}, read, written, [work = std::move(work)](TaskContext&) { work(); });
  }

  // `victim` is (2, 3) and `out` was written by the task 'careless'.
  void expect_found(const NDArray& out, const char* what) {
    EXPECT_THAT([&] { out.wait(); },
                ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("'careless'"), HasSubstr("float32 (2, 3) on cpu"),
                                                     HasSubstr("array "), HasSubstr(what))));
  }

  std::unique_ptr<Engine> engine_ = GetParam() ? make_serial_engine() : make_threaded_engine();
  const NDArray victim_ = NDArray::full({2, 3}, 1, DType::kFloat32, {}, *engine_);
  const NDArray out_ = NDArray::zeros({4}, DType::kFloat32, {}, *engine_);
};

constexpr char kUndeclared[] = "which it did not declare";
constexpr char kReadOnly[] = "which it declared only to read";

TEST_P(AccessTest, ReadsWhatItDidNotDeclare) {
  push("careless", {}, {out_}, [this] { out_.data_as<float>()[0] = victim_.data_as<float>()[5]; });
  expect_found(out_, kUndeclared);
}

TEST_P(AccessTest, WritesAnotherArrayThanTheOneItDeclared) {
  const NDArray copy = victim_.clone();
  push("careless", {copy}, {out_}, [this] { victim_.data_as<float>()[0] = 2; });
  expect_found(out_, kUndeclared);
}

TEST_P(AccessTest, WritesThroughAnAddressFromOutside) {
  if (!serial()) GTEST_SKIP() << "found where tasks run one at a time";
  float* const address = victim_.data_as<float>();
  push("careless", {}, {out_}, [address] { address[1] = 2; });
  expect_found(out_, kUndeclared);
  EXPECT_EQ(victim_.to_vector<float>()[1], 2) << "the task came to its end";
}

TEST_P(AccessTest, ReadsThroughAnAddressFromOutside) {
  if (!serial()) GTEST_SKIP() << "found where tasks run one at a time";
  const float* const address = victim_.data_as<float>();
  push("careless", {}, {out_}, [this, address] { out_.data_as<float>()[0] = address[4]; });
  expect_found(out_, kUndeclared);
}

TEST_P(AccessTest, WritesThroughAnAddressWhatAnotherTaskReads) {
  if (serial()) GTEST_SKIP() << "tasks run one at a time here";
  std::mutex mutex;
  std::condition_variable changed;
  int stage = 0;
  const auto reach = [&](int next) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return stage == next - 1; });
    stage = next;
    changed.notify_all();
  };
  float* const address = victim_.data_as<float>();
  const Variable reads[] = {victim_.variable()};
  engine_->push({.name = "reader", .lane = Lane::kCommunication}, reads, {}, [&](TaskContext&) {
    reach(1);
    reach(4);
  });
  push("careless", {}, {out_}, [&] {
    reach(2);
    address[1] = 2;
    reach(3);
  });
  expect_found(out_, kUndeclared);
  engine_->wait_unused(victim_.variable());  // the reader uses what this function holds
}

TEST_P(AccessTest, WritesWhatItDeclaredToRead) {
  push("careless", {victim_}, {out_}, [this] { victim_.data_as<float>()[3] = 2; });
  expect_found(out_, kReadOnly);
}

TEST_P(AccessTest, AKernelWritesItsInput) {
  launch_host(
      "careless", {{victim_}}, {{out_}},
      [](const KernelContext&, std::span<const Tensor> in, std::span<const Tensor>) { in[0].as<float>()[2] = 2; });
  expect_found(out_, kReadOnly);
}

TEST_P(AccessTest, AKernelWritesAViewOfItsInput) {
  const Kernel kernel{"careless", [](const KernelContext&, std::span<const Tensor> in, std::span<const Tensor>,
                                     const void*) { in[0].as<float>()[in[0].strides[0]] *= 2; }};
  launch(kernel, {{victim_.permute({1, 0})}}, {{out_}});
  expect_found(out_, kReadOnly);
}

TEST_P(AccessTest, AThreadOfTheTeamWritesTheInput) {
  launch_host("careless", {{victim_}}, {{out_}},
              [](const KernelContext&, std::span<const Tensor> in, std::span<const Tensor>) {
#pragma omp parallel num_threads(2)
                if (omp_get_thread_num() == omp_get_num_threads() - 1) in[0].as<float>()[0] = 2;
              });
  expect_found(out_, kReadOnly);
}

TEST_P(AccessTest, AnAsynchronousTaskWritesWhatItDeclaredToRead) {
  const Variable reads[] = {victim_.variable()}, writes[] = {out_.variable()};
  engine_->push_async({"careless"}, reads, writes, [this](TaskContext&, Completion completion) {
    victim_.data_as<float>()[0] = 2;
    completion.done();
  });
  expect_found(out_, kReadOnly);
}

TEST_P(AccessTest, UsesAnArrayAfterItsRelease) {
  float* address = nullptr;
  {
    const NDArray array = NDArray::from<float>({1, 1, 1, 1, 1, 1}, {2, 3}, {}, *engine_);
    address = array.data_as<float>();
  }
  push("careless", {}, {out_}, [this, address] { out_.data_as<float>()[0] = address[0]; });
  expect_found(out_, "whose memory was released");
  EXPECT_TRUE(std::isnan(address[0]));
}

TEST_P(AccessTest, TheProgramUsesAnArrayAfterItsRelease) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const float* address = nullptr;
        {
          const NDArray array = NDArray::from<float>({1, 1, 1, 1, 1, 1}, {2, 3}, {}, *engine_);
          address = array.data_as<float>();
        }
        std::exit(address[0] > 0);
      },
      "after its release: array [0-9]+, float32 .2, 3. on cpu");
}

TEST_P(AccessTest, ATaskPushedByATaskDeclaresForItself) {
  push("parent", {victim_}, {},
       [this] { push("careless", {}, {out_}, [this] { out_.data_as<float>()[0] = victim_.data_as<float>()[5]; }); });
  engine_->wait_unused(victim_.variable());
  expect_found(out_, kUndeclared);
}

TEST_P(AccessTest, TheProgramWritesWhatATaskReads) {
  std::thread program;
  push("careless", {victim_}, {out_}, [&] {
    float* const address = victim_.data_as<float>();
    program = std::thread([address] { address[0] = 2; });
    program.join();
  });
  expect_found(out_, "something outside the engine writes");
}

TEST_P(AccessTest, WhatIsDeclaredMayBeTouched) {
  push("careful", {victim_}, {out_}, [this] { out_.data_as<float>()[0] = victim_.data_as<float>()[5]; });
  push("careful", {out_}, {victim_}, [this] { victim_.data_as<float>()[0] = out_.data_as<float>()[0] + 1; });
  launch_host("careful", {{victim_}}, {{victim_}},
              [](const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out) {
                out[0].as<float>()[1] = in[0].as<float>()[0] + 1;
              });
  const auto values = victim_.to_vector<float>();
  EXPECT_EQ(values[0], 2);
  EXPECT_EQ(values[1], 3);
  victim_.data_as<float>()[0] = 7;
  EXPECT_EQ(victim_.to_vector<float>()[0], 7) << "outside tasks, after a wait, the program may write";
}

TEST_P(AccessTest, SavingAnArrayIsNoWrite) {
  const std::string path = testing::TempDir() + "/paceline_saved_" + (serial() ? "serial" : "threaded");
  const std::uint64_t writes = ArrayBuilder::storage(victim_)->writes();
  save_params(path, {{"victim", victim_}});
  save_safetensors(path, {{"victim", victim_}});
  EXPECT_EQ(ArrayBuilder::storage(victim_)->writes(), writes);
}

TEST_P(AccessTest, NewMemoryIsNotZero) {
  EXPECT_TRUE(std::isnan(NDArray({2}, DType::kFloat32, {}, *engine_).data_as<float>()[1]));
}

INSTANTIATE_TEST_SUITE_P(Engines, AccessTest, testing::Bool(),
                         [](const auto& serial) { return serial.param ? "serial" : "threaded"; });

}  // namespace
}  // namespace paceline

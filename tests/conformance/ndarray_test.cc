#include "memory_pool.h"
#include "ndarray_suite.h"

#include <paceline/detail/array_builder.h>
#include <paceline/detail/declared.h>
#include <paceline/detail/simulated_runtime.h>
#include <paceline/engine_observer.h>
#include <paceline/kernel.h>

#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <future>
#include <limits>
#include <numeric>
#include <thread>

namespace paceline::test {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr DType kAllTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBfloat16, DType::kUint8,
                               DType::kInt8,    DType::kInt32,   DType::kInt64,   DType::kBool};

class NDArrayTest : public ArraySuite {};
INSTANTIATE_ARRAY_SUITE(NDArrayTest);

TEST_P(NDArrayTest, HoldsWhatItWasGiven) {
  const NDArray x = array<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(x.describe(), "float32 (2, 3) on " + device().name());
  EXPECT_EQ(x.size(), 6);
  EXPECT_EQ(x.size(-1), 3);
  EXPECT_EQ(x.bytes(), 24u);
  EXPECT_TRUE(x.is_contiguous());
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(x.to_vector<std::int64_t>(), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(x.at(1).at(2).item<double>(), 6);
  for (const DType dtype : kAllTypes) {
    EXPECT_EQ(NDArray::zeros({3}, dtype, device(), engine()).to_vector<float>(), std::vector<float>(3, 0));
    EXPECT_EQ(NDArray::full({3}, 1, dtype, device(), engine()).to_vector<float>(), std::vector<float>(3, 1));
  }
  EXPECT_THAT(array<bool>({true, false}, {2}).to_vector<bool>(), ElementsAre(true, false));
}

TEST_P(NDArrayTest, WhatComesFromAnAcceleratorArrivesInPinnedMemory) {
  if (device().is_cpu()) GTEST_SKIP() << "this is the host's memory already";
  const NDArray x = count({2, 3});
  const detail::MemoryPool& pinned = detail::memory_pool(device(), detail::MemoryKind::kPinned);
  const std::int64_t before = pinned.statistics().allocations;
  const NDArray here = x.to(Device());
  EXPECT_EQ(here.device(), Device());
  EXPECT_EQ(pinned.statistics().allocations, before + 1);
  EXPECT_THAT(here.to_vector<float>(), ElementsAre(0, 1, 2, 3, 4, 5));
  kernels::scale(2, here);  // an array of the host as any other
  EXPECT_THAT(here.to(device()).to_vector<float>(), ElementsAre(0, 2, 4, 6, 8, 10));
}

TEST_P(NDArrayTest, TheHostsSideOfACopyIsPinnedForAnAcceleratorOnly) {
  const detail::MemoryPool& pinned = detail::memory_pool(device(), detail::MemoryKind::kPinned);
  const std::int64_t before = pinned.statistics().allocations;
  const NDArray side = ArrayBuilder::host_side({2, 3}, DType::kFloat32, device(), engine());
  EXPECT_EQ(side.device(), Device());
  EXPECT_EQ(pinned.statistics().allocations, before + (device().is_cpu() ? 0 : 1));
}

TEST_P(NDArrayTest, ViewsShareMemory) {
  const NDArray x = count({4, 6});
  EXPECT_THAT(x.narrow(0, 1, 3).narrow(1, 2, 4).to_vector<float>(), ElementsAre(8, 9, 14, 15));
  EXPECT_THAT(x.at(2).to_vector<float>(), ElementsAre(12, 13, 14, 15, 16, 17));
  EXPECT_EQ(x.view({-1, 8}).shape(), Shape({3, 8}));
  EXPECT_THAT(x.view({2, -1}).at(1).to_vector<int>(), ElementsAre(12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23));
  const NDArray columns = x.permute({1, 0});
  EXPECT_FALSE(columns.is_contiguous());
  EXPECT_THAT(columns.narrow(0, 1, 3).to_vector<float>(), ElementsAre(1, 7, 13, 19, 2, 8, 14, 20));
  EXPECT_THAT(x.narrow(1, 0, 1).broadcast_to({4, 2}).to_vector<float>(), ElementsAre(0, 0, 6, 6, 12, 12, 18, 18));
  EXPECT_TRUE(columns.shares_memory_with(x));

  columns.narrow(0, 5, 6).fill(-1);
  x.narrow(0, 1, 2).narrow(1, 0, 2).copy_from(array<int>({7, 8}, {2}));
  EXPECT_THAT(x.narrow(0, 0, 2).to_vector<float>(), ElementsAre(0, 1, 2, 3, 4, -1, 7, 8, 8, 9, 10, -1));
}

TEST_P(NDArrayTest, RefusesImpossibleViews) {
  const NDArray x = count({4, 6});
  EXPECT_THROW(x.narrow(0, 3, 5), InvalidArgument);
  EXPECT_THROW(x.narrow(2, 0, 1), InvalidArgument);
  EXPECT_THROW(x.narrow(0, 2, 1), InvalidArgument);
  EXPECT_THROW(x.at(4), InvalidArgument);
  EXPECT_THROW(x.at(-1), InvalidArgument);
  EXPECT_THROW(x.view({5, 5}), InvalidArgument);
  EXPECT_THROW(x.view({-1, -1}), InvalidArgument);
  EXPECT_THROW(x.view({7, -1}), InvalidArgument);
  EXPECT_THROW(x.permute({1, 0}).view({24}), InvalidArgument);
  EXPECT_THROW(x.permute({0, 0}), InvalidArgument);
  EXPECT_THROW(x.permute({0}), InvalidArgument);
  EXPECT_THROW(x.broadcast_to({4, 7}), InvalidArgument);
  EXPECT_THROW(x.item<float>(), InvalidArgument);
  EXPECT_THROW(x.copy_from(count({5})), InvalidArgument);
  EXPECT_THROW(x.narrow(0, 0, 1).broadcast_to({4, 6}).fill(0), InvalidArgument);
  EXPECT_THROW(NDArray({2, -1}, DType::kFloat32, device(), engine()), InvalidArgument);
  EXPECT_THROW(NDArray({std::int64_t{1} << 40, std::int64_t{1} << 40}, DType::kFloat32, device(), engine()),
               InvalidArgument);
  EXPECT_THROW(NDArray::from<float>({1, 2}, {3}, device(), engine()), InvalidArgument);
  EXPECT_THROW(NDArray().wait(), InvalidArgument);
  EXPECT_THROW(NDArray().permute({}), InvalidArgument);
}

// A second meaning of convert(), written from its description, for values that a double holds exactly.
double expected_cast(double value, DType to) {
  const auto integer = [&](double lowest, double highest) {
    if (std::isnan(value)) return 0.0;
    return std::trunc(std::min(std::max(value, lowest), highest));
  };
  switch (to) {
    case DType::kFloat32: return static_cast<double>(static_cast<float>(value));
    case DType::kFloat64: return value;
    case DType::kFloat16: return static_cast<double>(static_cast<float>(float16(static_cast<float>(value))));
    case DType::kBfloat16: return static_cast<double>(static_cast<float>(bfloat16(static_cast<float>(value))));
    case DType::kUint8: return integer(0, 255);
    case DType::kInt8: return integer(-128, 127);
    case DType::kInt32: return integer(-2147483648.0, 2147483647.0);
    case DType::kInt64: return integer(-0x1p63, 0x1p63);
    case DType::kBool: return value != 0;
  }
  return 0;
}

TEST_P(NDArrayTest, CastsEveryTypeToEveryOther) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> values{0,     1,    -1,    0.5,  1.5,      2.5,       -2.75,        127,        128,
                                   -128,  -129, 255,   256,  65504,    65520,     3e9,          -3e9,       1e19,
                                   -1e19, 1e30, 1e-30, 1e-7, infinity, -infinity, std::nan(""), 2147483647, 100};
  for (const DType from : kAllTypes) {
    const NDArray source = array(values, {static_cast<std::int64_t>(values.size())}).cast(from);
    const std::vector<double> exact = source.to_vector<double>();
    for (const DType to : kAllTypes) {
      const std::vector<double> result = source.cast(to).to_vector<double>();
      for (std::size_t i = 0; i < values.size(); ++i) {
        double expected = expected_cast(exact[i], to);
        if (!is_floating(from) && !is_floating(to) && to != DType::kBool) {
          const auto bits = source.narrow(0, static_cast<std::int64_t>(i), static_cast<std::int64_t>(i) + 1)
                                .to_vector<std::int64_t>()[0];
          expected = to == DType::kUint8   ? static_cast<double>(static_cast<std::uint8_t>(bits))
                     : to == DType::kInt8  ? static_cast<double>(static_cast<std::int8_t>(bits))
                     : to == DType::kInt32 ? static_cast<double>(static_cast<std::int32_t>(bits))
                                           : static_cast<double>(bits);
        }
        if (std::isnan(expected))
          EXPECT_TRUE(std::isnan(result[i])) << exact[i] << " from " << name_of(from) << " to " << name_of(to);
        else
          EXPECT_EQ(result[i], expected) << exact[i] << " from " << name_of(from) << " to " << name_of(to);
      }
    }
  }
}

TEST_P(NDArrayTest, CopiesAcrossDevices) {
  const Device others[] = {Device("cpu"), Device("cpu:1"), Device("sim:0"), Device("sim:3")};
  const NDArray x = count({3, 4, 5});
  for (const Device other : others) {
    const NDArray there = x.to(other);
    EXPECT_EQ(there.device(), other);
    EXPECT_EQ(there.to_vector<float>(), x.to_vector<float>());
    const NDArray permuted = x.permute({2, 0, 1});
    EXPECT_EQ(permuted.to(other).to_vector<float>(), permuted.to_vector<float>());
    const NDArray sliced = x.narrow(1, 1, 3);
    EXPECT_EQ(sliced.to(other).to_vector<float>(), sliced.to_vector<float>());

    const NDArray target = NDArray::full({3, 5, 4}, -1, DType::kInt32, other, engine());
    target.permute({0, 2, 1}).narrow(1, 1, 3).copy_from(x.narrow(1, 0, 1));
    const NDArray back = NDArray::zeros({3, 5, 4}, DType::kFloat64, device(), engine());
    back.copy_from(target);
    const std::vector<double> values = back.to_vector<double>();
    for (int i = 0; i < 3; ++i)
      for (int j = 0; j < 5; ++j)
        for (int k = 0; k < 4; ++k)
          EXPECT_EQ(values[static_cast<std::size_t>(i * 20 + j * 4 + k)], k == 1 || k == 2 ? i * 20 + j : -1);
  }
}

TEST_P(NDArrayTest, CopiesBetweenOverlappingViewsAsIfThroughACopy) {
  const NDArray x = count({8});
  x.narrow(0, 1, 8).copy_from(x.narrow(0, 0, 7));
  EXPECT_THAT(x.to_vector<int>(), ElementsAre(0, 0, 1, 2, 3, 4, 5, 6));
  const NDArray square = count({3, 3});
  square.copy_from(square.permute({1, 0}));
  EXPECT_THAT(square.to_vector<int>(), ElementsAre(0, 3, 6, 1, 4, 7, 2, 5, 8));
  kernels::add(x.narrow(0, 0, 7), x.narrow(0, 1, 8), x.narrow(0, 1, 8));
  EXPECT_THAT(x.to_vector<int>(), ElementsAre(0, 0, 1, 3, 5, 7, 9, 11));
}

TEST_P(NDArrayTest, ArraysWithoutElementsWorkEverywhere) {
  const NDArray x = NDArray::zeros({2, 0, 3}, DType::kFloat32, device(), engine());
  EXPECT_EQ(x.size(), 0);
  EXPECT_TRUE(x.to_vector<float>().empty());
  EXPECT_TRUE(x.to(Device("sim:1")).to(Device("cpu")).cast(DType::kInt8).to_vector<int>().empty());
  EXPECT_TRUE(x.permute({1, 2, 0}).contiguous().to_vector<float>().empty());
  EXPECT_EQ(x.view({0, 7}).shape(), Shape({0, 7}));
  EXPECT_THROW(x.view({0, std::int64_t{1} << 40, std::int64_t{1} << 40}), InvalidArgument);
  kernels::add(x, x, x);
  kernels::scale(2, x);
  kernels::fill_uniform(x, 0, 1, 1);
  const NDArray sum = NDArray::full({}, 5, DType::kFloat32, device(), engine());
  kernels::reduce_sum(x, sum);
  EXPECT_EQ(sum.item<float>(), 0);
  const NDArray product = NDArray::full({2, 2}, 3, DType::kFloat32, device(), engine());
  const NDArray none = NDArray::zeros({2, 0}, DType::kFloat32, device(), engine());
  kernels::gemm(none, false, none, true, product, 1, 1);
  EXPECT_THAT(product.to_vector<float>(), ElementsAre(3, 3, 3, 3));
  kernels::gemm(none, false, none, true, product);
  EXPECT_THAT(product.to_vector<float>(), ElementsAre(0, 0, 0, 0));
  const NDArray range = count({4}).narrow(0, 2, 2);
  range.fill(1);
  EXPECT_EQ(range.clone().size(), 0);
}

TEST_P(NDArrayTest, WrapsForeignMemory) {
  auto memory = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4});
  const std::weak_ptr<std::vector<float>> watch = memory;
  {
    const NDArray wrapped = NDArray::wrap(memory->data(), {2, 2}, DType::kFloat32, memory, engine());
    const float* first = memory->data();
    memory.reset();
    EXPECT_EQ(wrapped.data(), first);
    const NDArray copy = wrapped.to(device()).clone();
    wrapped.at(0).fill(9);
    EXPECT_THAT(copy.to_vector<float>(), ElementsAre(1, 2, 3, 4));
    EXPECT_THAT(wrapped.to_vector<float>(), ElementsAre(9, 9, 3, 4));
  }
  engine().wait_all();
  EXPECT_TRUE(watch.expired());
  EXPECT_THROW(NDArray::wrap(nullptr, {1}, DType::kFloat32, nullptr, engine()), InvalidArgument);
}

TEST_P(NDArrayTest, PartsOfAnArenaHaveTheirOwnVariables) {
  const auto arena = std::make_shared<NDArray>(count({6}));
  arena->wait();
  auto* memory = static_cast<char*>(arena->data());
  const NDArray a = ArrayBuilder::wrap(memory, {2}, DType::kFloat32, device(), arena, engine());
  const NDArray b = ArrayBuilder::wrap(memory + 8, {4}, DType::kFloat32, device(), arena, engine());
  EXPECT_FALSE(a.variable() == b.variable());
  a.fill(1);
  b.fill(2);
  a.wait();
  b.wait();
  EXPECT_THAT(arena->to_vector<float>(), ElementsAre(1, 1, 2, 2, 2, 2));
}

void broken(const KernelContext&, std::span<const Tensor>, std::span<const Tensor>, const void*) {
  throw IoError("the kernel broke");
}

TEST_P(NDArrayTest, FailuresTravelWithTheData) {
  if (!on_host()) GTEST_SKIP() << "CUDA kernels do not throw";
  const NDArray x = count({4});
  const NDArray outputs[] = {x};
  launch({"broken", broken, nullptr}, {}, outputs);
  const NDArray y = x.clone();
  const NDArray elsewhere = y.to(Device("cpu:1")).to(Device("sim:2")).cast(DType::kInt32);
  EXPECT_THROW(x.wait(), IoError);
  EXPECT_THROW(y.wait(), IoError);
  try {
    elsewhere.to_vector<float>();
    ADD_FAILURE() << "the failure was lost";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the kernel broke"));
  }
  x.narrow(0, 0, 3).fill(1);
  EXPECT_THROW(x.wait(), IoError) << "a view does not heal the rest of the array";
  x.fill(1);
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(1, 1, 1, 1));
  y.copy_from(x);
  EXPECT_THAT(y.to_vector<float>(), ElementsAre(1, 1, 1, 1));
}

TEST_P(NDArrayTest, LaunchChecksItsArrays) {
  const NDArray x = count({4});
  const NDArray elsewhere = NDArray::zeros({4}, DType::kFloat32, Device("sim:3"), engine());
  EXPECT_THROW(kernels::add(x, elsewhere, x), InvalidArgument);
  const auto other_engine = make_serial_engine();
  const NDArray foreign = NDArray::zeros({4}, DType::kFloat32, device(), *other_engine);
  EXPECT_THROW(kernels::add(x, foreign, x), InvalidArgument);
  EXPECT_THROW(x.copy_from(foreign), InvalidArgument);
  EXPECT_THROW(kernels::add(x, NDArray(), x), InvalidArgument);
  EXPECT_THROW(kernels::add(x, count({5}), x), InvalidArgument);
  EXPECT_THROW(launch({"nothing"}, {}, std::span(&x, 1)), NotAvailable);
  EXPECT_THROW(launch({"nothing", broken, nullptr}, {}, {}), InvalidArgument);
}

TEST_P(NDArrayTest, VersionsCountWrites) {
  const NDArray x = count({4});
  const std::uint64_t before = x.variable().version();
  x.narrow(0, 0, 2).fill(1);
  EXPECT_EQ(x.variable().version(), before + 1);
  x.clone().wait();
  EXPECT_EQ(x.variable().version(), before + 1);
}

TEST_P(NDArrayTest, HostKernelsRunInOrder) {
  if (!on_host()) GTEST_SKIP() << "host kernels are for host devices";
  const NDArray x = NDArray::zeros({3}, DType::kInt64, device(), engine());
  for (int i = 0; i < 50; ++i) {
    launch_host("twice_plus", std::span(&x, 1), std::span(&x, 1),
                [i](const KernelContext& context, std::span<const Tensor>, std::span<const Tensor> out) {
                  auto* scratch = static_cast<std::int64_t*>(context.workspace);
                  for (int j = 0; j < 3; ++j) scratch[j] = out[0].as<std::int64_t>()[j];
                  for (int j = 0; j < 3; ++j) out[0].as<std::int64_t>()[j] = (scratch[j] * 3 + i + j) % 1000003;
                },
                {.workspace_bytes = 24});
  }
  std::vector<std::int64_t> expected{0, 0, 0};
  for (int i = 0; i < 50; ++i)
    for (int j = 0; j < 3; ++j)
      expected[static_cast<std::size_t>(j)] = (expected[static_cast<std::size_t>(j)] * 3 + i + j) % 1000003;
  EXPECT_EQ(x.to_vector<std::int64_t>(), expected);
}

TEST_P(NDArrayTest, ATaskTouchesOnlyWhatItDeclared) {
  if (!detail::checks_data()) GTEST_SKIP() << "this build does not check";
  if (device().kind != DeviceKind::kCpu) GTEST_SKIP() << "the task below is for a CPU";
  const NDArray declared = count({2});
  const NDArray other = count({2});
  const Variable writes[] = {declared.variable()};
  engine().push({"careless", device()}, {}, writes, [&](TaskContext&) { other.data_as<float>()[0] = 1; });
  EXPECT_THROW(declared.wait(), InvalidArgument);
  engine().push({"careful", device()}, {}, writes, [&](TaskContext&) { declared.data_as<float>()[0] = 1; });
  declared.wait();
}

class StartCounter final : public EngineObserver {
 public:
  void on_start(const TaskEvent&) override { ++started_; }
  void on_finish(const TaskEvent&) override { ++finished_; }
  std::atomic<int> started_ = 0;
  std::atomic<int> finished_ = 0;
};

TEST(NDArrayStreamsTest, AChainOfKernelsIsIssuedBeforeTheFirstIsDone) {
  constexpr int kLength = 100;
  const auto engine = make_threaded_engine();
  const NDArray x = NDArray::zeros({8}, DType::kInt32, Device("sim:0"), *engine);
  const NDArray one = NDArray::full({8}, 1, DType::kInt32, Device("sim:0"), *engine);
  engine->wait_all();
  const auto counter = std::make_shared<StartCounter>();
  engine->add_observer(counter);
  const std::int64_t waits = detail::simulated_host_waits();

  std::promise<void> release;
  launch_host(
      "hold", std::span(&x, 1), std::span(&x, 1),
      [&](const KernelContext&, std::span<const Tensor>, std::span<const Tensor>) { release.get_future().wait(); });
  for (int i = 1; i < kLength; ++i) kernels::add(x, one, x);
  while (counter->started_ < kLength) std::this_thread::yield();
  EXPECT_EQ(counter->finished_, 0);
  release.set_value();
  engine->wait_all();
  EXPECT_EQ(detail::simulated_host_waits(), waits);
  EXPECT_EQ(x.to_vector<int>(), std::vector<int>(8, kLength - 1));
}

}  // namespace
}  // namespace paceline::test

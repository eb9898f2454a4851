// A device that breaks down under a kernel. Each test needs a process of its own, as tests/runner and
// tools/gpu_check.sh give.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/detail/array_builder.h>
#include <paceline/kernel.h>

enum cudaError_t : int;  // NOLINT(readability-identifier-naming): its name in CUDA
namespace cuda_emulation {
// Of the emulated devices, where this is built for them: null elsewhere.
[[gnu::weak]] void fail_device(int device, cudaError_t status);
}  // namespace cuda_emulation

namespace paceline {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// Writes where there is no memory.
void push_fault(Device device, Engine& engine = default_engine()) {
  if (cuda_emulation::fail_device) {
    constexpr auto kIllegalAddress = static_cast<cudaError_t>(700);
    engine.push({"fault", device}, {}, {},
                [](TaskContext& task) { cuda_emulation::fail_device(task.device.index, kIllegalAddress); });
    return;
  }
  void* const nowhere = reinterpret_cast<void*>(std::uintptr_t{256});  // no process has memory on its first page
  ArrayBuilder::wrap(nowhere, {1024}, DType::kFloat32, device, nullptr, engine).fill(1);
}

std::string error_at(const NDArray& array) {
  try {
    array.wait();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "no DeviceError";
}

TEST(DeviceFault, NamesATaskAndLeavesTheOtherDevicesAlone) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  const Device device("cuda:0");
  const NDArray before = NDArray::full({1000}, 2, DType::kFloat32, device);
  EXPECT_EQ(before.to_vector<float>(), std::vector<float>(1000, 2));
  default_engine().wait_all();  // a task whose end is not yet known would fail, too
  push_fault(device);
  try {
    default_engine().wait_all();
  } catch (const DeviceError&) {  // NOLINT(bugprone-empty-catch): what is thrown here is tested above
  }
  kernels::scale(2, before);
  EXPECT_THAT(error_at(before), AllOf(StartsWith("[scale]"), HasSubstr("illegal memory access")));
  EXPECT_THAT(error_at(before), StartsWith("[scale]")) << "and at every wait";
  EXPECT_THROW(before.to_vector<float>(), DeviceError);
  EXPECT_THROW(NDArray::full({std::int64_t{1} << 24}, 1, DType::kFloat32, device).wait(), DeviceError);

  std::vector<Device> others{Device("cpu"), Device("sim:0")};
  if (device_count(DeviceKind::kCuda) > 1) others.push_back(Device("cuda:1"));
  for (const Device& other : others) {
    const NDArray x = NDArray::full({1000}, 3, DType::kFloat32, other);
    kernels::scale(2, x);
    EXPECT_EQ(x.to_vector<float>(), std::vector<float>(1000, 6)) << other.name();
  }
}

TEST(DeviceFault, FailsTheFirstTaskOfALaneInTheSerialEngineToo) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  const Device device("cuda:0");
  const auto engine = make_serial_engine();
  const Variable first = engine->new_variable(), other = engine->new_variable();
  push_fault(device, *engine);
  engine->push({"first of its lane", device, Lane::kCopyIn}, {}, {{first}}, [](TaskContext&) {});
  EXPECT_THROW(engine->wait(first), DeviceError);
  engine->push({"host"}, {}, {{other}}, [](TaskContext&) {});
  engine->wait(other);
}

TEST(DeviceFault, IsOneForALibraryToo) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  const NDArray a = NDArray::full({8, 8}, 1, DType::kFloat32, Device("cuda:0")), out = a.clone();
  kernels::gemm(a, false, a, false, out);
  EXPECT_EQ(out.to_vector<float>(), std::vector<float>(64, 8));
  push_fault(a.device());
  kernels::gemm(a, false, a, false, out);
  EXPECT_THAT(error_at(out), HasSubstr("illegal memory access"));
}

}  // namespace
}  // namespace paceline

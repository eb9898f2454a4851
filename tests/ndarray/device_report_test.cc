// What kernels of CUDA devices report to the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/detail/device_report.h>
#include <paceline/engine.h>
#include <paceline/error.h>
#include <paceline/row_sparse.h>

#include <array>

namespace paceline {
namespace {

using detail::DeviceReport;
using testing::HasSubstr;
using testing::ThrowsMessage;

void rethrow(const std::exception_ptr& error) {
  if (error) std::rethrow_exception(error);
}

TEST(DeviceReport, IsTakenOnceAndOnlyWhenItIsComplete) {
  DeviceReport& report = *detail::report_of(Device());
  EXPECT_EQ(*report.claimed, 0U);
  report.pattern = "row {} (number {}) is outside [0, {})";
  report.value = 7;
  report.number = 3;
  report.limit = 5;
  EXPECT_EQ(detail::take_report(Device()), nullptr);
  ++report.written;
  EXPECT_THAT(
      [] { rethrow(detail::take_report(Device())); },
      ThrowsMessage<InvalidArgument>("row 7 (number 3) is outside [0, 5); cpu found this before now, perhaps for "
                                     "another array than this"));
  EXPECT_EQ(detail::take_report(Device()), nullptr);
  EXPECT_EQ(report.taken, 1U);
  report.pattern = nullptr;
  report.value = 0.5;
  ++report.written;
  EXPECT_THAT([] { rethrow(detail::take_report(Device())); }, ThrowsMessage<InvalidArgument>(HasSubstr("0.5")));
}

TEST(DeviceReport, TasksThatReadTheCopyDoNotRun) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  const Device device("cuda:0");
  const NDArray table = NDArray::zeros({4, 2}, DType::kFloat32, device);
  scatter_add(table, {NDArray::full({1}, 9, DType::kInt64, device), NDArray::full({1, 2}, 1, DType::kFloat32, device),
                      table.shape()});
  const NDArray host = table.to(Device());
  const Variable read = default_engine().new_variable();
  bool ran = false;
  default_engine().push({"raw"}, std::array{host.variable()}, std::array{read}, [&](TaskContext&) { ran = true; });
  EXPECT_THAT([&] { default_engine().wait(read); }, ThrowsMessage<InvalidArgument>(HasSubstr("row 9")));
  EXPECT_FALSE(ran);
  host.fill(1);
  EXPECT_EQ(host.to_vector<float>(), std::vector<float>(8, 1));
}

TEST(DeviceReport, ACopyThatNeverRanLeavesItToOthers) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  const Device device("cuda:0");
  const NDArray table = NDArray::zeros({4, 2}, DType::kFloat32, device);
  const NDArray lost = NDArray::zeros({4}, DType::kFloat32, device);
  default_engine().push({"lost", device}, {}, std::array{lost.variable()},
                        [](TaskContext&) { throw Timeout("this one is lost"); });
  scatter_add(table, {NDArray::full({1}, 9, DType::kInt64, device), NDArray::full({1, 2}, 1, DType::kFloat32, device),
                      table.shape()});
  default_engine().wait(table.variable());
  EXPECT_THAT([&] { lost.to_vector<float>(); }, ThrowsMessage<Timeout>(HasSubstr("this one is lost")));
  EXPECT_THAT([&] { table.wait(); }, ThrowsMessage<InvalidArgument>(HasSubstr("row 9")));
  EXPECT_NO_THROW(table.wait());
}

}  // namespace
}  // namespace paceline

// Captured functions on CUDA devices: replays are issued as graphs.
#include <gtest/gtest.h>
#include <paceline/capture.h>
#include <paceline/kernel.h>

#include <array>
#include <atomic>

namespace paceline {
namespace {

using Arrays = std::vector<NDArray>;

std::atomic<int> times_issued = 0;

void count_issue(const KernelContext&, std::span<const Tensor>, std::span<const Tensor>, const void*) {
  ++times_issued;
}

// out = 2 x + weight, and an array that nobody fills.
Arrays twice_and(const NDArray& x, const NDArray& weight) {
  const NDArray out(x.shape(), x.dtype(), x.device());
  kernels::add(x, x, out);
  kernels::axpy(1, weight, out);
  const NDArray counted({1}, x.dtype(), x.device());
  launch({"counted", count_issue, count_issue}, std::array{out}, std::array{counted});
  return {out, counted};
}

class CapturedOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
    times_issued = 0;
  }
  static NDArray all(float value) { return NDArray::full({1000}, value, DType::kFloat32, Device("cuda:0")); }
  static std::vector<float> values(float value) { return std::vector<float>(1000, value); }
};

TEST_F(CapturedOnCuda, ArraysThatComeBackAreAGraph) {
  const NDArray weight = all(1), x = all(0);
  Captured captured([&](const Arrays& in) { return twice_and(in[0], weight); });
  constexpr int kCalls = 60;
  for (int call = 0; call < kCalls; ++call) {
    x.fill(call);
    weight.fill(10 * call);
    EXPECT_EQ(captured({x})[0].to_vector<float>(), values(static_cast<float>(12 * call))) << call;
  }
  // Eager, noted, and for each of the few places of the result once from the plan and once recorded.
  EXPECT_LT(times_issued, kCalls / 2);
}

TEST_F(CapturedOnCuda, AGraphIsMadeOfArraysThatComeBackLater) {
  const NDArray weight = all(1);
  Captured captured([&](const Arrays& in) { return twice_and(in[0], weight); });
  const NDArray steady = all(1);
  Arrays earlier;
  for (int i = 0; i < 20; ++i) {
    earlier.push_back(all(static_cast<float>(i)));
    for (int call = 0; call < 6; ++call) captured({earlier.back()})[0].wait();
  }
  times_issued = 0;
  constexpr int kCalls = 60;
  for (int call = 0; call < kCalls; ++call) EXPECT_EQ(captured({steady})[0].to_vector<float>(), values(3)) << call;
  EXPECT_LT(times_issued, kCalls / 2);
  for (const NDArray& x : earlier) EXPECT_EQ(captured({x})[0].to_vector<float>()[0], 2 * x.to_vector<float>()[0] + 1);
}

TEST_F(CapturedOnCuda, ArraysThatDoNotComeBackAreIssuedOneByOne) {
  const NDArray weight = all(1);
  Captured captured([&](const Arrays& in) { return twice_and(in[0], weight); });
  constexpr int kCalls = 50;
  Arrays kept;  // so that no memory is used again
  for (int call = 0; call < kCalls; ++call) {
    kept.push_back(all(static_cast<float>(call)));
    kept.push_back(captured({kept.back()})[0]);
    EXPECT_EQ(kept.back().to_vector<float>(), values(static_cast<float>(2 * call + 1))) << call;
  }
  EXPECT_EQ(times_issued, kCalls);
}

}  // namespace
}  // namespace paceline

#include "../conformance/ndarray_suite.h"
#include "kernels/cuda_kernels.h"

#include <paceline/cores.h>
#include <paceline/detail/elementwise.h>
#include <paceline/detail/gemm_bias.h>
#include <paceline/kernel.h>
#include <paceline/row_sparse.h>

#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>

namespace paceline::test {
namespace {

using ::testing::ElementsAre;

class KernelsTest : public ArraySuite {
 protected:
  NDArray random(const Shape& shape, std::uint64_t seed, DType dtype = DType::kFloat32) {
    const NDArray x(shape, dtype, device(), engine());
    kernels::fill_uniform(x, -1, 1, seed);
    return x;
  }
  bool with_cublas_lt() { return device().kind == DeviceKind::kCuda && detail::gemm_sums_cuda(); }
};
INSTANTIATE_ARRAY_SUITE(KernelsTest);

TEST_P(KernelsTest, AddAxpyScale) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBfloat16, DType::kInt8,
                            DType::kInt32, DType::kInt64, DType::kUint8}) {
    SCOPED_TRACE(name_of(dtype));
    const NDArray a = count({2, 3}, dtype);
    const NDArray b = count({3, 2}, dtype).permute({1, 0});
    const NDArray out = NDArray::zeros({2, 3}, dtype, device(), engine());
    kernels::add(a, b, out);
    EXPECT_THAT(out.to_vector<int>(), ElementsAre(0, 3, 6, 4, 7, 10));
    kernels::axpy(2, a, out);
    EXPECT_THAT(out.to_vector<int>(), ElementsAre(0, 5, 10, 10, 15, 20));
    kernels::scale(3, out.narrow(1, 1, 3));
    EXPECT_THAT(out.to_vector<int>(), ElementsAre(0, 15, 30, 10, 45, 60));
    kernels::add(out, out, out);
    EXPECT_THAT(out.to_vector<int>(), ElementsAre(0, 30, 60, 20, 90, 120));
  }
  constexpr std::int64_t kLarge = (std::int64_t{1} << 53) + 1;  // no double
  const NDArray large = array<std::int64_t>({kLarge, -kLarge}, {2}), sum = array<std::int64_t>({2, 2}, {2});
  kernels::axpy(1, large, sum);
  EXPECT_THAT(sum.to_vector<std::int64_t>(), ElementsAre(kLarge + 2, 2 - kLarge));
  kernels::scale(-3, large);
  EXPECT_THAT(large.to_vector<std::int64_t>(), ElementsAre(-3 * kLarge, 3 * kLarge));
  const NDArray even = array<std::int64_t>({4, -7}, {2});
  kernels::scale(0.5, even);
  EXPECT_THAT(even.to_vector<std::int64_t>(), ElementsAre(2, -3));
  const NDArray small = array<std::int8_t>({127, -128}, {2});
  kernels::add(small, small, small);
  EXPECT_THAT(small.to_vector<int>(), ElementsAre(-2, 0));
}

TEST_P(KernelsTest, LargeArraysUseTheWholeTeam) {
  constexpr std::int64_t kSize = 1000003;
  const NDArray x = random({kSize}, 1);
  const NDArray y = random({kSize}, 2);
  const std::vector<float> before = y.to_vector<float>();
  const std::vector<float> values = x.to_vector<float>();
  kernels::axpy(0.5, x, y);
  const std::vector<float> after = y.to_vector<float>();
  for (std::size_t i = 0; i < before.size(); ++i) ASSERT_EQ(after[i], before[i] + 0.5f * values[i]) << i;
  const std::vector<double> wide =
      x.view({1000003, 1}).broadcast_to({1000003, 2}).cast(DType::kFloat64).to_vector<double>();
  for (std::size_t i = 0; i < wide.size(); ++i) ASSERT_EQ(wide[i], values[i / 2]) << i;
}

TEST_P(KernelsTest, TurnsLargeArrays) {
  const std::vector<int> orders[] = {{2, 1, 0}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}};
  for (const DType dtype : {DType::kUint8, DType::kFloat16, DType::kFloat32, DType::kInt64}) {
    const NDArray x = random({35, 67, 40}, 6).cast(DType::kInt8).cast(dtype);
    kernels::axpy(1, count(x.shape()).cast(DType::kUint8).cast(dtype), x);
    const std::vector<double> values = x.to_vector<double>();
    for (const std::vector<int>& axes : orders) {
      const NDArray turned = x.narrow(1, 1, 66).permute(axes);
      const std::vector<double> result = turned.clone().to_vector<double>();
      std::size_t at = 0;
      std::int64_t index[3];
      for (index[0] = 0; index[0] < turned.size(0); ++index[0])
        for (index[1] = 0; index[1] < turned.size(1); ++index[1])
          for (index[2] = 0; index[2] < turned.size(2); ++index[2], ++at) {
            std::int64_t place = 40;
            for (std::size_t d = 0; d < 3; ++d) place += index[d] * row_major(x.shape())[axes[d]];
            ASSERT_EQ(result[at], values[static_cast<std::size_t>(place)]);
          }
    }
  }
}

TEST_P(KernelsTest, TurnsIntoAPartAndLeavesTheRest) {
  for (const std::int64_t rows : {31, 64, 200}) {
    const NDArray all = NDArray::full({3 * rows, 96}, -1, DType::kFloat32, device(), engine());
    all.narrow(0, rows, 2 * rows).copy_from(count({96, rows}).permute({1, 0}));
    const std::vector<double> values = all.to_vector<double>();
    for (std::int64_t i = 0; i < 3 * rows; ++i)
      for (std::int64_t j = 0; j < 96; ++j) {
        const bool inside = i >= rows && i < 2 * rows;
        ASSERT_EQ(values[static_cast<std::size_t>(i * 96 + j)], inside ? static_cast<double>(j * rows + i - rows) : -1)
            << rows << " rows, at " << i << ", " << j;
      }
  }
}

TEST_P(KernelsTest, SumOfAddsInTheGivenOrder) {
  const NDArray large = array<float>({1e8f, 1e8f}, {2});
  const NDArray minus = array<float>({-1e8f, -1e8f}, {2});
  const NDArray one = array<float>({1, 1}, {2});
  const NDArray out = NDArray::zeros({2}, DType::kFloat32, device(), engine());
  kernels::sum_of(std::vector<NDArray>{large, minus, one}, out);
  EXPECT_THAT(out.to_vector<float>(), ElementsAre(1, 1));
  kernels::sum_of(std::vector<NDArray>{large, one, minus}, out);
  EXPECT_THAT(out.to_vector<float>(), ElementsAre(0, 0));
  kernels::sum_of(std::vector<NDArray>(20, one), out);
  EXPECT_THAT(out.to_vector<float>(), ElementsAre(20, 20));
  kernels::sum_of(std::vector<NDArray>{out, one, out}, out);
  EXPECT_THAT(out.to_vector<float>(), ElementsAre(41, 41));

  const NDArray m = count({2, 2});
  const NDArray turned = m.permute({1, 0});
  kernels::sum_of(std::vector<NDArray>{m, turned}, m);
  EXPECT_THAT(m.to_vector<float>(), ElementsAre(0, 3, 3, 6));
  const NDArray half = count({3000}, DType::kFloat16);
  const NDArray sum(half.shape(), half.dtype(), device(), engine());
  kernels::sum_of(std::vector<NDArray>(3, half), sum);
  EXPECT_EQ(sum.narrow(0, 2047, 2048).item<float>(), static_cast<float>(float16(2047 * 3)));
}

TEST_P(KernelsTest, ReductionsAreExactWhereTheyCanBe) {
  const NDArray sum({}, DType::kFloat32, device(), engine());
  const NDArray x = count({1000, 3});
  kernels::reduce_sum(x, sum);
  EXPECT_EQ(sum.item<float>(), 2999 * 1500);
  kernels::reduce_sum(x.permute({1, 0}).narrow(0, 1, 2), sum);
  EXPECT_EQ(sum.item<float>(), 999 * 1500 + 1000);
  const NDArray integers = NDArray::full({50000}, 100, DType::kInt8, device(), engine());
  const NDArray total({1}, DType::kInt64, device(), engine());
  kernels::reduce_sum(integers, total);
  EXPECT_EQ(total.item<std::int64_t>(), 5000000);
  const NDArray squares({1, 1}, DType::kFloat64, device(), engine());
  kernels::sum_of_squares(integers, squares);
  EXPECT_EQ(squares.item<double>(), 5e8);

  const NDArray y = random({300000}, 5);
  const std::vector<double> values = y.to_vector<double>();
  kernels::sum_of_squares(y, squares);
  EXPECT_NEAR(squares.item<double>(), std::inner_product(values.begin(), values.end(), values.begin(), 0.0), 1e-7);
  const double first = squares.item<double>();
  kernels::sum_of_squares(y, squares);
  EXPECT_EQ(squares.item<double>(), first);
  EXPECT_THROW(kernels::sum_of_squares(y, sum), InvalidArgument);
  EXPECT_THROW(kernels::reduce_sum(y, y), InvalidArgument);
}

std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, std::int64_t m, std::int64_t n,
                            std::int64_t k) {
  std::vector<double> c(static_cast<std::size_t>(m * n));
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t l = 0; l < k; ++l)
        c[static_cast<std::size_t>(i * n + j)] +=
            a[static_cast<std::size_t>(i * k + l)] * b[static_cast<std::size_t>(l * n + j)];
  return c;
}

void expect_near(const std::vector<double>& values, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], expected[i], tolerance) << i;
}

double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return 1e-12;
    case DType::kFloat32: return 1e-5;
    case DType::kFloat16: return 4e-3;
    default: return 3e-2;
  }
}

TEST_P(KernelsTest, GemmTakesEveryLayout) {
  std::mt19937 sizes(11);
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBfloat16}) {
    for (int i = 0; i < 16; ++i) {
      const auto size = [&] { return static_cast<std::int64_t>(1 + sizes() % (i < 8 ? 4 : 20)); };
      const std::int64_t m = size(), n = size(), k = size();
      const bool ta = i & 1, tb = i & 2;
      SCOPED_TRACE(str(name_of(dtype), " ", m, " ", n, " ", k, " ", ta, tb, " case ", i));
      NDArray a = random(ta ? Shape{k, m} : Shape{m, k}, 100u + static_cast<unsigned>(i), dtype);
      NDArray b = random(tb ? Shape{n, k} : Shape{k, n}, 200u + static_cast<unsigned>(i), dtype);
      const NDArray plain_a = ta ? a.permute({1, 0}) : a;
      const NDArray plain_b = tb ? b.permute({1, 0}) : b;
      NDArray out = random({m, n}, 300u + static_cast<unsigned>(i), dtype);
      if (i & 4) {
        // Stored the other way round, in the middle of something larger.
        const NDArray frame =
            NDArray::zeros({k + 3, m + 2}, dtype, device(), engine()).narrow(0, 1, k + 1).narrow(1, 2, m + 2);
        frame.permute({1, 0}).copy_from(plain_a);
        a = ta ? frame : frame.permute({1, 0});
        const NDArray target = NDArray::zeros({n, m}, dtype, device(), engine()).permute({1, 0});
        target.copy_from(out);
        out = target;
      }
      std::vector<double> expected = product(plain_a.to_vector<double>(), plain_b.to_vector<double>(), m, n, k);
      const std::vector<double> before = out.to_vector<double>();
      for (std::size_t e = 0; e < expected.size(); ++e) expected[e] = 2 * expected[e] - 0.5 * before[e];
      kernels::gemm(a, ta, b, tb, out, 2, -0.5);
      expect_near(out.to_vector<double>(), expected, tolerance_of(dtype) * (1 + static_cast<double>(k) / 4));
    }
  }
}

TEST_P(KernelsTest, GemmTakesBatchesAndOddViews) {
  const NDArray a = random({4, 3, 5}, 1, DType::kFloat64);
  const NDArray b = random({4, 5, 2}, 2, DType::kFloat64);
  const NDArray out = NDArray::full({4, 3, 2}, std::nan(""), DType::kFloat64, device(), engine());
  kernels::gemm(a, false, b, false, out);
  for (std::int64_t i = 0; i < 4; ++i)
    expect_near(out.at(i).to_vector<double>(),
                product(a.at(i).to_vector<double>(), b.at(i).to_vector<double>(), 3, 2, 5), 1e-12);
  // One matrix for the whole batch, without copies of it.
  kernels::gemm(a, false, b.narrow(0, 0, 1).broadcast_to({4, 5, 2}), false, out);
  expect_near(out.at(3).to_vector<double>(), product(a.at(3).to_vector<double>(), b.at(0).to_vector<double>(), 3, 2, 5),
              1e-12);
  // Neither rows nor columns are runs of memory, and the output is one of the inputs.
  const NDArray strange = random({3, 3, 3}, 3, DType::kFloat64).permute({1, 2, 0}).at(1).permute({1, 0});
  const NDArray square = random({3, 3}, 4, DType::kFloat64);
  const std::vector<double> expected = product(strange.to_vector<double>(), square.to_vector<double>(), 3, 3, 3);
  kernels::gemm(strange, false, square, false, square);
  expect_near(square.to_vector<double>(), expected, 1e-12);
}

// Large enough for every way in which a product is computed.
TEST_P(KernelsTest, LargeGemmOfEveryLayout) {
  constexpr std::int64_t kBatch = 3, kRows = 67, kColumns = 45, kInner = 83;
  const auto operand = [&](std::int64_t rows, std::int64_t columns, bool transposed, std::uint64_t seed) {
    return transposed ? random({kBatch, columns, rows}, seed).permute({0, 2, 1})
                      : random({kBatch, rows, columns}, seed);
  };
  for (int layout = 0; layout < 8; ++layout) {
    const NDArray a = operand(kRows, kInner, layout & 1, 1), b = operand(kInner, kColumns, layout & 2, 2);
    for (const double beta : {0.0, 1.0, -0.5}) {
      const NDArray out = operand(kRows, kColumns, layout & 4, 3), exact = out.cast(DType::kFloat64);
      kernels::gemm(a.cast(DType::kFloat64), false, b.cast(DType::kFloat64), false, exact, 1, beta);
      const NDArray one = out.at(1).clone(), before = out.clone(), both = out.clone();
      kernels::gemm(a.at(1), false, b.at(1), false, one, 1, beta);
      kernels::gemm(a, false, b, false, out, 1, beta);
      expect_near(out.to_vector<double>(), exact.to_vector<double>(), 1e-4);
      expect_near(one.to_vector<double>(), exact.at(1).to_vector<double>(), 1e-4);
      kernels::gemm(a, false, b.narrow(0, 1, 2).broadcast_to(b.shape()), false, before, 1, beta);
      expect_near(before.at(1).to_vector<double>(), exact.at(1).to_vector<double>(), 1e-4);
      kernels::gemm(a.narrow(0, 1, 2).broadcast_to(a.shape()), false, b.narrow(0, 1, 2).broadcast_to(b.shape()), false,
                    both, 1, beta);
      expect_near(both.at(1).to_vector<double>(), exact.at(1).to_vector<double>(), 1e-4);
    }
  }
}

TEST_P(KernelsTest, GemmAddsABiasToEachRow) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16})
    for (const std::int64_t inner : {0, 5, 83})  // the last is large enough for oneDNN
      for (const bool transposed : {false, true}) {
        const NDArray a = random({67, inner}, 1, dtype), bias = random({90}, 3, dtype).narrow(0, 0, 45);
        const NDArray b = transposed ? random({45, inner}, 2, dtype) : random({inner, 45}, 2, dtype);
        const NDArray out = random({67, 45}, 4, dtype), exact = random({67, 45}, 4, DType::kFloat64);
        exact.copy_from(bias.cast(DType::kFloat64));
        kernels::gemm(a.cast(DType::kFloat64), false, b.cast(DType::kFloat64), transposed, exact, 1, 1);
        detail::gemm_bias(a, b, transposed, bias, out);
        expect_near(out.to_vector<double>(), exact.to_vector<double>(), tolerance_of(dtype) * 20);
      }
}

// Halves every number, where cuBLASLt would apply gelu: who did it shows.
void halve(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void*) {
  for (std::int64_t i = 0; i < out[0].size(); ++i) out[0].as<float>()[i] = in[0].as<const float>()[i] / 2;
}

TEST_P(KernelsTest, GemmAppliesAnEpilogueInOnePass) {
  if (device().kind == DeviceKind::kCuda && !with_cublas_lt()) GTEST_SKIP() << "no cuBLASLt here";
  const detail::Epilogue epilogue{detail::OnTheWay::kGeluTanh, {"halve", halve, nullptr}};
  for (const std::int64_t inner : {5, 83}) {
    const NDArray a = random({67, inner}, 1), b = random({45, inner}, 2), bias = random({45}, 3);
    const NDArray out({67, 45}, DType::kFloat32, device(), engine()), plain = out.clone();
    detail::gemm_bias(a, b, true, bias, plain);
    detail::gemm_bias(a, b, true, bias, out, epilogue);
    std::vector<double> expected = plain.to_vector<double>();
    for (double& value : expected)
      value *= with_cublas_lt() ? (1 + std::tanh(0.7978845608 * (value + 0.044715 * value * value * value))) / 2 : 0.5;
    expect_near(out.to_vector<double>(), expected, 1e-4);
  }
}

// What is chosen for a product holds for memory that is aligned as well as then.
TEST_P(KernelsTest, GemmAddsABiasWhereverItsOperandsLie) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
    const NDArray a = random({13, 10}, 1, dtype), b = random({13, 10}, 2, dtype), bias = random({20}, 3, dtype);
    const NDArray out({12, 12}, dtype, device(), engine()), exact({12, 12}, DType::kFloat64, device(), engine());
    for (const std::int64_t at : {0, 1})
      for (const std::int64_t bias_at : {0, 1, 8}) {
        const NDArray left = a.narrow(0, at, at + 12), right = b.narrow(0, 1 - at, 13 - at);
        const NDArray added = bias.narrow(0, bias_at, bias_at + 12);
        exact.copy_from(added.cast(DType::kFloat64));
        kernels::gemm(left.cast(DType::kFloat64), false, right.cast(DType::kFloat64), true, exact, 1, 1);
        detail::gemm_bias(left, right, true, added, out);
        expect_near(out.to_vector<double>(), exact.to_vector<double>(), tolerance_of(dtype) * 20);
      }
  }
}

// Rounded to TF32, which products may be (the suite ndarray_with_tf32 runs this with PACELINE_TF32=1), each would be 1.
TEST_P(KernelsTest, SumsOnTheWayAreNotRounded) {
  if (!with_cublas_lt()) GTEST_SKIP() << "no cuBLASLt here";
  for (const std::int64_t columns : {6, 7}) {  // cuBLASLt as emulated has no such product with the odd one
    const NDArray a({64, columns}, DType::kFloat32, device(), engine()), b = random({64, 10}, 2);
    const NDArray out({columns, 10}, DType::kFloat32, device(), engine());
    const NDArray sums({columns}, DType::kFloat32, device(), engine());
    a.fill(1 + 0x1p-12);
    ASSERT_TRUE(detail::gemm_sums(a, b, out, sums));
    EXPECT_THAT(sums.to_vector<float>(), testing::Each(64 + 0x1p-6f));
  }
}

TEST_P(KernelsTest, GemmSumsColumnsOnTheWay) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBfloat16})
    for (const std::int64_t columns : {6, 7}) {  // cuBLASLt as emulated has no product of halves with the odd one
      const NDArray a = random({23, columns}, 1, dtype), b = random({23, 10}, 2, dtype);
      const NDArray out({columns, 10}, dtype, device(), engine()), sums({columns}, dtype, device(), engine());
      const bool done = detail::gemm_sums(a, b, out, sums);
      if (!done && !with_cublas_lt()) GTEST_SKIP() << "no cuBLASLt here";
      ASSERT_TRUE(done);
      const NDArray exact({columns, 10}, DType::kFloat64, device(), engine());
      const NDArray exact_sums({columns, 1}, DType::kFloat64, device(), engine());
      const NDArray wide = a.cast(DType::kFloat64), ones({23, 1}, DType::kFloat64, device(), engine());
      ones.fill(1);
      kernels::gemm(wide, true, b.cast(DType::kFloat64), false, exact);
      kernels::gemm(wide, true, ones, false, exact_sums);
      expect_near(out.to_vector<double>(), exact.to_vector<double>(), tolerance_of(dtype) * 20);
      expect_near(sums.to_vector<double>(), exact_sums.to_vector<double>(), tolerance_of(dtype) * 20);
    }
}

TEST_P(KernelsTest, GemmRefusesWhatDoesNotMultiply) {
  const NDArray a = random({2, 3}, 1);
  const NDArray out = random({2, 2}, 2);
  EXPECT_THROW(kernels::gemm(a, false, a, false, out), InvalidArgument);
  EXPECT_THROW(kernels::gemm(a, false, a, true, random({3, 2}, 1)), InvalidArgument);
  EXPECT_THROW(kernels::gemm(a, false, a.cast(DType::kFloat64), true, out), InvalidArgument);
  EXPECT_THROW(kernels::gemm(a.view({1, 2, 3}), false, a, true, out), InvalidArgument);
  EXPECT_THROW(kernels::gemm(count({2, 3}, DType::kInt32), false, count({3, 2}, DType::kInt32), false,
                             count({2, 2}, DType::kInt32)),
               InvalidArgument);
}

TEST_P(KernelsTest, ScatterAddAddsRepeatedRowsInOrder) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kInt32}) {
    const NDArray table = count({4, 2}, dtype);
    const NDArray rows = array<std::int64_t>({3, 0, 3}, {3});
    scatter_add(table, {rows, count({3, 2}, dtype), {4, 2}});
    EXPECT_THAT(table.to_vector<int>(), ElementsAre(2, 4, 2, 3, 4, 5, 10, 13));
    scatter_add(table.permute({1, 0}), {rows.narrow(0, 1, 2), count({1, 4}, dtype), {2, 4}});
    EXPECT_THAT(table.to_vector<int>(), ElementsAre(2, 4, 3, 3, 6, 5, 13, 13));
  }
  const NDArray order = array<float>({0, 0}, {2, 1});
  scatter_add(order, {array<std::int64_t>({1, 1, 1}, {3}), array<float>({1e8f, 1, -1e8f}, {3, 1}), {2, 1}});
  EXPECT_THAT(order.to_vector<float>(), ElementsAre(0, 0));

  // Wide rows, and many of few numbers.
  for (const auto& [count, height, width] : {std::array{400, 50, 3000}, std::array{2500, 3, 5}}) {
    const NDArray large = NDArray::zeros({height, width}, DType::kFloat32, device(), engine());
    const NDArray values = random({count, width}, 1);
    std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i * i) % height;
    scatter_add(large, {array(rows, {count}), values, {height, width}});
    std::vector<float> expected(static_cast<std::size_t>(height * width));
    const std::vector<float> added = values.to_vector<float>();
    const auto columns = static_cast<std::size_t>(width);
    for (std::size_t i = 0; i < added.size(); ++i)
      expected[static_cast<std::size_t>(rows[i / columns]) * columns + i % columns] += added[i];
    EXPECT_EQ(large.to_vector<float>(), expected);
  }
}

TEST_P(KernelsTest, ScatterAddRefusesWhatDoesNotFit) {
  const NDArray table = count({4, 2});
  const NDArray rows = array<std::int64_t>({3, 4}, {2});
  EXPECT_THROW(scatter_add(table, {rows, count({2, 3}), {4, 2}}), InvalidArgument);
  EXPECT_THROW(scatter_add(table, {rows, count({2, 2}), {5, 2}}), InvalidArgument);
  EXPECT_THROW(scatter_add(table, {rows.cast(DType::kInt32), count({2, 2}), {4, 2}}), InvalidArgument);
  if (!on_host()) return;
  scatter_add(table, {rows, count({2, 2}), {4, 2}});
  EXPECT_THROW(table.wait(), InvalidArgument);
}

// What is destroyed after the library for products, and before the engine hears of the end if nobody sees to it.
struct Later {
  ~Later() { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }
};

// NOLINTBEGIN(concurrency-mt-unsafe): to end a program amid tasks is what is tested
[[noreturn]] void end_amid_products() {
  default_engine();
  static const Later later;
  for (std::int64_t i = 1; i < 3000; ++i) {  // of a new size each, for which something has to be made
    const NDArray a = NDArray::zeros({1 + i % 50, 1 + i / 50}), out({1 + i % 50, 1 + i % 50});
    kernels::gemm(a, false, a, true, out);
    if (i == 100) out.wait();
  }
  alarm(4);  // the engine gives up waiting for a task after five seconds
  std::exit(4);
}
// NOLINTEND(concurrency-mt-unsafe)

TEST(EndOfTheProgram, NoProductIsComputedOnceItsLibraryIsTornDown) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(end_amid_products(), testing::ExitedWithCode(4), "");
}

TEST(CopyTest, ANumberIsReadWhileTheOnlyThreadIsBusy) {
  const auto engine = make_threaded_engine();
  const NDArray x = NDArray::full({1}, 3, DType::kFloat32, {}, *engine), busy = x.clone();
  x.wait();
  std::atomic<bool> read = false, in_vain = false;
  engine->push({"busy"}, {}, std::array{busy.variable()}, [&](TaskContext&) {
    constexpr int kMilliseconds = 10000;
    for (int i = 0; i < kMilliseconds && !read; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    in_vain = !read;
  });
  EXPECT_EQ(x.item<double>(), 3);
  read = true;
  busy.wait();
  EXPECT_FALSE(in_vain);
}

// In place, so that what two threads do twice shows.
TEST(ParallelRanges, ThreadsShareOneLongRow) {
  const TeamScope scope(4);
  const auto engine = make_serial_engine();  // it runs kernels on this thread, with its team
  const NDArray x = NDArray::full({300001}, 1, DType::kFloat32, {}, *engine);
  kernels::scale(2, x);
  EXPECT_EQ(x.to_vector<float>(), std::vector<float>(300001, 2));
}

TEST(ParallelRanges, GivesEachThreadAsMuch) {
  const TeamScope scope(2);
  const std::int64_t team = team_size();  // 1 where OpenMP allows no second thread
  for (const std::int64_t total : {2, 4, 5, 100}) {
    std::int64_t most = 0, sum = 0;
    detail::parallel_ranges(total, 1, [&](std::int64_t begin, std::int64_t end) {
#pragma omp critical
      most = std::max(most, end - begin), sum += end - begin;
    });
    EXPECT_EQ(most, (total + team - 1) / team);
    EXPECT_EQ(sum, total);
  }
}

}  // namespace
}  // namespace paceline::test

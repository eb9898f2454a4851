// CUDA kernels that move several elements at once: sizes that vectors divide or not, arrays that begin anywhere, lines
// longer than the registers hold.
#include <paceline/ops.h>
#include <support/operator_case.h>
#include <support/tolerance.h>

#include <gtest/gtest.h>

#include <functional>

namespace paceline::test {
namespace {

// (rows, width), contiguous, beginning `offset` elements behind an aligned address.
NDArray normal(std::int64_t rows, std::int64_t width, std::int64_t offset, std::uint64_t seed, DType dtype,
               Device device) {
  const NDArray numbers({offset + rows * width});
  kernels::fill_normal(numbers, 0, 2, seed);
  return numbers.cast(dtype).to(device).narrow(0, offset, offset + rows * width).view({rows, width});
}

NDArray call(const char* name, const std::vector<NDArray>& inputs, const std::shared_ptr<const void>& attributes) {
  return invoke(find_operator(name), inputs, attributes)[0];
}

// A number for each row, in the type of statistics.
NDArray row_sums(const NDArray& x) {
  return sum(is_floating(x.dtype()) && size_of(x.dtype()) < 4 ? x.cast(DType::kFloat32) : x, {1}) * 0.1;
}

// Of x, y (rows, width) and a line (1, width).
using Program = std::function<NDArray(const NDArray& x, const NDArray& y, const NDArray& line)>;

const std::vector<std::pair<const char*, Program>> kElementwise{
    {"gelu", [](const NDArray& x, const NDArray&, const NDArray&) { return gelu(x); }},
    {"greater", [](const NDArray& x, const NDArray& y, const NDArray&) { return greater(x, y); }},
    {"add line", [](const NDArray& x, const NDArray&, const NDArray& line) { return x + line; }},
    {"of line", [](const NDArray& x, const NDArray&, const NDArray& line) { return line - x; }},
    {"add column", [](const NDArray& x, const NDArray& y, const NDArray&) { return x + y.narrow(1, 0, 1); }},
    {"where", [](const NDArray& x, const NDArray& y, const NDArray& line) { return where(greater(x, line), x, y); }},
    {"transposed",
     [](const NDArray& x, const NDArray& y, const NDArray&) {
       return x.permute({1, 0}) * y.permute({1, 0});
     }},
    {"cast", [](const NDArray& x, const NDArray&, const NDArray&) { return x.cast(DType::kFloat32); }},
    {"cast to bfloat16", [](const NDArray& x, const NDArray&, const NDArray&) { return x.cast(DType::kBfloat16); }},
    {"cast to int32", [](const NDArray& x, const NDArray&, const NDArray&) { return x.cast(DType::kInt32); }},
    {"copy of a part",
     [](const NDArray& x, const NDArray&, const NDArray&) { return x.narrow(1, x.size(1) / 2, x.size(1)).clone(); }},
    {"dropout", [](const NDArray& x, const NDArray&, const NDArray&) { return dropout(x, 0.3, 7); }},
    {"sum of several", [](const NDArray& x, const NDArray& y, const NDArray&) {
       const NDArray sum(x.shape(), x.dtype(), x.device());
       kernels::sum_of(std::vector<NDArray>{x, y, x}, sum);
       return sum;
     }}};

NDArray labels(const NDArray& x) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(x.size(0)));
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = static_cast<std::int64_t>(i * 5) % x.size(1);
  return NDArray::from(result, {x.size(0)}).to(x.device());
}

const std::vector<std::pair<const char*, Program>> kLines{
    {"softmax", [](const NDArray& x, const NDArray&, const NDArray&) { return softmax(x); }},
    {"softmax of columns", [](const NDArray& x, const NDArray&, const NDArray&) { return softmax(x, 0); }},
    {"softmax backward",
     [](const NDArray& x, const NDArray& y, const NDArray&) {
       return call("softmax_backward", {x, y}, with(SoftmaxAttributes{}));
     }},
    {"log_softmax", [](const NDArray& x, const NDArray&, const NDArray&) { return log_softmax(x); }},
    {"log_softmax backward",
     [](const NDArray& x, const NDArray& y, const NDArray&) {
       return call("log_softmax_backward", {x, log_softmax(y)}, with(SoftmaxAttributes{}));
     }},
    {"layer_norm",
     [](const NDArray& x, const NDArray&, const NDArray& line) {
       return layer_norm(x, line.view({line.size(1)}), line.view({line.size(1)}));
     }},
    {"standardize backward",
     [](const NDArray& x, const NDArray& y, const NDArray& line) {
       return call("standardize_backward", {x, y, row_sums(x), row_sums(y), line.view({line.size(1)})},
                   with(StandardizeAttributes{}));
     }},
    {"standardize parameters backward",
     [](const NDArray& x, const NDArray& y, const NDArray&) {
       const std::vector<NDArray> both = invoke(find_operator("standardize_backward_parameters"),
                                                {x, y, row_sums(x), row_sums(y)}, with(StandardizeAttributes{}));
       return concat(both, 0);
     }},
    {"cross entropy",
     [](const NDArray& x, const NDArray&, const NDArray&) {
       return softmax_cross_entropy(x, labels(x), {.reduction = Reduction::kNone, .label_smoothing = 0.1});
     }},
    {"sum", [](const NDArray& x, const NDArray&, const NDArray&) { return sum(x, {1}); }},
    {"max", [](const NDArray& x, const NDArray&, const NDArray&) { return max(x, {1}); }},
    {"sum of all", [](const NDArray& x, const NDArray&, const NDArray&) { return sum(x); }},
    {"sum of columns", [](const NDArray& x, const NDArray&, const NDArray&) { return sum(x, {0}); }},
    {"batch_norm",
     [](const NDArray& x, const NDArray& y, const NDArray&) {
       return call("batch_norm",
                   {x.view({1, x.size(0), x.size(1)}), row_sums(x), row_sums(y), row_sums(x), row_sums(y)},
                   with(BatchNormAttributes{}));
     }},
    {"batch_norm backward", [](const NDArray& x, const NDArray& y, const NDArray&) {
       const Shape planes{1, x.size(0), x.size(1)};
       return call("batch_norm_backward", {x.view(planes), y.view(planes), row_sums(x), row_sums(y), row_sums(x)},
                   with(BatchNormAttributes{}));
     }}};

void compare(const std::vector<std::pair<const char*, Program>>& programs, std::int64_t rows, std::int64_t width,
             std::int64_t offset, DType dtype) {
  for (const auto& [name, program] : programs) {
    SCOPED_TRACE(str(name, " of ", rows, " x ", width, " from ", offset, ", ", name_of(dtype)));
    const auto run = [&, &program = program](Device device) {
      return program(normal(rows, width, offset, 1, dtype, device), normal(rows, width, offset, 2, dtype, device),
                     normal(1, width, offset, 3, dtype, device))
          .to(Device());
    };
    const NDArray there = run(Device("cuda:0")), here = run(Device());
    EXPECT_EQ(there.shape(), here.shape());
    EXPECT_TRUE(all_near(there.to_vector<double>(), here.to_vector<double>(), 8 * tolerance_of(dtype)));
  }
}

TEST(Lines, CudaEqualsCpuWhereverTheyBegin) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  const auto both = [](std::int64_t width, std::int64_t offset, DType dtype) {
    compare(kElementwise, 2, width, offset, dtype);
    compare(kLines, 2, width, offset, dtype);
  };
  for (const std::int64_t width : {1, 21, 40}) both(width, 0, DType::kFloat32);
  both(40, 1, DType::kFloat32);
  both(40, 0, DType::kBfloat16);
  both(40, 1, DType::kBfloat16);
  both(16, 0, DType::kFloat64);
  both(16, 0, DType::kFloat16);
}

TEST(Lines, CudaEqualsCpuInSeveralWarpsAndBeyondTheirRegisters) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  compare(kLines, 1, 1032, 0, DType::kFloat32);
  compare({kLines.begin(), kLines.begin() + 3}, 1, 16388, 0, DType::kFloat32);
  compare({kLines.begin() + 5, kLines.begin() + 6}, 1, 16385, 0, DType::kFloat32);
}

TEST(Lines, CudaTakesEmptyArrays) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  compare(kElementwise, 0, 8, 0, DType::kFloat32);
  for (const auto& [name, program] : kLines) {
    const NDArray x = NDArray::zeros({0, 8}, DType::kFloat32, Device("cuda:0"));
    if (std::string_view(name) == "max") continue;  // is refused
    EXPECT_NO_THROW(program(x, x, normal(1, 8, 0, 1, DType::kFloat32, x.device())).wait()) << name;
  }
}

}  // namespace
}  // namespace paceline::test

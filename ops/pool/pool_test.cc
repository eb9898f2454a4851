#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace paceline::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Range {
  std::int64_t begin, end;  // may lie in the padding
};

// The windows along one axis, by trying them all.
std::vector<Range> windows(std::int64_t size, const PoolAttributes& how, int i) {
  std::vector<Range> result;
  if (how.result.ndim() > 0) {
    for (std::int64_t k = 0, n = how.result[i]; k < n; ++k)
      result.push_back({k * size / n, (k + 1) * size / n + ((k + 1) * size % n != 0)});
    return result;
  }
  const std::int64_t stride = how.stride.ndim() > 0 ? how.stride[i] : how.kernel[i];
  const std::int64_t padding = how.padding.ndim() > 0 ? how.padding[i] : 0;
  for (std::int64_t begin = -padding; begin < size; begin += stride)
    if (how.ceil_mode ? result.empty() || result.back().end < size + padding : begin + how.kernel[i] <= size + padding)
      result.push_back({begin, std::min(begin + how.kernel[i], size + padding)});
  return result;
}

// The definition for three spatial axes; x with fewer gets some of one place.
CaseArray direct(const CaseArray& x, const PoolAttributes& how, bool average) {
  const int axes = x.shape.ndim() - 2, missing = 3 - axes;
  std::vector<std::vector<Range>> all(static_cast<std::size_t>(missing), {{0, 1}});
  std::int64_t sizes[3] = {1, 1, 1};
  CaseArray y{{x.shape[0], x.shape[1]}, {}};
  for (int i = 0; i < axes; ++i) {
    sizes[missing + i] = x.shape[2 + i];
    all.push_back(windows(x.shape[2 + i], how, i));
    y.shape.push_back(static_cast<std::int64_t>(all.back().size()));
  }
  for (std::int64_t plane = 0; plane < x.shape[0] * x.shape[1]; ++plane)
    for (const Range& z : all[0])
      for (const Range& r : all[1])
        for (const Range& c : all[2]) {
          std::vector<double> inside;
          for (std::int64_t i = std::max<std::int64_t>(0, z.begin); i < std::min(z.end, sizes[0]); ++i)
            for (std::int64_t j = std::max<std::int64_t>(0, r.begin); j < std::min(r.end, sizes[1]); ++j)
              for (std::int64_t k = std::max<std::int64_t>(0, c.begin); k < std::min(c.end, sizes[2]); ++k)
                inside.push_back(
                    x.values[static_cast<std::size_t>(((plane * sizes[0] + i) * sizes[1] + j) * sizes[2] + k)]);
          double total = 0;
          for (const double value : inside) total += value;
          const auto count = how.count_include_pad
                                 ? static_cast<double>((z.end - z.begin) * (r.end - r.begin) * (c.end - c.begin))
                                 : static_cast<double>(inside.size());
          y.values.push_back(average ? total / count : *std::max_element(inside.begin(), inside.end()));
        }
  return y;
}

OperatorCase pool(const std::string& name, const Shape& shape, const PoolAttributes& attributes, bool average) {
  const CaseArray x = sample(shape, 7);
  return {.name = name, .inputs = {x}, .attributes = with(attributes), .expected = {direct(x, attributes, average)}};
}

std::vector<OperatorCase> cases(bool average) {
  const PoolAttributes pairs{.kernel = {2, 2}};
  return {
      pool("2x2", {2, 3, 4, 6}, pairs, average),
      pool("2x2, odd sizes", {2, 2, 5, 7}, pairs, average),
      pool("2x2, odd sizes, rounded up", {1, 2, 5, 7}, {.kernel = {2, 2}, .ceil_mode = true}, average),
      pool("overlapping", {1, 2, 7, 6}, {.kernel = {3, 2}, .stride = {2, 1}}, average),
      pool("padded", {1, 2, 5, 5}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 2}}, average),
      pool("padding left out", {1, 2, 5, 5},
           {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .count_include_pad = false}, average),
      pool("rounded up, padded", {1, 1, 6, 5},
           {.kernel = {3, 2}, .stride = {2, 2}, .padding = {1, 1}, .ceil_mode = true}, average),
      pool("none begins in the padding", {1, 1, 5}, {.kernel = {3}, .stride = {3}, .padding = {1}, .ceil_mode = true},
           average),
      pool("one axis", {2, 3, 8}, {.kernel = {3}, .stride = {2}}, average),
      pool("three axes", {1, 2, 4, 5, 4}, {.kernel = {2, 3, 2}, .stride = {2, 1, 1}, .padding = {0, 1, 0}}, average),
      pool("equal parts", {1, 2, 7, 5}, {.result = {3, 4}}, average),
      pool("more parts than places", {1, 2, 3}, {.result = {5}}, average),
      pool("equal parts of three axes", {1, 2, 3, 4, 5}, {.result = {2, 3, 1}}, average),
      pool("global", {2, 3, 4, 5}, {.result = {1, 1}}, average),
      pool("one element", {1, 1, 1, 1}, {.kernel = {1, 1}}, average),
      {.name = "NaN",
       .inputs = {array({1, 1, 2, 4}, {1, kNaN, 5, 2, 3, 4, 0, 1})},
       .attributes = with(pairs),
       .expected = {array({1, 1, 1, 2}, {kNaN, average ? 2.0 : 5.0})},
       .gradient = false},
      {.name = "no examples",
       .inputs = {array({0, 2, 4, 4}, {})},
       .attributes = with(pairs),
       .expected = {array({0, 2, 2, 2}, {})},
       .gradient = false}};
}

const std::vector<RejectedCall> kRejected{
    {"x has 2 dimensions, expected 3 to 5", {sample({1, 4}, 1)}, with(PoolAttributes{.kernel = {2}})},
    {"kernel (3, 3) is larger than the padded x", {sample({1, 1, 2, 4}, 1)}, with(PoolAttributes{.kernel = {3, 3}})},
    {"must be at least 0 and less than the kernel",
     {sample({1, 1, 4, 4}, 1)},
     with(PoolAttributes{.kernel = {2, 2}, .padding = {2, 0}})},
    {"must be positive", {sample({1, 1, 4, 4}, 1)}, with(PoolAttributes{.kernel = {0, 2}})},
    {"one number for each spatial axis", {sample({1, 1, 4, 4}, 1)}, with(PoolAttributes{.kernel = {2}})},
    {"result (0,) must be positive", {sample({1, 1, 4}, 1)}, with(PoolAttributes{.result = {0}})},
    {"at least one element", {sample({1, 1, 0}, 1)}, with(PoolAttributes{.kernel = {2}, .padding = {1}})},
    {"expected a floating type", {typed(DType::kInt32, {1, 1, 2}, {1, 2})}, with(PoolAttributes{.kernel = {2}})}};

const RegisterCases kMax("max_pool", cases(false), kRejected);
const RegisterCases kAverage("average_pool", cases(true), kRejected);
const RegisterCases kBackward("average_pool_backward", {}, {{"x has 0 dimensions", {sample({1, 1, 2}, 1)}}});

TEST(AveragePool, LargeWindowsKeepTheirDigits) {
  // Added one by one in float32, a tenth is wrong by 1e-3.
  EXPECT_NEAR(global_average_pool(NDArray::full({1, 1, 1000, 1000}, 0.1)).item<float>(), 0.1, 1e-6);
}

}  // namespace
}  // namespace paceline::test

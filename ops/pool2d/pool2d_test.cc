#include <paceline/ops.h>
#include <support/operator_case.h>

#include <algorithm>
#include <limits>

namespace paceline::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The definition over an explicitly padded plane.
CaseArray direct(const CaseArray& x, Pool2dAttributes p, bool average) {
  const std::int64_t height = x.shape[2], width = x.shape[3];
  if (p.global) p = {.kernel = {height, width}};
  for (std::size_t i = 0; i < 2; ++i)
    if (p.stride[i] == 0) p.stride[i] = p.kernel[i];
  const std::int64_t rows = (height + 2 * p.padding[0] - p.kernel[0]) / p.stride[0] + 1;
  const std::int64_t columns = (width + 2 * p.padding[1] - p.kernel[1]) / p.stride[1] + 1;
  CaseArray y{{x.shape[0], x.shape[1], rows, columns}, {}};
  for (std::int64_t plane = 0; plane < x.shape[0] * x.shape[1]; ++plane)
    for (std::int64_t oy = 0; oy < rows; ++oy)
      for (std::int64_t ox = 0; ox < columns; ++ox) {
        std::vector<double> inside;
        for (std::int64_t ky = 0; ky < p.kernel[0]; ++ky)
          for (std::int64_t kx = 0; kx < p.kernel[1]; ++kx) {
            const std::int64_t iy = oy * p.stride[0] + ky - p.padding[0], ix = ox * p.stride[1] + kx - p.padding[1];
            if (iy >= 0 && iy < height && ix >= 0 && ix < width)
              inside.push_back(x.values[static_cast<std::size_t>((plane * height + iy) * width + ix)]);
          }
        double total = 0;
        for (const double value : inside) total += value;
        const auto count =
            p.count_include_pad ? static_cast<double>(p.kernel[0] * p.kernel[1]) : static_cast<double>(inside.size());
        y.values.push_back(average ? total / count : *std::max_element(inside.begin(), inside.end()));
      }
  return y;
}

OperatorCase pool(const std::string& name, const Shape& shape, const Pool2dAttributes& attributes, bool average) {
  const CaseArray x = sample(shape, 7);
  return {.name = name, .inputs = {x}, .attributes = with(attributes), .expected = {direct(x, attributes, average)}};
}

std::vector<OperatorCase> cases(bool average) {
  return {pool("2x2", {2, 3, 4, 6}, {}, average),
          pool("2x2, odd sizes", {2, 2, 5, 7}, {}, average),
          pool("overlapping", {1, 2, 7, 6}, {.kernel = {3, 2}, .stride = {2, 1}}, average),
          pool("padded", {1, 2, 5, 5}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 2}}, average),
          pool("padding left out", {1, 2, 5, 5},
               {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .count_include_pad = false}, average),
          pool("global", {2, 3, 4, 5}, {.global = true}, average),
          pool("one element", {1, 1, 1, 1}, {.kernel = {1, 1}}, average),
          {.name = "NaN",
           .inputs = {array({1, 1, 2, 4}, {1, kNaN, 5, 2, 3, 4, 0, 1})},
           .attributes = with(Pool2dAttributes{}),
           .expected = {array({1, 1, 1, 2}, {kNaN, average ? 2.0 : 5.0})},
           .gradient = false},
          {.name = "no examples",
           .inputs = {array({0, 2, 4, 4}, {})},
           .attributes = with(Pool2dAttributes{}),
           .expected = {array({0, 2, 2, 2}, {})},
           .gradient = false}};
}

const std::vector<RejectedCall> kRejected{
    {"x has 3 dimensions, expected 4", {sample({1, 4, 4}, 1)}},
    {"kernel (3, 3) is larger than the padded x", {sample({1, 1, 2, 4}, 1)}, with(Pool2dAttributes{.kernel = {3, 3}})},
    {"must be at least 0 and less than the kernel",
     {sample({1, 1, 4, 4}, 1)},
     with(Pool2dAttributes{.padding = {2, 0}})},
    {"must be positive", {sample({1, 1, 4, 4}, 1)}, with(Pool2dAttributes{.kernel = {0, 2}})},
    {"expected a floating type", {typed(DType::kInt32, {1, 1, 2, 2}, {1, 2, 3, 4})}}};

const RegisterCases kMax("max_pool2d", cases(false), kRejected);
const RegisterCases kAverage("average_pool2d", cases(true), kRejected);

}  // namespace
}  // namespace paceline::test

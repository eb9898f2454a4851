#include <paceline/ops.h>
#include <support/operator_case.h>

#include <cmath>
#include <limits>

namespace paceline::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

CaseArray direct(const CaseArray& x, int axis, bool logarithm) {
  if (axis < 0) axis += x.shape.ndim();
  std::int64_t inner = 1;
  for (int i = axis + 1; i < x.shape.ndim(); ++i) inner *= x.shape[i];
  CaseArray y = x;
  for (std::int64_t i = 0; i < x.shape.size(); ++i) {
    const std::int64_t first = i / (inner * x.shape[axis]) * inner * x.shape[axis] + i % inner;
    double total = 0;
    for (std::int64_t k = 0; k < x.shape[axis]; ++k)
      total += std::exp(x.values[static_cast<std::size_t>(first + k * inner)]);
    double& value = y.values[static_cast<std::size_t>(i)];
    value = logarithm ? value - std::log(total) : std::exp(value) / total;
  }
  return y;
}

std::vector<OperatorCase> cases(bool logarithm) {
  std::vector<OperatorCase> result;
  const auto add = [&](const std::string& name, const Shape& shape, int axis) {
    const CaseArray x = sample(shape, 3);
    result.push_back({.name = name,
                      .inputs = {x},
                      .attributes = with(SoftmaxAttributes{axis}),
                      .expected = {direct(x, axis, logarithm)},
                      .gradient = shape.size() > 0,
                      .tolerance = 4});
  };
  add("rows", {4, 10}, -1);
  add("columns", {4, 5}, 0);
  add("middle", {2, 33, 3}, 1);
  add("one class", {3, 1}, 1);
  add("many rows", {900, 17}, 1);
  add("no rows", {0, 3}, 1);
  const double far = logarithm ? -1000 : 0;
  result.push_back({.name = "large numbers and NaN",
                    .inputs = {array({3, 2}, {1000, 0, -1000, -2000, kNaN, 1})},
                    .expected = {array({3, 2}, {logarithm ? 0.0 : 1.0, far, logarithm ? 0.0 : 1.0, far, kNaN, kNaN})},
                    .gradient = false});
  return result;
}

const std::vector<RejectedCall> kRejected{{"axis 2", {sample({2, 3}, 1)}, with(SoftmaxAttributes{2})},
                                          {"x is int32", {typed(DType::kInt32, {1}, {1})}}};

const RegisterCases kSoftmax("softmax", cases(false), kRejected);
const RegisterCases kLogSoftmax("log_softmax", cases(true), kRejected);
const RegisterCases kFar("log_softmax", {{.name = "far from 0",
                                          .inputs = {array({2, 2}, {16384, 16384, -16384, -16384})},
                                          .expected = {array({2, 2}, std::vector<double>(4, -std::log(2)))},
                                          .gradient = false}});

}  // namespace
}  // namespace paceline::test

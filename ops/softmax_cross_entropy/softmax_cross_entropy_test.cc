#include <paceline/ops.h>
#include <support/operator_case.h>

#include <cmath>
#include <limits>

namespace paceline::test {
namespace {

CaseArray direct(const CaseArray& scores, const CaseArray& labels, Reduction reduction) {
  const std::int64_t rows = scores.shape[0], classes = scores.shape[1];
  CaseArray losses{{rows}, {}};
  double sum = 0;
  for (std::int64_t n = 0; n < rows; ++n) {
    double total = 0;
    for (std::int64_t c = 0; c < classes; ++c)
      total += std::exp(scores.values[static_cast<std::size_t>(n * classes + c)]);
    const auto label = static_cast<std::int64_t>(labels.values[static_cast<std::size_t>(n)]);
    losses.values.push_back(std::log(total) - scores.values[static_cast<std::size_t>(n * classes + label)]);
    sum += losses.values.back();
  }
  if (reduction == Reduction::kNone) return losses;
  return array({}, {reduction == Reduction::kMean ? sum / static_cast<double>(rows) : sum});
}

OperatorCase loss(const std::string& name, std::int64_t classes, const CaseArray& labels, Reduction reduction) {
  const CaseArray scores = sample({labels.shape[0], classes}, 5);
  return {.name = name,
          .inputs = {scores, labels},
          .attributes = with(SoftmaxCrossEntropyAttributes{reduction}),
          .expected = {direct(scores, labels, reduction)},
          .tolerance = 4};
}

CaseArray many_labels() {
  CaseArray labels = typed(DType::kInt32, {700}, {});
  for (int i = 0; i < 700; ++i) labels.values.push_back(i * 7 % 10);
  return labels;
}

const CaseArray kLabels = typed(DType::kInt32, {3}, {2, 0, 1});

const RegisterCases kCrossEntropy(
    "softmax_cross_entropy",
    {loss("mean", 4, kLabels, Reduction::kMean),
     loss("sum", 3, kLabels, Reduction::kSum),
     loss("per row", 5, kLabels, Reduction::kNone),
     loss("int64", 3, typed(DType::kInt64, {2}, {2, 2}), Reduction::kMean),
     loss("float labels", 3, typed(DType::kFloat32, {2}, {1, 0}), Reduction::kMean),
     loss("one class", 1, typed(DType::kUint8, {2}, {0, 0}), Reduction::kMean),
     loss("many rows", 10, many_labels(), Reduction::kMean),
     {.name = "smoothed, one ignored",
      .inputs = {array({3, 2}, {0, 0, 5, 1, 0, 0}), typed(DType::kInt32, {3}, {0, -1, 1})},
      .attributes = with(SoftmaxCrossEntropyAttributes{Reduction::kMean, 0.1, -1}),
      .expected = {array({}, {std::log(2)})}},
     {.name = "smoothed rows",
      .inputs = {array({1, 2}, {2, 0}), typed(DType::kInt32, {1}, {0})},
      .attributes = with(SoftmaxCrossEntropyAttributes{Reduction::kNone, 0.5}),
      .expected = {array({1}, {std::log1p(std::exp(-2)) + 0.5})}},
     {.name = "large scores",
      .inputs = {array({2, 2}, {1000, 0, 0, 1000}), typed(DType::kInt32, {2}, {0, 0})},
      .attributes = with(SoftmaxCrossEntropyAttributes{Reduction::kNone}),
      .expected = {array({2}, {0, 1000})},
      .gradient = false},
     {.name = "no rows",
      .inputs = {array({0, 3}, {}), typed(DType::kInt32, {0}, {})},
      .attributes = with(SoftmaxCrossEntropyAttributes{Reduction::kSum}),
      .expected = {array({}, {0})},
      .gradient = false}},
    {{"label 3 at position 1 is outside [0, 3)", {sample({2, 3}, 1), typed(DType::kInt32, {2}, {0, 3})}},
     {"label -1 at position 0", {sample({2, 3}, 1), typed(DType::kInt32, {2}, {-1, 0})}},
     {"label nan at position 1 is outside",
      {sample({2, 3}, 1), typed(DType::kFloat32, {2}, {0, std::numeric_limits<double>::quiet_NaN()})}},
     {"label 1.7 at position 0 is outside [0, 3): it is no whole number",
      {sample({2, 3}, 1), typed(DType::kFloat32, {2}, {1.7, 0})}},
     {"scores has 1 dimensions, expected 2", {sample({3}, 1), kLabels}},
     {"labels has shape (3,), expected (2,)", {sample({2, 3}, 1), kLabels}},
     {"labels is bool", {sample({1, 3}, 1), typed(DType::kBool, {1}, {1})}}});

}  // namespace
}  // namespace paceline::test

#include <paceline/ops.h>
#include <support/operator_case.h>

#include <cmath>

namespace paceline::test {
namespace {

CaseArray statistic(CaseArray x) {
  x.wide = true;
  return x;
}

// The definition, with the new running statistics behind the result.
std::vector<CaseArray> direct(const std::vector<CaseArray>& inputs, const BatchNormAttributes& attributes) {
  const CaseArray& x = inputs[0];
  const std::int64_t channels = x.shape[1];
  std::int64_t plane = 1;
  for (int i = 2; i < x.shape.ndim(); ++i) plane *= x.shape[i];
  std::vector<CaseArray> result{x, inputs[3], inputs[4]};
  for (std::int64_t c = 0; c < channels; ++c) {
    const auto channel = static_cast<std::size_t>(c);
    std::vector<std::size_t> members;
    for (std::size_t i = 0; i < x.values.size(); ++i)
      if (static_cast<std::int64_t>(i) / plane % channels == c) members.push_back(i);
    double mean = inputs[3].values[channel], variance = inputs[4].values[channel];
    if (attributes.training) {
      mean = variance = 0;
      const auto count = static_cast<double>(members.size());
      for (const std::size_t i : members) mean += x.values[i] / count;
      for (const std::size_t i : members) variance += (x.values[i] - mean) * (x.values[i] - mean) / count;
      const auto blend = [&](double& running, double now) {
        running = attributes.momentum * running + (1 - attributes.momentum) * now;
      };
      blend(result[1].values[channel], mean);
      blend(result[2].values[channel], variance);
    }
    for (const std::size_t i : members)
      result[0].values[i] =
          (x.values[i] - mean) / std::sqrt(variance + attributes.epsilon) * inputs[1].values[channel] +
          inputs[2].values[channel];
  }
  return result;
}

OperatorCase norm(const std::string& name, const Shape& shape, const BatchNormAttributes& attributes) {
  const Shape channels{shape[1]};
  const std::vector<CaseArray> inputs{sample(shape, 1), statistic(sample(channels, 2, 0.5, 1.5)),
                                      statistic(sample(channels, 3)), statistic(sample(channels, 4)),
                                      statistic(sample(channels, 5, 0.5, 2))};
  return {.name = name,
          .inputs = inputs,
          .attributes = with(attributes),
          .expected = direct(inputs, attributes),
          .tolerance = 4};
}

const CaseArray kTwo = statistic(array({2}, {1, 1}));

const RegisterCases kBatchNorm("batch_norm",
                               {norm("training", {4, 3, 5, 6}, {}),
                                norm("inference", {4, 3, 5, 6}, {.training = false}), norm("vectors", {3, 5, 4, 8}, {}),
                                norm("vectors, inference", {3, 5, 4, 8}, {.training = false}),
                                norm("matrix", {7, 5}, {.momentum = 0.5, .epsilon = 1e-3}),
                                norm("one channel", {3, 1, 40}, {}), norm("parts of a channel", {2, 1, 2048}, {})},
                               {{"x has 1 dimensions, expected at least 2", {sample({2}, 1), kTwo, kTwo, kTwo, kTwo}},
                                {"gamma is", {sample({3, 2}, 1), statistic(array({3}, {1, 1, 1})), kTwo, kTwo, kTwo}},
                                {"running_mean is none", {sample({3, 2}, 1), kTwo, kTwo, no_array(), kTwo}}});

}  // namespace
}  // namespace paceline::test

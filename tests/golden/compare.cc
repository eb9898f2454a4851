#include "golden/compare.h"

#include <paceline/autograd.h>
#include <paceline/ops.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace paceline::test {

std::map<std::string, std::map<std::string, CaseArrays>> load_cases(const std::string& path) {
  std::map<std::string, std::map<std::string, CaseArrays>> cases;
  for (const auto& [name, value] : load_safetensors(path)) {
    const auto last = name.rfind('/'), middle = name.rfind('/', last - 1);
    cases[name.substr(0, middle)][name.substr(middle + 1, last - middle - 1)][name.substr(last + 1)] = value;
  }
  return cases;
}

namespace {

std::vector<NDArray> numbered(const CaseArrays& arrays, const std::string& prefix) {
  std::vector<NDArray> result;
  for (auto found = arrays.find(prefix + "0"); found != arrays.end();
       found = arrays.find(prefix + std::to_string(result.size())))
    result.push_back(found->second);
  return result;
}

NDArray weights_like(const NDArray& y) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < y.size(); ++i) values.push_back(0.5 + static_cast<double>(7 * i % 11) / 11);
  return NDArray::from(values, y.shape()).cast(y.dtype()).to(y.device());
}

// Within `tolerance` of the expected number, or of a fiftieth of the largest finite one where it is small. PyTorch's
// own rounding of zeros (2e-16) is let pass.
void expect_close(const NDArray& actual, const NDArray& expected, double tolerance, double noise) {
  ASSERT_EQ(actual.shape(), expected.shape());
  const std::vector<double> ours = actual.to_vector<double>(), theirs = expected.to_vector<double>();
  double largest = 5e-4;
  for (const double value : theirs)
    if (std::isfinite(value)) largest = std::fmax(largest, std::fabs(value));
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if ((std::isnan(ours[i]) && std::isnan(theirs[i])) || ours[i] == theirs[i]) continue;
    const double allowed = tolerance * std::fmax(std::fabs(theirs[i]), largest / 50) + noise * std::fmax(1, largest);
    ASSERT_TRUE(std::isfinite(theirs[i]) && std::fabs(ours[i] - theirs[i]) <= allowed)
        << "at " << i << ": " << ours[i] << ", PyTorch gives " << theirs[i];
  }
}

// A device adds up in another order.
double tolerance_of(DType dtype, Device device) {
  return (dtype == DType::kFloat64 ? 1e-10 : 1e-5) * (device.is_cpu() ? 1 : 4);
}

// PyTorch gives zeros for the gradients of these; here they have no gradient rule.
const std::set<std::string> kSteps{"floor", "ceil", "round", "sign"};

}  // namespace

void compare(const std::string& name, const GoldenCall& call, const CaseArrays& arrays, DType dtype, const View& view,
             Device device, double noise) {
  std::vector<NDArray> inputs, gradients;
  for (const NDArray& x : numbered(arrays, "x")) {
    const NDArray typed = (is_floating(x.dtype()) ? x.cast(dtype) : x).to(device);
    inputs.push_back(view ? view(typed) : typed);
    gradients.push_back(NDArray::zeros(x.shape(), inputs.back().dtype(), device));
  }
  const std::vector<NDArray> expected = numbered(arrays, "y");
  // Of integers alone the type is what PyTorch says.
  const bool cast = std::ranges::any_of(inputs, [](const NDArray& x) { return is_floating(x.dtype()); });
  const auto type_of = [&](const NDArray& y) { return cast && is_floating(y.dtype()) ? dtype : y.dtype(); };
  const double unit = dtype == DType::kFloat64 ? 0x1p-52 : 0x1p-23;
  Tape tape;
  bool wanted = false;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (is_floating(inputs[i].dtype())) tape.watch(inputs[i], gradients[i]);
  const std::vector<NDArray> outputs = call(inputs);
  ASSERT_EQ(outputs.size(), expected.size());
  NDArray loss;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(name_of(outputs[i].dtype()), name_of(type_of(expected[i])));
    expect_close(outputs[i], expected[i], tolerance_of(outputs[i].dtype(), device), noise * unit);
    if (!is_floating(outputs[i].dtype())) continue;
    const NDArray part = sum(outputs[i] * weights_like(outputs[i]));
    loss = loss.is_none() ? part : loss + part;
  }
  for (const auto& [array, gradient] : arrays) wanted |= array.starts_with("dx");
  if (!wanted) return;
  double beside = 0;
  if (kSteps.contains(name)) {
    // Alone they give zeros. Beside a term that has a gradient they add zeros to it.
    Tape alone;
    alone.watch(inputs.at(0), gradients.at(0));
    alone.backward(sum(call(inputs).at(0)));
    EXPECT_THAT(gradients.at(0).to_vector<double>(), testing::Each(0));
    beside = 3;
    loss = loss + sum(inputs[0] * beside);
  }
  tape.backward(loss);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto found = arrays.find("dx" + std::to_string(i));
    if (found == arrays.end()) continue;
    SCOPED_TRACE(found->first);
    expect_close(gradients[i], found->second + beside, tolerance_of(dtype, device), noise * unit);
  }
}

}  // namespace paceline::test

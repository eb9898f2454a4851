// Values and gradients of the operators against PyTorch's, from the fixtures of generate.py: in float64 and float32,
// the inputs row-major and as other views, on the CPU and on a CUDA device.
#include "golden/calls.h"

#include <paceline/autograd.h>
#include <paceline/ops.h>
#include <support/paths.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <set>

namespace paceline::test {
namespace {

// Of one case: x0, y0, dx0, ...
using CaseArrays = std::map<std::string, NDArray>;

struct Fixture {
  std::map<std::string, std::map<std::string, CaseArrays>> functions;  // by function, by case

  explicit Fixture(const std::string& family) {
    for (const auto& [name, value] : load_safetensors(source_dir() + "/tests/golden/" + family + ".safetensors")) {
      const auto last = name.rfind('/'), middle = name.rfind('/', last - 1);
      functions[name.substr(0, middle)][name.substr(middle + 1, last - middle - 1)][name.substr(last + 1)] = value;
    }
  }
};

std::vector<NDArray> numbered(const CaseArrays& arrays, const std::string& prefix) {
  std::vector<NDArray> result;
  for (auto found = arrays.find(prefix + "0"); found != arrays.end();
       found = arrays.find(prefix + std::to_string(result.size())))
    result.push_back(found->second);
  return result;
}

// The same values in memory with the axes the other way round, or, of a vector, with gaps.
NDArray other_view(const NDArray& x) {
  if (x.size() == 0 || x.ndim() == 0) return x;
  if (x.ndim() == 1) {
    const NDArray twice = NDArray::full({x.size(), 2}, 1, x.dtype(), x.device());
    const NDArray column = twice.permute({1, 0}).at(1);
    column.copy_from(x);
    return column;
  }
  std::vector<int> reversed;
  for (int i = x.ndim() - 1; i >= 0; --i) reversed.push_back(i);
  return x.permute(reversed).clone().permute(reversed);
}

NDArray weights_like(const NDArray& y) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < y.size(); ++i) values.push_back(0.5 + static_cast<double>(7 * i % 11) / 11);
  return NDArray::from(values, y.shape()).cast(y.dtype()).to(y.device());
}

// Within `tolerance` of the expected number, or of a fiftieth of the largest finite one where it is small. PyTorch's
// own rounding of zeros (2e-16) is let pass.
void expect_close(const NDArray& actual, const NDArray& expected, double tolerance) {
  ASSERT_EQ(actual.shape(), expected.shape());
  const std::vector<double> ours = actual.to_vector<double>(), theirs = expected.to_vector<double>();
  double largest = 5e-4;
  for (const double value : theirs)
    if (std::isfinite(value)) largest = std::fmax(largest, std::fabs(value));
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if ((std::isnan(ours[i]) && std::isnan(theirs[i])) || ours[i] == theirs[i]) continue;
    const double allowed = tolerance * std::fmax(std::fabs(theirs[i]), largest / 50);
    EXPECT_TRUE(std::isfinite(theirs[i]) && std::fabs(ours[i] - theirs[i]) <= allowed)
        << "at " << i << ": " << ours[i] << ", PyTorch gives " << theirs[i];
  }
}

// PyTorch gives zeros for the gradients of these; here they have no gradient rule.
const std::set<std::string> kSteps{"floor", "ceil", "round", "sign"};

void compare(const std::string& name, const GoldenCall& call, const CaseArrays& arrays, DType dtype, bool views,
             Device device) {
  // A device adds up in another order.
  const double tolerance = (dtype == DType::kFloat64 ? 1e-10 : 1e-5) * (device.is_cpu() ? 1 : 4);
  std::vector<NDArray> inputs, gradients;
  for (const NDArray& x : numbered(arrays, "x")) {
    const NDArray typed = (is_floating(x.dtype()) ? x.cast(dtype) : x).to(device);
    inputs.push_back(views ? other_view(typed) : typed);
    gradients.push_back(NDArray::zeros(x.shape(), inputs.back().dtype(), device));
  }
  Tape tape;
  bool wanted = false;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (is_floating(inputs[i].dtype())) tape.watch(inputs[i], gradients[i]);
  const std::vector<NDArray> outputs = call(inputs), expected = numbered(arrays, "y");
  ASSERT_EQ(outputs.size(), expected.size());
  NDArray loss;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(outputs[i].dtype(), is_floating(expected[i].dtype()) ? dtype : expected[i].dtype());
    expect_close(outputs[i], expected[i], tolerance);
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
    expect_close(gradients[i], found->second + beside, tolerance);
  }
}

class Golden : public ::testing::TestWithParam<std::tuple<std::string, const char*>> {};

TEST_P(Golden, AgreesWithPyTorch) {
  const auto& [family, place] = GetParam();
  const Device device(place);
  if (!device.is_cpu() && device_count(device.kind) == 0) GTEST_SKIP() << "no CUDA device here";
  const Fixture fixture(family);
  const std::map<std::string, GoldenCall>& calls = golden_calls().at(family);
  EXPECT_FALSE(calls.empty());
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(fixture.functions.contains(name)) << "has no fixture: run generate.py";
  }
  for (const auto& [name, cases] : fixture.functions) {
    SCOPED_TRACE(name);
    const auto call = calls.find(name);
    ASSERT_NE(call, calls.end()) << "has a fixture, but no call";
    for (const auto& [title, arrays] : cases)
      for (const DType dtype : {DType::kFloat64, DType::kFloat32})
        for (const bool views : {false, true}) {
          SCOPED_TRACE(title + " in " + name_of(dtype) + (views ? ", other views" : ""));
          compare(name, call->second, arrays, dtype, views, device);
        }
  }
}

std::vector<std::string> families() {
  std::vector<std::string> result;
  for (const auto& [family, calls] : golden_calls()) result.push_back(family);
  return result;
}

INSTANTIATE_TEST_SUITE_P(Families, Golden,
                         ::testing::Combine(::testing::ValuesIn(families()), ::testing::Values("cpu", "cuda")),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

TEST(GoldenFixtures, AreAllRead) {
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/tests/golden")) {
    if (entry.path().extension() != ".safetensors") continue;
    EXPECT_TRUE(golden_calls().contains(entry.path().stem().string())) << entry.path();
  }
}

}  // namespace
}  // namespace paceline::test

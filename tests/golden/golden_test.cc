// Values and gradients of the operators against PyTorch's, from the fixtures of generate.py: in float64 and float32,
// the inputs row-major and as other views, on the CPU and on a CUDA device.
#include "golden/calls.h"
#include "golden/compare.h"

#include <support/paths.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

namespace paceline::test {
namespace {

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

class Golden : public ::testing::TestWithParam<std::tuple<std::string, const char*>> {};

TEST_P(Golden, AgreesWithPyTorch) {
  const auto& [family, place] = GetParam();
  const Device device(place);
  if (!device.is_cpu() && device_count(device.kind) == 0) GTEST_SKIP() << "no CUDA device here";
  const auto fixture = load_cases(source_dir() + "/tests/golden/" + family + ".safetensors");
  const std::map<std::string, GoldenCall>& calls = golden_calls().at(family);
  EXPECT_FALSE(calls.empty());
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(fixture.contains(name)) << "has no fixture: run generate.py";
  }
  for (const auto& [name, cases] : fixture) {
    SCOPED_TRACE(name);
    const auto call = calls.find(name);
    ASSERT_NE(call, calls.end()) << "has a fixture, but no call";
    for (const auto& [title, arrays] : cases)
      for (const DType dtype : {DType::kFloat64, DType::kFloat32})
        for (const bool views : {false, true}) {
          SCOPED_TRACE(title + " in " + name_of(dtype) + (views ? ", other views" : ""));
          compare(name, call->second, arrays, dtype, views ? other_view : View(), device);
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

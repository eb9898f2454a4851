// Sample calls of operators. Each operator's own test file registers some; the conformance suite runs all its checks on
// them. An operator of the catalogue without cases fails the suite.
#pragma once

#include <paceline/op.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace paceline::test {

struct CaseArray {
  Shape shape;
  std::vector<double> values;
  std::optional<DType> dtype = std::nullopt;  // else the floating type under test
  bool wide = false;                          // float32 when the type under test is float16 or bfloat16
  bool none = false;

  DType type_for(DType tested) const {
    if (dtype) return *dtype;
    return wide && tested != DType::kFloat64 ? DType::kFloat32 : tested;
  }
};

struct OperatorCase {
  std::string name;
  std::vector<CaseArray> inputs;
  std::shared_ptr<const void> attributes = nullptr;
  std::vector<CaseArray> expected = {};  // visible outputs; none: only the other checks are made
  bool gradient = true;                  // false where finite differences say nothing: kinks, steps, not finite
  double tolerance = 1;                  // factor on the suite's tolerances
};

// A call that must throw InvalidArgument with `message` in its text.
struct RejectedCall {
  std::string message;
  std::vector<CaseArray> inputs;
  std::shared_ptr<const void> attributes = nullptr;
};

struct OperatorCases {
  std::vector<OperatorCase> cases;
  std::vector<RejectedCall> rejected;
};

inline std::map<std::string, OperatorCases>& operator_cases() {
  static std::map<std::string, OperatorCases> all;
  return all;
}

// At namespace scope of a test file: const RegisterCases kSquare("square", {...}, {...});
struct RegisterCases {
  RegisterCases(const std::string& op, std::vector<OperatorCase> cases, std::vector<RejectedCall> rejected = {}) {
    OperatorCases& known = operator_cases()[op];
    for (OperatorCase& one : cases) known.cases.push_back(std::move(one));
    for (RejectedCall& one : rejected) known.rejected.push_back(std::move(one));
  }
};

template <class Attributes>
std::shared_ptr<const void> with(Attributes attributes) {
  return std::make_shared<Attributes>(std::move(attributes));
}

inline CaseArray array(const Shape& shape, std::vector<double> values) { return {shape, std::move(values)}; }
inline CaseArray typed(DType dtype, const Shape& shape, std::vector<double> values) {
  return {shape, std::move(values), dtype};
}
inline CaseArray no_array() { return {{}, {}, std::nullopt, false, true}; }

// The same numbers on every machine, in [low, high), no two close to each other by more than chance.
inline CaseArray sample(const Shape& shape, std::uint64_t seed, double low = -2, double high = 2) {
  CaseArray result{shape, {}};
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::int64_t i = 0; i < shape.size(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    result.values.push_back(low + (high - low) * static_cast<double>(state >> 11) * 0x1p-53);
  }
  return result;
}

// f of each value.
template <class F>
CaseArray mapped(CaseArray x, const F& f) {
  for (double& value : x.values) value = f(value);
  return x;
}

// The array in the type under test.
inline NDArray to_array(const CaseArray& x, DType tested, Device device, Engine& engine) {
  if (x.none) return NDArray();
  const DType dtype = x.type_for(tested);
  const NDArray host = NDArray::from(x.values, x.shape, Device(), engine);
  return (dtype == DType::kFloat64 ? host : host.cast(dtype)).to(device);
}

}  // namespace paceline::test

// Gradients through every method of NDArray that makes or overwrites values, and through every operator that is
// composed of them, against finite differences.
#include <gtest/gtest.h>
#include <paceline/autograd.h>
#include <paceline/ops.h>
#include <support/numeric_gradient.h>
#include <support/paths.h>
#include <support/tolerance.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string_view>

namespace paceline::test {
namespace {

using Function = std::function<NDArray(const NDArray&)>;

const Shape kShape{3, 4};

// What makes or overwrites values, as functions of an array of kShape.
const std::map<std::string, std::vector<Function>>& methods() {
  static const std::map<std::string, std::vector<Function>> cases{
      {"view", {[](const NDArray& x) {
         return x.contiguous().view({2, 6});
       }}},
      {"narrow",
       {[](const NDArray& x) { return x.narrow(1, 1, 3); }, [](const NDArray& x) { return x.narrow(0, 0, 3); },
        [](const NDArray& x) { return x.narrow(1, 0, 4, 2) * x.narrow(1, 1, 4, 2) + x.narrow(0, 0, 3, 3).at(0).at(1); },
        [](const NDArray& x) { return x.narrow(1, 0, 2) * x.narrow(1, 1, 3) + x.narrow(1, 2, 4); }}},
      {"at", {[](const NDArray& x) { return x.at(1) * x.at(2) + x.at(1).at(0); }}},
      {"permute", {[](const NDArray& x) {
         return x.permute({1, 0}).narrow(0, 1, 2).permute({1, 0});
       }}},
      {"broadcast_to", {[](const NDArray& x) {
         return x.at(0).broadcast_to({5, 4}) * x.narrow(1, 0, 1).at(2);
       }}},
      {"clone", {[](const NDArray& x) { return square(x.clone()); }}},
      {"to", {[](const NDArray& x) { return x.to(Device("sim:0")).narrow(0, 1, 3).to(Device()); }}},
      {"cast", {[](const NDArray& x) { return square(x.cast(DType::kFloat64).at(0)); }}},
      {"contiguous", {[](const NDArray& x) {
         return square(x.permute({1, 0}).contiguous());
       }}},
      {"copy_from",
       {[](const NDArray& x) {
          const NDArray y({4, 4}, DType::kFloat64, x.device(), x.engine());
          y.narrow(0, 0, 3).copy_from(x);
          y.at(3).copy_from(x.at(0) * x.at(1));
          return square(y);
        },
        [](const NDArray& x) {
          const NDArray y = square(x);
          y.narrow(1, 1, 3).copy_from(y.narrow(1, 0, 2));  // of overlapping elements
          y.copy_from(y.at(0));                            // all of them, of one row
          return y * x;
        }}},
      {"fill",
       {[](const NDArray& x) {
          const NDArray y = x * x;
          y.narrow(1, 1, 3).fill(2);
          y.narrow(1, 0, 4, 3).narrow(0, 0, 3, 2).fill(1);
          y.at(0).fill(3);
          return y * x;
        },
        [](const NDArray& x) {
          const NDArray y = x * x;
          y.fill(2);
          return y * x;
        }}},
  };
  return cases;
}

// Methods that make no value from others, or that do not give arrays.
const std::set<std::string> kOthers{
    "NDArray", "full",      "from",  "wrap",  "zeros",   "is_none",       "shape",      "strides",
    "size",    "ndim",      "dtype", "bytes", "device",  "engine",        "variable",   "describe",
    "wait",    "to_vector", "item",  "data",  "data_as", "is_contiguous", "const_data", "shares_memory_with"};

// The names of the public methods, from the header itself: a declaration is indented by two spaces, and its name stands
// before the first parenthesis.
std::set<std::string> public_methods() {
  std::ifstream header(source_dir() + "/ndarray/include/paceline/ndarray.h");
  std::set<std::string> names;
  bool inside = false;
  for (std::string line; std::getline(header, line);) {
    if (line.starts_with("class NDArray {")) inside = true;
    if (inside && line == " private:") break;
    if (!inside || !line.starts_with("  ") || line.starts_with("   ")) continue;
    const std::string_view text = std::string_view(line).substr(2);
    if (std::ranges::any_of(std::array{"//", "using", "template", "friend", "return", "if"},
                            [&](const char* word) { return text.starts_with(word); }))
      continue;
    const std::string_view before = text.substr(0, text.find('('));
    if (before.size() == text.size()) continue;
    const auto end = std::ranges::find_if_not(before.rbegin(), before.rend(),
                                              [](unsigned char c) { return std::isalnum(c) || c == '_'; });
    if (end != before.rbegin()) names.emplace(end.base(), before.end());
  }
  return names;
}

NDArray weights_of(const Shape& shape, Device device, Engine& engine) {
  std::vector<double> weights;
  for (std::int64_t i = 0; i < shape.size(); ++i) weights.push_back(0.5 + 0.125 * static_cast<double>(i % 7));
  return NDArray::from(weights, shape, device, engine);
}

std::vector<double> some_numbers(const Shape& shape) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < shape.size(); ++i) values.push_back(0.3 + 0.17 * static_cast<double>(i * 5 % 12));
  return values;
}

// At x itself, at what is computed from x, and at views of both that were made before and after recording began.
void expect_finite_differences(const Function& f) {
  const std::vector<double> at = some_numbers(kShape);
  std::vector<std::size_t> positions(at.size());
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<std::pair<const char*, std::function<NDArray(const NDArray& x, const NDArray& view)>>> arguments{
      {"the watched array", [](const NDArray& x, const NDArray&) { return x; }},
      {"a computed array", [](const NDArray& x, const NDArray&) { return sin(x); }},
      {"a view from before",
       [](const NDArray&, const NDArray& view) {
         return view.permute({1, 0});
       }},
      {"a view of a view", [](const NDArray& x, const NDArray&) {
         return concat({x, x}, 0).narrow(0, 2, 5);
       }}};
  for (const auto& [name, argument] : arguments) {
    SCOPED_TRACE(name);
    const auto with = [&, argument = argument](const std::vector<double>& values, NDArray* gradient) {
      const NDArray x = NDArray::from(values, kShape), view = x.permute({1, 0});
      std::optional<Tape> tape;
      if (gradient) {
        *gradient = NDArray::full(kShape, 7, DType::kFloat64);
        tape.emplace();
        tape->watch(x, *gradient);
      }
      const NDArray y = f(argument(x, view));
      if (gradient) tape->backward(y, weights_of(y.shape(), y.device(), y.engine()));
      return y;
    };
    NDArray gradient;
    const NDArray y = with(at, &gradient);
    const std::vector<double> weights = weights_of(y.shape(), {}, y.engine()).to_vector<double>();
    const auto outputs = [&](const std::vector<double>& values) { return with(values, nullptr).to_vector<double>(); };
    EXPECT_TRUE(all_near(gradient.to_vector<double>(), numeric_gradient(outputs, at, weights, positions), 1e-7, 1e-3));
  }
}

TEST(Gradients, EveryMethodOfNDArrayIsExamined) {
  const std::set<std::string> names = public_methods();
  EXPECT_GT(names.size(), 30u);
  for (const std::string& name : names)
    EXPECT_NE(methods().contains(name), kOthers.contains(name)) << name << " needs a case, or a place among the others";
  for (const auto& [name, functions] : methods()) EXPECT_TRUE(names.contains(name)) << name;
}

TEST(Gradients, MethodsAgreeWithFiniteDifferences) {
  for (const auto& [name, functions] : methods()) {
    SCOPED_TRACE(name);
    for (const Function& f : functions) expect_finite_differences(f);
  }
}

TEST(Gradients, ComposedOperatorsAgreeWithFiniteDifferences) {
  const auto call = [](const char* name, auto attributes) {
    return [=](const NDArray& x) { return invoke(find_operator(name), {x}, attributes); };
  };
  const std::map<std::string, Function> cases{
      {"broadcast_to", call("broadcast_to", BroadcastToAttributes{{2, 3, 4}})},
      {"cast", call("cast", CastAttributes{DType::kFloat64})},
      {"channels_last",
       [](const NDArray& x) {
         return channels_last(x.contiguous().view({1, 3, 2, 2}));
       }},
      {"copy", [](const NDArray& x) { return square(copy(x)); }},
      {"reshape", call("reshape", ReshapeAttributes{{4, -1}})},
      {"slice", call("slice", SliceAttributes{1, 1, 3})},
      {"split",
       [](const NDArray& x) {
         const std::vector<NDArray> parts = split(x, {1, 2, 1}, 1);  // nothing is computed from the last one
         return parts[0] * parts[1];
       }},
      {"transpose", [](const NDArray& x) { return square(transpose(x)); }}};
  for (const OpDef* op : all_operators()) {
    if (!op->has_gradient() || op->gradient_rule()) continue;
    SCOPED_TRACE(op->name());
    ASSERT_TRUE(cases.contains(op->name())) << "has no case";
    expect_finite_differences(cases.at(op->name()));
  }
}

TEST(Gradients, OperatorsInPlaceAgreeWithFiniteDifferences) {
  const std::vector<Function> cases{[](const NDArray& x) {
                                      const NDArray y = square(x);
                                      y.narrow(1, 0, 2) *= x.narrow(1, 2, 4);  // keeps what it overwrites
                                      y.at(1) += y.at(0);
                                      tanh_(y.permute({1, 0}).at(3));
                                      return y;
                                    },
                                    [](const NDArray& x) {
                                      const NDArray y = sin(x), z = y + 1.0;
                                      y *= y;
                                      return y * z;
                                    },
                                    [](const NDArray& x) {
                                      NDArray sum =
                                          NDArray::zeros({4}, DType::kFloat64);  // a constant, until something is added
                                      for (std::int64_t i = 0; i < 3; ++i) sum += x.at(i) * x.at(i);
                                      return sum;
                                    },
                                    [](const NDArray& x) {
                                      const NDArray y = x * 2.1;
                                      floor_(y.at(0));  // steps: zeros
                                      return y * x;
                                    }};
  for (const Function& f : cases) expect_finite_differences(f);
}

// As recurrent networks written by hand do. Each write costs its own row, and the log of writes has room for them.
TEST(Gradients, ManyRowsAreWrittenIntoOneArray) {
  expect_finite_differences([](const NDArray& x) {
    const NDArray states({500, 4}, DType::kFloat64);
    states.at(0).copy_from(x.at(0));
    for (std::int64_t i = 1; i < 500; ++i) states.at(i).copy_from(tanh(states.at(i - 1) * 0.5 + x.at(i % 3)));
    return states.narrow(0, 490, 500);
  });
  expect_finite_differences([](const NDArray& x) {
    const NDArray states = concat(std::vector(100, x.narrow(0, 0, 2)), 0);
    for (std::int64_t i = 1; i < 200; ++i) states.at(i) += tanh(states.at(i - 1) * 0.5);
    return states;
  });
}

TEST(HalfGradients, OfManyElementsStayInRange) {
  const NDArray x = NDArray::zeros({70000}, DType::kFloat16), gradient = NDArray::zeros({70000}, DType::kFloat16);
  Tape tape;
  tape.watch(x, gradient);
  const NDArray largest = max(x);
  tape.backward(largest);
  EXPECT_NEAR(sum(gradient.cast(DType::kFloat32)).item<float>(), 1, 0.03);

  const NDArray scores = NDArray::zeros({70000, 2}, DType::kFloat16), labels = NDArray::zeros({70000}, DType::kInt32);
  const NDArray weighted = softmax_cross_entropy(scores, labels, {}, NDArray::full({2}, 1, DType::kFloat16));
  EXPECT_NEAR(weighted.item<float>(), std::log(2.0), 1e-3);
}

}  // namespace
}  // namespace paceline::test

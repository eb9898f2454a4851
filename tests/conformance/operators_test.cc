// Every operator of the catalogue, on the cases of its own test file: known values, gradients against finite
// differences, engines, devices, element types, strides and refused calls.
#include <paceline/cores.h>
#include <paceline/detail/device_runtime.h>
#include <paceline/ops/binary.h>
#include <paceline/ops/index.h>
#include <support/every_call.h>
#include <support/numeric_gradient.h>
#include <support/operator_case.h>
#include <support/tolerance.h>

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <thread>

namespace paceline::test {
namespace {

struct Result {
  std::vector<Shape> shapes;
  std::vector<DType> dtypes;
  std::vector<std::vector<double>> values;
};

void append(Result& result, const NDArray& array) {
  result.shapes.push_back(array.shape());
  result.dtypes.push_back(array.dtype());
  result.values.push_back(array.to_vector<double>());
}

struct Place {
  DType dtype = DType::kFloat64;
  Device device = {};
  Engine* engine = nullptr;
};

// The same values with other strides: axes in reverse order in memory, or every second element.
NDArray restrided(const NDArray& x) {
  if (x.is_none() || x.ndim() == 0 || x.size() == 0) return x;
  std::vector<int> reversed;
  for (int i = x.ndim() - 1; i >= 0; --i) reversed.push_back(i);
  if (x.ndim() > 1) return x.permute(reversed).clone().permute(reversed);
  const NDArray twice({x.size(), 2}, x.dtype(), x.device(), x.engine());
  twice.fill(1);
  const NDArray strided = twice.permute({1, 0}).at(1);
  strided.copy_from(x);
  return strided;
}

std::vector<NDArray> arrays_of(const OpDef& op, const std::vector<CaseArray>& inputs, const Place& place,
                               bool strided = false) {
  std::vector<NDArray> result;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    NDArray x = to_array(inputs[i], place.dtype, place.device, *place.engine);
    const bool mutated = !op.is_variadic() && i < op.inputs().size() && op.inputs()[i].mutated;
    result.push_back(strided && !mutated ? restrided(x) : x);
  }
  return result;
}

// A fixed weight for each element of an output, which makes a scalar of it.
std::vector<double> loss_weights(std::int64_t size, std::size_t output) {
  return sample({size}, 90 + output, 0.5, 1.5).values;
}

// Visible outputs, then what was written into mutated inputs.
Result run(const OpDef& op, const OperatorCase& one, const Place& place, bool strided = false) {
  std::vector<NDArray> inputs = arrays_of(op, one.inputs, place, strided);
  Result result;
  for (const NDArray& output : invoke(op, inputs, one.attributes)) append(result, output);
  for (std::size_t i = 0; i < inputs.size() && !op.is_variadic(); ++i)
    if (op.inputs()[i].mutated) append(result, inputs[i]);
  return result;
}

NDArray densify(const RowSparse& sparse) {
  const std::vector<std::int64_t> rows = sparse.rows.to_vector<std::int64_t>();
  const std::vector<double> values = sparse.values.to_vector<double>();
  std::vector<double> table(static_cast<std::size_t>(sparse.shape.size()), 0);
  const std::size_t width = rows.empty() ? 0 : values.size() / rows.size();
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t j = 0; j < width; ++j)
      table[static_cast<std::size_t>(rows[i]) * width + j] += values[i * width + j];
  return NDArray::from(table, sparse.shape);
}

// The gradients of the weighted sum of the outputs; an empty entry where there is none.
Result gradients(const OpDef& op, const OperatorCase& one, const Place& place, std::vector<bool> wants = {}) {
  EveryCall recorder;
  std::vector<NDArray> outputs;
  {
    RecordingScope recording(&recorder);
    outputs = invoke(op, arrays_of(op, one.inputs, place), one.attributes);
  }
  if (recorder.calls.empty()) throw std::logic_error("the call was not recorded");
  OpCall* const call = &recorder.calls.back();
  call->wants = std::move(wants);
  std::vector<NDArray> upstream;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    upstream.push_back(to_array(array(outputs[i].shape(), loss_weights(outputs[i].size(), i)), outputs[i].dtype(),
                                place.device, *place.engine));
  Result result;
  for (const Gradient& gradient : op.gradient_rule()(*call, upstream)) {
    if (gradient.is_sparse())
      append(result, densify(gradient.sparse));
    else
      append(result, gradient.is_none() ? NDArray({0}) : gradient.dense);
  }
  return result;
}

void expect_same(const Result& actual, const Result& expected, double tolerance) {
  ASSERT_EQ(actual.values.size(), expected.values.size());
  for (std::size_t i = 0; i < actual.values.size(); ++i) {
    SCOPED_TRACE("array " + std::to_string(i));
    EXPECT_EQ(actual.shapes[i], expected.shapes[i]);
    EXPECT_TRUE(all_near(actual.values[i], expected.values[i], tolerance));
  }
}

// Operators that are composed of others have none: ../nn/gradients_test.cc differentiates through them.
bool has_rule(const OpDef& op) { return static_cast<bool>(op.gradient_rule()); }

bool is_backward(const std::string& name) { return name.find("_backward") != std::string::npos; }

std::string forward_of(const std::string& name) { return name.substr(0, name.find("_backward")); }

// A call that is refused at once says so of all that it was given; what a kernel finds in the values comes later.
void expect_refusal(const OpDef& op, const std::vector<NDArray>& inputs, const RejectedCall& one) {
  SCOPED_TRACE(one.message);
  bool launched = false;
  try {
    const std::vector<NDArray> outputs = invoke(op, inputs, one.attributes);
    launched = true;
    for (const NDArray& output : outputs) output.to(Device()).wait();
    ADD_FAILURE() << "was not refused";
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(one.message), std::string::npos) << text;
    EXPECT_NE(text.find("[" + op.name() + "]"), std::string::npos) << text;
    EXPECT_EQ(text.find("[["), std::string::npos) << text;
    for (const NDArray& input : inputs)
      EXPECT_TRUE(launched || text.find(input.describe()) != std::string::npos)
          << text << " lacks " << input.describe();
  }
}

void expect_refusals(const OpDef& op, Device device = {}) {
  const std::unique_ptr<Engine> serial = make_serial_engine();
  for (RejectedCall one : operator_cases()[op.name()].rejected) {
    if (const std::size_t at = one.message.find("on cpu"); at != std::string::npos)
      one.message.replace(at, 6, "on " + device.name());
    expect_refusal(op, arrays_of(op, one.inputs, {.device = device, .engine = serial.get()}), one);
  }
  const std::size_t right = op.inputs().size();
  const NDArray odd = NDArray::zeros({7, 5}, DType::kInt8, device, *serial);
  if (!op.is_variadic())
    expect_refusal(op, std::vector(right + 1, odd), {.message = "expected " + std::to_string(right), .inputs = {}});
}

class Operators : public ::testing::TestWithParam<const OpDef*> {
 protected:
  void SetUp() override {
    set_team_size(core_budget());
    serial_ = make_serial_engine();
  }

  const OpDef& op() const { return *GetParam(); }
  const OperatorCases& known() const { return operator_cases()[op().name()]; }
  Place serial(DType dtype = DType::kFloat64) { return {dtype, Device(), serial_.get()}; }
  bool differentiates(const OperatorCase& one) const { return has_rule(op()) && one.gradient; }

  // Runs the cases with floating inputs in `dtype`, forward and backward, against the serial engine on the CPU.
  void compare_with_serial(const std::function<Place(DType)>& place, DType dtype, double tolerance) {
    for (const OperatorCase& one : known().cases) {
      SCOPED_TRACE(one.name);
      const double near = tolerance * one.tolerance;
      expect_same(run(op(), one, place(dtype)), run(op(), one, serial(dtype)), near);
      if (differentiates(one))
        expect_same(gradients(op(), one, place(dtype)), gradients(op(), one, serial(dtype)), near);
    }
  }

 public:
  void has_cases();
  void gives_known_values();
  void gradient_equals_finite_differences();
  void threaded_equals_serial_bit_for_bit();
  void simulated_device_equals_cpu();
  void small_types_follow_float64();
  void takes_any_strides();
  void works_in_place();
  std::unique_ptr<Engine> serial_;
};

void Operators::has_cases() {
  ASSERT_FALSE(known().cases.empty()) << op().name() << " has no case in ops/" << op().name() << "/" << op().name()
                                      << "_test.cc";
  bool values = false, differentiated = !has_rule(op());
  for (const OperatorCase& one : known().cases) {
    values |= !one.expected.empty();
    differentiated |= one.gradient;
  }
  EXPECT_TRUE(values) << op().name() << " has no case with known values";
  EXPECT_TRUE(differentiated) << op().name() << " has no case that checks its gradient";
}

void Operators::gives_known_values() {
  for (const OperatorCase& one : known().cases) {
    SCOPED_TRACE(one.name);
    const Result actual = run(op(), one, serial());
    if (one.expected.empty()) continue;
    ASSERT_EQ(actual.values.size(), one.expected.size());
    for (std::size_t i = 0; i < one.expected.size(); ++i) {
      EXPECT_EQ(actual.shapes[i], one.expected[i].shape);
      EXPECT_EQ(actual.dtypes[i], one.expected[i].type_for(DType::kFloat64)) << name_of(actual.dtypes[i]);
      EXPECT_TRUE(all_near(actual.values[i], one.expected[i].values, 1e-12 * one.tolerance, 1e-3));
    }
  }
}

// Step 1e-5 in float64: about 1e-10 from the difference formula and 1e-11 from rounding.
void Operators::gradient_equals_finite_differences() {
  if (!has_rule(op())) return;
  constexpr std::size_t kPositions = 24;
  for (const OperatorCase& one : known().cases) {
    if (!one.gradient) continue;
    SCOPED_TRACE(one.name);
    const Result analytic = gradients(op(), one, serial());
    ASSERT_EQ(analytic.values.size(), one.inputs.size());
    for (std::size_t input = 0; input < one.inputs.size(); ++input) {
      SCOPED_TRACE("input " + std::to_string(input));
      const CaseArray& x = one.inputs[input];
      if (x.none || x.dtype || (!op().is_variadic() && op().inputs()[input].mutated)) continue;
      ASSERT_EQ(analytic.values[input].size(), x.values.size()) << "no gradient";
      EXPECT_EQ(analytic.shapes[input], x.shape);
      std::vector<std::size_t> positions;
      const std::size_t stride = std::max<std::size_t>(1, x.values.size() / kPositions);
      for (std::size_t i = 0; i < x.values.size(); i += stride) positions.push_back(i);
      std::vector<double> weights;
      const auto outputs_at = [&](const std::vector<double>& values) {
        OperatorCase moved = one;
        moved.inputs[input].values = values;
        const std::vector<NDArray> outputs = invoke(op(), arrays_of(op(), moved.inputs, serial()), moved.attributes);
        std::vector<double> all;
        weights.clear();
        for (std::size_t i = 0; i < outputs.size(); ++i) {
          const std::vector<double> y = outputs[i].to_vector<double>();
          const std::vector<double> w = loss_weights(outputs[i].size(), i);
          all.insert(all.end(), y.begin(), y.end());
          weights.insert(weights.end(), w.begin(), w.end());
        }
        return all;
      };
      outputs_at(x.values);
      std::vector<double> chosen;
      for (const std::size_t i : positions) chosen.push_back(analytic.values[input][i]);
      EXPECT_TRUE(
          all_near(chosen, numeric_gradient(outputs_at, x.values, weights, positions), 1e-8 * one.tolerance, 1));

      std::vector<bool> only(one.inputs.size(), false);
      only[input] = true;
      const Result alone = gradients(op(), one, serial(), only);
      EXPECT_EQ(alone.values[input], analytic.values[input]) << "differs when it is the only one wanted";
    }
  }
}

void Operators::threaded_equals_serial_bit_for_bit() {
  const std::unique_ptr<Engine> threaded = make_threaded_engine();
  compare_with_serial([&](DType dtype) { return Place{dtype, Device(), threaded.get()}; }, DType::kFloat32, 0);
}

void Operators::simulated_device_equals_cpu() {
  // oneDNN's sums depend on the team; a stream of the simulated device has the one of every new thread.
  int team = 0;
  std::thread([&] { team = team_size(); }).join();
  set_team_size(team);
  const std::unique_ptr<Engine> threaded = make_threaded_engine();
  compare_with_serial([&](DType dtype) { return Place{dtype, Device("sim:0"), threaded.get()}; }, DType::kFloat32, 0);
}

void Operators::small_types_follow_float64() {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
    SCOPED_TRACE(name_of(dtype));
    for (const OperatorCase& one : known().cases) {
      SCOPED_TRACE(one.name);
      // The oracle starts from the rounded inputs.
      OperatorCase rounded = one;
      for (std::size_t i = 0; i < one.inputs.size(); ++i)
        if (!one.inputs[i].none)
          rounded.inputs[i].values = to_array(one.inputs[i], dtype, Device(), *serial_).to_vector<double>();
      const double tolerance = tolerance_of(dtype) * one.tolerance;
      const Result actual = run(op(), one, serial(dtype));
      expect_same(actual, run(op(), rounded, serial()), tolerance);
      if (differentiates(one))
        expect_same(gradients(op(), one, serial(dtype)), gradients(op(), rounded, serial()), 4 * tolerance);
    }
  }
}

void Operators::takes_any_strides() {
  for (const OperatorCase& one : known().cases) {
    SCOPED_TRACE(one.name);
    expect_same(run(op(), one, serial(), true), run(op(), one, serial()), 1e-13);
  }
}

void Operators::works_in_place() {
  if (!op().works_in_place()) return;
  for (const OperatorCase& one : known().cases) {
    SCOPED_TRACE(one.name);
    const Result expected = run(op(), one, serial());
    for (const bool strided : {false, true}) {
      const std::vector<NDArray> inputs = arrays_of(op(), one.inputs, serial(), strided);
      if (inputs[0].shape() != expected.shapes[0] || inputs[0].dtype() != expected.dtypes[0]) {
        EXPECT_THROW(invoke_in_place(op(), inputs, one.attributes), InvalidArgument);
        continue;
      }
      Result actual;
      EXPECT_TRUE(invoke_in_place(op(), inputs, one.attributes).shares_memory_with(inputs[0]));
      append(actual, inputs[0]);
      expect_same(actual, expected, 1e-13);
    }
  }
}

TEST_P(Operators, Conforms) {
  const auto check = [this](const char* what, void (Operators::*body)()) {
    SCOPED_TRACE(what);
    (this->*body)();
  };
  check("has cases", &Operators::has_cases);
  check("gives known values", &Operators::gives_known_values);
  check("gradient equals finite differences", &Operators::gradient_equals_finite_differences);
  check("threaded equals serial bit for bit", &Operators::threaded_equals_serial_bit_for_bit);
  check("simulated device equals cpu", &Operators::simulated_device_equals_cpu);
  check("small types follow float64", &Operators::small_types_follow_float64);
  check("takes any strides", &Operators::takes_any_strides);
  check("works in place", &Operators::works_in_place);
  expect_refusals(op());
}

TEST_P(Operators, CudaEqualsCpu) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  if (!op().has_kernel(DeviceKind::kCuda)) GTEST_SKIP() << op().name() << " has no CUDA kernel in this build";
  const std::unique_ptr<Engine> threaded = make_threaded_engine();
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBfloat16})
    compare_with_serial(
        [&](DType type) {
          return Place{type, Device("cuda:0"), threaded.get()};
        },
        dtype, 4 * tolerance_of(dtype));
  expect_refusals(op(), Device("cuda:0"));
}

// A backward operator is covered by the gradient of its forward operator, which every check runs, except for refusals.
std::vector<const OpDef*> forward_operators() {
  std::vector<const OpDef*> result;
  for (const OpDef* op : all_operators())
    if (!is_backward(op->name())) result.push_back(op);
  return result;
}

INSTANTIATE_TEST_SUITE_P(Catalogue, Operators, ::testing::ValuesIn(forward_operators()),
                         [](const ::testing::TestParamInfo<const OpDef*>& info) { return info.param->name(); });

TEST(OperatorCatalogue, BackwardOperatorsBelongToDifferentiableOnesAndRefuseWrongCalls) {
  for (const OpDef* op : all_operators()) {
    if (!is_backward(op->name())) continue;
    EXPECT_TRUE(find_operator(forward_of(op->name())).has_gradient()) << op->name();
    SCOPED_TRACE(op->name());
    EXPECT_TRUE(operator_cases()[op->name()].cases.empty()) << "these cases would not be run";
    expect_refusals(*op);
  }
}

TEST(OperatorCatalogue, EveryOperatorHasACudaKernel) {
  if (!find_operator("relu").has_kernel(DeviceKind::kCuda)) GTEST_SKIP() << "built without CUDA";
  for (const OpDef* op : all_operators()) EXPECT_TRUE(op->has_kernel(DeviceKind::kCuda)) << op->name();
}

TEST(OperatorCatalogue, CudaReportsAPositionOutsideOnce) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  const std::unique_ptr<Engine> threaded = make_threaded_engine();
  const Place place{DType::kFloat32, Device("cuda:0"), threaded.get()};
  const auto taken = [&](double position) {
    const NDArray x = to_array(array({3}, {1, 2, 3}), DType::kFloat32, place.device, *place.engine);
    return take(x, to_array(typed(DType::kInt32, {1}, {position}), DType::kInt32, place.device, *place.engine));
  };
  for (int i = 0; i < 20; ++i) {
    const NDArray wrong = taken(3) * 2;
    try {
      wrong.to_vector<float>();
      ADD_FAILURE() << "was not refused";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("[take] position 3 (number 0) is outside [-3, 3)"), std::string::npos)
          << error.what();
    }
    EXPECT_EQ((taken(2) * 2).to_vector<float>(), std::vector<float>{6});
  }
}

TEST(OperatorCatalogue, CasesBelongToOperators) {
  for (const auto& [name, cases] : operator_cases()) EXPECT_NO_THROW(find_operator(name)) << name;
}

}  // namespace
}  // namespace paceline::test

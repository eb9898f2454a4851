#include "random_program.h"

#include <algorithm>
#include <functional>
#include <sstream>

namespace paceline::test {
namespace {

// Rows and columns of the first matrix.
std::pair<std::int64_t, std::int64_t> size_of_program(unsigned seed) {
  return seed % 40 == 7 ? std::pair<std::int64_t, std::int64_t>{90, 100} : std::pair<std::int64_t, std::int64_t>{3, 4};
}

class Generator {
 public:
  Generator(unsigned seed, std::vector<NDArray> arrays)
      : random_(seed), arrays_(std::move(arrays)), most_(5 * arrays_[0].size()) {
    for (const NDArray& array : arrays_) bases_.push_back(array);
  }

  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  // The latest arrays more often than others.
  int any() {
    const int count = static_cast<int>(arrays_.size());
    return pick(2) ? count - 1 - pick(std::min(count, 3)) : pick(count);
  }
  const NDArray& array(int number) const { return arrays_[static_cast<std::size_t>(number)]; }

  // Some array, from a random one on, that `fits`; -1 where none does.
  template <class Fits>
  int find(const Fits& fits) {
    const int count = static_cast<int>(arrays_.size()), first = any();
    for (int i = 0; i < count; ++i)
      if (fits(array((first + i) % count))) return (first + i) % count;
    return -1;
  }
  bool may_be_written(const NDArray& x) const {
    for (int i = 0; i < x.ndim(); ++i)
      if (x.strides()[i] == 0 && x.size(i) > 1) return false;
    return std::ranges::none_of(bases_, [&](const NDArray& base) { return base.shares_memory_with(x); });
  }
  void add(NDArray array) { arrays_.push_back(std::move(array)); }
  std::int64_t most() const { return most_; }  // elements of one array

 private:
  std::mt19937 random_;
  std::vector<NDArray> arrays_, bases_;
  std::int64_t most_;
};

bool broadcasts(const Shape& from, const Shape& to) {
  if (from.ndim() > to.ndim()) return false;
  for (int i = 1; i <= from.ndim(); ++i)
    if (from[from.ndim() - i] != 1 && from[from.ndim() - i] != to[to.ndim() - i]) return false;
  return true;
}

// A step of this kind that the arrays allow; false where there is none.
bool make(Generator& g, Step& step) {
  using enum Step::Kind;
  step.a = g.any();
  const NDArray& a = g.array(step.a);
  const auto same = [&](const NDArray& x) { return x.shape() == a.shape(); };
  const auto fits = [&](const NDArray& x) { return broadcasts(x.shape(), a.shape()); };
  const auto has_axes = [&] {
    if (a.ndim() > 0) step.axis = g.pick(a.ndim());
    return a.ndim() > 0;
  };
  switch (step.kind) {
    case kAdd:
    case kSubtract:
    case kMultiply: step.b = g.find(fits); return step.b >= 0;
    case kMatmul:
      step.b = g.find([&](const NDArray& x) { return x.ndim() == 2 && a.ndim() == 2 && a.size(1) == x.size(0); });
      return step.b >= 0;
    case kDense:
      step.b = g.find([&](const NDArray& x) { return x.ndim() == 2 && a.ndim() == 2 && a.size(1) == x.size(1); });
      return step.b >= 0;
    case kConcat: step.b = g.find(same); return step.b >= 0 && has_axes() && a.size() < g.most();
    case kSoftmax:
    case kSum:
    case kCumsum: return has_axes();
    case kNarrow: {
      if (!has_axes()) return false;
      const auto size = static_cast<int>(a.size(step.axis));
      step.begin = g.pick(size);
      step.end = step.begin + 1 + g.pick(size - static_cast<int>(step.begin));
      step.stride = 1 + g.pick(3);
      return true;
    }
    case kAt: step.begin = has_axes() ? g.pick(static_cast<int>(a.size(0))) : 0; return a.ndim() > 0;
    case kPermute:
      for (int i = 0; i < a.ndim(); ++i)
        step.axes.insert(step.axes.begin() + g.pick(static_cast<int>(step.axes.size()) + 1), i);
      return a.ndim() > 1;
    case kView:
    case kReshape:
      if (step.kind == kView && !a.is_contiguous()) return false;
      step.shape = g.pick(2) || a.size() % 2 ? Shape{a.size()} : Shape{2, a.size() / 2};
      return true;
    case kBroadcast:
      if (2 * a.size() > g.most() || a.ndim() > 3) return false;
      step.shape = Shape{2};
      for (const std::int64_t size : a.shape()) step.shape.push_back(size);
      return true;
    case kFill:
    case kScaleBy:
    case kTanhIn: return g.may_be_written(a);
    case kCopyFrom:
    case kAddTo: step.b = g.find(fits); return step.b >= 0 && g.may_be_written(a);
    default: return true;
  }
}

}  // namespace

NDArray view_of_first(const NDArray& first) { return first.permute({1, 0}).narrow(0, 1, 3); }
NDArray watched_part(const NDArray& fourth) { return fourth.narrow(0, 1, 3); }

std::vector<NDArray> program_inputs(unsigned seed, Device device, Engine& engine) {
  const auto [rows, columns] = size_of_program(seed);
  std::mt19937 random(seed);
  std::vector<NDArray> inputs;
  for (const Shape& shape : {Shape{rows, columns}, Shape{columns, rows}, Shape{4, 4}}) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < shape.size(); ++i)
      values.push_back(std::uniform_real_distribution<double>(-1, 1)(random));
    inputs.push_back(NDArray::from(values, shape, device, engine));
  }
  inputs.insert(inputs.begin() + 2, view_of_first(inputs[0]));
  return inputs;
}

Program::Program(unsigned seed, int most_steps) {
  const auto engine = make_serial_engine();
  Generator g(seed, program_inputs(seed, {}, *engine));
  const int count = 5 + g.pick(most_steps - 4);
  while (static_cast<int>(steps_.size()) < count) {
    Step step;
    step.kind = static_cast<Step::Kind>(g.pick(Step::kKinds));
    if (!make(g, step)) continue;
    std::vector<NDArray> arrays;
    for (int i = 0; i < kInputs + static_cast<int>(steps_.size()); ++i) arrays.push_back(g.array(i));
    g.add(run(step, arrays));
    steps_.push_back(step);
  }
}

NDArray Program::run(const Step& step, const std::vector<NDArray>& arrays) {
  using enum Step::Kind;
  const NDArray& a = arrays.at(static_cast<std::size_t>(step.a));
  const NDArray& b = arrays.at(static_cast<std::size_t>(step.b));
  switch (step.kind) {
    case kTanh: return tanh(a);
    case kSin: return sin(a);
    case kSquare: return square(a) * 0.5;
    case kScale: return a * 0.75 + 0.125;
    case kAdd: return (a + b) * 0.5;
    case kSubtract: return a - b;
    case kMultiply: return a * b;
    case kMatmul: return matmul(a, b) / a.size(1);
    case kDense: return dense(a, b) / a.size(1);
    case kSoftmax: return softmax(a, step.axis);
    case kSum: return sum(a, {step.axis}) / a.size(step.axis);
    case kConcat: return concat({a, b}, step.axis);
    case kCumsum: return cumsum(a, step.axis) / a.size(step.axis);
    case kNarrow: return a.narrow(step.axis, step.begin, step.end, step.stride);
    case kAt: return a.at(step.begin);
    case kPermute: return a.permute(step.axes);
    case kView: return a.view(step.shape);
    case kReshape: return reshape(a, step.shape);
    case kBroadcast: return a.broadcast_to(step.shape);
    case kClone: return a.clone();
    case kContiguous: return a.contiguous();
    case kCast: return a.cast(DType::kFloat64);
    case kCopy: return copy(a);
    case kStop: return stop_gradient(a.clone());
    case kWatch: return tanh(a);
    case kConstant: return NDArray::full(a.shape(), 0.25, a.dtype(), a.device(), a.engine());
    case kFill: a.fill(0.5); return a;
    case kCopyFrom: a.copy_from(b); return a;
    case kAddTo: a += b; return a;
    case kScaleBy: a *= 0.75; return a;
    case kTanhIn: tanh_(a); return a;
    case kKinds: break;
  }
  return {};
}

NDArray Program::operator()(const std::vector<NDArray>& inputs, const Watch& watch, const Stop& stop) const {
  std::vector<NDArray> arrays = inputs;
  std::size_t watched = 0, stopped = 0;
  for (const Step& step : steps_) {
    NDArray result = run(step, arrays);
    if (step.kind == Step::kWatch) watch(watched++, result);
    if (step.kind == Step::kStop) result = stop(stopped++, result);
    arrays.push_back(result);
  }
  NDArray loss;
  for (std::size_t i = arrays.size() - std::min<std::size_t>(arrays.size(), 4); i < arrays.size(); ++i) {
    const NDArray part = mean(arrays[i] * (1.0 + 0.25 * static_cast<double>(i % 3)));
    loss = loss.is_none() ? part : loss + part;
  }
  return loss;
}

// Later steps take the argument of the one that is left out for its result.
Program Program::without(std::size_t left_out) const {
  const int gone = kInputs + static_cast<int>(left_out), instead = steps_[left_out].a;
  Program shorter;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    if (i == left_out) continue;
    Step step = steps_[i];
    for (int* array : {&step.a, &step.b}) *array = *array == gone ? instead : *array > gone ? *array - 1 : *array;
    shorter.steps_.push_back(step);
  }
  return shorter;
}

std::string Program::text() const {
  using enum Step::Kind;
  std::ostringstream out;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    const std::string a = "a" + std::to_string(step.a), b = "a" + std::to_string(step.b),
                      axis = std::to_string(step.axis);
    const auto call = [&]() -> std::string {
      switch (step.kind) {
        case kTanh: return "tanh(" + a + ")";
        case kSin: return "sin(" + a + ")";
        case kSquare: return "square(" + a + ") * 0.5";
        case kScale: return a + " * 0.75 + 0.125";
        case kAdd: return "(" + a + " + " + b + ") * 0.5";
        case kSubtract: return a + " - " + b;
        case kMultiply: return a + " * " + b;
        case kMatmul: return "matmul(" + a + ", " + b + ") / " + a + ".size(1)";
        case kDense: return "dense(" + a + ", " + b + ") / " + a + ".size(1)";
        case kSoftmax: return "softmax(" + a + ", " + axis + ")";
        case kSum: return "sum(" + a + ", {" + axis + "}) / " + a + ".size(" + axis + ")";
        case kConcat: return "concat({" + a + ", " + b + "}, " + axis + ")";
        case kCumsum: return "cumsum(" + a + ", " + axis + ") / " + a + ".size(" + axis + ")";
        case kNarrow:
          return a + ".narrow(" + axis + ", " + std::to_string(step.begin) + ", " + std::to_string(step.end) + ", " +
                 std::to_string(step.stride) + ")";
        case kAt: return a + ".at(" + std::to_string(step.begin) + ")";
        case kPermute: {
          std::string axes;
          for (const int one : step.axes) axes += (axes.empty() ? "" : ", ") + std::to_string(one);
          return a + ".permute({" + axes + "})";
        }
        case kView: return a + ".view(Shape" + step.shape.text() + ")";
        case kReshape: return "reshape(" + a + ", Shape" + step.shape.text() + ")";
        case kBroadcast: return a + ".broadcast_to(Shape" + step.shape.text() + ")";
        case kClone: return a + ".clone()";
        case kContiguous: return a + ".contiguous()";
        case kCast: return a + ".cast(DType::kFloat64)";
        case kCopy: return "copy(" + a + ")";
        case kStop: return "stop_gradient(" + a + ".clone())";
        case kWatch: return "tanh(" + a + ");  // is watched";
        case kConstant: return "NDArray::full(" + a + ".shape(), 0.25, DType::kFloat64)";
        case kFill: return a + "; " + a + ".fill(0.5)";
        case kCopyFrom: return a + "; " + a + ".copy_from(" + b + ")";
        case kAddTo: return a + "; " + a + " += " + b;
        case kScaleBy: return a + "; " + a + " *= 0.75";
        case kTanhIn: return a + "; tanh_(" + a + ")";
        case kKinds: break;
      }
      return "";
    };
    out << "  NDArray a" << kInputs + static_cast<int>(i) << " = " << call() << ";\n";
  }
  return out.str();
}

}  // namespace paceline::test

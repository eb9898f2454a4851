// Random programs over overlapping views must leave the same bits on every engine and device as on the serial engine.

#include "ndarray_suite.h"

#include <paceline/kernel.h>

#include <algorithm>
#include <cstring>
#include <random>

namespace paceline::test {
namespace {

constexpr int kArrays = 6;
constexpr std::int64_t kSide = 5;
constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kFloat16, DType::kInt8};

class Program {
 public:
  // Every third array lives on `elsewhere`, the others on `device`.
  Program(std::uint64_t seed, Engine& engine, Device device, Device elsewhere) : random_(seed) {
    for (int i = 0; i < kArrays; ++i) {
      const DType dtype = i < 4 ? DType::kFloat32 : kTypes[below(5)];
      const NDArray values({kSide, kSide, kSide}, DType::kFloat32,
                           is_elsewhere(static_cast<std::size_t>(i)) ? elsewhere : device, engine);
      kernels::fill_uniform(values, -8, 8, seed + static_cast<std::uint64_t>(i));
      arrays_.push_back(values.cast(dtype));
    }
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) step();
  }

  std::vector<std::vector<double>> results() const {
    std::vector<std::vector<double>> all;
    for (const NDArray& array : arrays_) all.push_back(array.to_vector<double>());
    return all;
  }

 private:
  int below(int bound) { return static_cast<int>(random_() % static_cast<std::uint64_t>(bound)); }

  NDArray window(const NDArray& array, const Shape& sizes) {
    std::vector<int> axes{0, 1, 2};
    std::shuffle(axes.begin(), axes.end(), random_);
    NDArray view = below(3) ? array : array.permute(axes);
    for (int axis = 0; axis < 3; ++axis) {
      const std::int64_t begin = below(static_cast<int>(kSide - sizes[axis]) + 1);
      view = view.narrow(axis, begin, begin + sizes[axis]);
    }
    return view;
  }

  std::size_t any() { return static_cast<std::size_t>(below(kArrays)); }
  static bool is_elsewhere(std::size_t i) { return i % 3 == 2; }

  // A window of an array that arithmetic on array `i` may take: same device and type.
  NDArray operand(std::size_t i, const Shape& sizes) {
    for (int tries = 0; tries < 20; ++tries) {
      const std::size_t other = any();
      if (is_elsewhere(other) == is_elsewhere(i) && arrays_[other].dtype() == arrays_[i].dtype())
        return window(arrays_[other], sizes);
    }
    return window(arrays_[i], sizes);
  }

  void step() {
    const Shape sizes{1 + below(kSide), 1 + below(kSide), 1 + below(kSide)};
    const std::size_t target = any();
    const NDArray to = below(4) ? window(arrays_[target], sizes) : arrays_[target];
    const Shape shape = to.shape();
    switch (below(8)) {
      case 0: return to.fill(below(16) - 8);
      case 1: return to.copy_from(window(arrays_[any()], shape));
      case 2: return to.copy_from(window(arrays_[any()], {shape[0], 1, shape[2]}));
      case 3: {
        const NDArray a = operand(target, shape);
        return kernels::add(a, operand(target, shape), to);
      }
      case 4: return kernels::axpy(0.5 - below(2), operand(target, shape), to);
      case 5: return kernels::scale(below(2) ? 0.75 : -1, to);
      case 6: {
        const std::vector<NDArray> parts{operand(target, shape), operand(target, shape), operand(target, shape)};
        return kernels::sum_of(parts, to);
      }
      default: {
        const NDArray sum({}, to.dtype(), to.device(), to.engine());
        kernels::reduce_sum(operand(target, shape), sum);
        return to.copy_from(sum);
      }
    }
  }

  std::mt19937_64 random_;
  std::vector<NDArray> arrays_;
};

class NDArrayProgramsTest : public ArraySuite {};
INSTANTIATE_ARRAY_SUITE(NDArrayProgramsTest);

TEST_P(NDArrayProgramsTest, LeaveTheBitsOfTheSerialEngine) {
  constexpr int kSteps = 40;
  const auto oracle_engine = make_serial_engine();
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Program oracle(seed, *oracle_engine, Device("cpu"), Device("cpu"));
    Program program(seed, engine(), device(), device() == Device("cpu:1") ? Device("cpu") : Device("sim:1"));
    oracle.run(kSteps);
    program.run(kSteps);
    const auto expected = oracle.results();
    const auto results = program.results();
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_EQ(std::memcmp(expected[i].data(), results[i].data(), expected[i].size() * sizeof(double)), 0)
          << "array " << i;
  }
}

}  // namespace
}  // namespace paceline::test

// Random programs, eager and captured: the same bits, whatever views, copies and writes in place they are made of.
#include <gtest/gtest.h>
#include <paceline/capture.h>
#include <paceline/kernel.h>
#include <paceline/ops.h>

#include <random>

namespace paceline {
namespace {

using Arrays = std::vector<NDArray>;

struct Place {
  Device device;
  bool threaded;
};

class RandomProgram {
 public:
  RandomProgram(unsigned seed, Device device, Engine& engine) : seed_(seed), device_(device), engine_(engine) {
    for (int i = 0; i < 3; ++i)
      fixed_.push_back(NDArray::full({kRows, kColumns}, 0.1 * i, DType::kFloat32, device, engine));
  }

  // The same calls at every run.
  Arrays operator()(const Arrays& inputs) {
    random_.seed(seed_);
    arrays_ = inputs;
    arrays_.push_back(fixed_[0]);
    const int steps = 5 + pick(25);
    for (int i = 0; i < steps; ++i) step();
    Arrays results;
    const int count = 1 + pick(3);
    for (int i = 0; i < count; ++i) results.push_back(any());
    arrays_.clear();  // what is held beyond the run has to be kept
    return results;
  }

  const Arrays& fixed() const { return fixed_; }

  static constexpr std::int64_t kRows = 24, kColumns = 40;

 private:
  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  const NDArray& any() { return arrays_[static_cast<std::size_t>(pick(static_cast<int>(arrays_.size())))]; }
  NDArray part(const NDArray& x) {
    const std::int64_t begin = pick(static_cast<int>(kRows));
    return x.narrow(0, begin, begin + 1 + pick(static_cast<int>(kRows - begin)));
  }
  void add(const NDArray& x) { arrays_.push_back(x); }

  // All arrays have one shape; values stay in [-1, 1] or so, which keeps every result finite.
  void step() {
    switch (pick(14)) {
      case 0: return add((any() + any()) * 0.5);
      case 1: return add(tanh(any()));
      case 2: return add(relu(any() - any()) * 0.25);
      case 3: return add(any() * any());
      case 4: return add(NDArray::full({kRows, kColumns}, 0.25, DType::kFloat32, device_, engine_));
      case 5: return add(any().clone());
      case 6: return add(tanh(any().permute({1, 0})).permute({1, 0}).contiguous());
      case 7: return add(mean(any(), {0}, true) + any() * 0.5);
      case 8: {
        const NDArray to = arrays_.back();
        if (to.shares_memory_with(arrays_[0]) || to.shares_memory_with(arrays_[1])) return;
        return part(to).fill(0.5);
      }
      case 9: {
        const NDArray made = any().clone();
        const NDArray to = part(made);
        to.copy_from(any().narrow(0, 0, to.size(0)));
        return add(made);
      }
      case 10: {
        const NDArray made = any() * 0.5;
        kernels::axpy(0.25, any(), made);
        return add(made);
      }
      case 11: return fixed_[static_cast<std::size_t>(pick(3))].copy_from(any());
      case 12: return part(fixed_[static_cast<std::size_t>(pick(3))]).copy_from(mean(any(), {0}, true));
      default: return add(fixed_[static_cast<std::size_t>(pick(3))]);
    }
  }

  const unsigned seed_;
  const Device device_;
  Engine& engine_;
  Arrays fixed_, arrays_;
  std::mt19937 random_;
};

constexpr unsigned kPrograms = 100;

class CapturedPrograms : public testing::TestWithParam<Place> {};
INSTANTIATE_TEST_SUITE_P(Places, CapturedPrograms,
                         testing::Values(Place{Device(), false}, Place{Device(), true}, Place{Device("sim:0"), true},
                                         Place{Device("cuda:0"), true}),
                         [](const auto& info) {
                           return std::string(info.param.threaded ? "Threaded" : "Serial") +
                                  info.param.device.name().substr(0, info.param.device.name().find(':'));
                         });

TEST_P(CapturedPrograms, GiveTheBitsOfEagerOnes) {
  if (GetParam().device.kind == DeviceKind::kCuda && device_count(DeviceKind::kCuda) == 0)
    GTEST_SKIP() << "no CUDA device here";
  const unsigned programs = GetParam().device.kind == DeviceKind::kCuda ? kPrograms / 10 : kPrograms;
  const auto engine = GetParam().threaded ? make_threaded_engine() : make_serial_engine();
  const Device device = GetParam().device;
  const unsigned first = std::random_device()();
  for (unsigned seed = first; seed < first + programs; ++seed) {
    SCOPED_TRACE(seed);
    RandomProgram eager(seed, device, *engine), noted(seed, device, *engine);
    Captured captured([&](const Arrays& in) { return noted(in); });
    for (std::uint64_t call = 0; call < 4; ++call) {
      Arrays inputs;
      for (std::uint64_t i = 0; i < 2; ++i) {
        const NDArray x({RandomProgram::kRows, RandomProgram::kColumns}, DType::kFloat32, device, *engine);
        kernels::fill_uniform(x, -1, 1, 2 * call + i);
        inputs.push_back(x);
      }
      const Arrays expected = eager(inputs), results = captured(inputs);
      for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_EQ(expected[i].to_vector<float>(), results[i].to_vector<float>()) << "result " << i << ", call " << call;
      for (std::size_t i = 0; i < eager.fixed().size(); ++i)
        ASSERT_EQ(eager.fixed()[i].to_vector<float>(), noted.fixed()[i].to_vector<float>())
            << "fixed array " << i << ", call " << call;
    }
  }
}

}  // namespace
}  // namespace paceline

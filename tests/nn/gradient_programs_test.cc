// Random programs: their gradients are those of finite differences, and the same bits on every engine, on simulated
// devices, and captured. TEST_PROGRAMS and TEST_SEED choose how many programs, and the first one's seed.
#include <gtest/gtest.h>
#include <paceline/capture.h>

#include <cmath>
#include <cstdlib>
#include <optional>
#include <random>

#include "random_program.h"

namespace paceline::test {
namespace {

using Numbers = std::vector<double>;

// The loss, and its gradients with respect to the two matrices, the watched part of the fourth input, and what the
// program watches. None where the program overwrites what backward() needs, or a constant that it watches.
struct Outcome {
  std::vector<NDArray> arrays;
  std::vector<NDArray> stopped;
};

std::optional<Outcome> differentiate(const Program& program, const std::vector<NDArray>& inputs) {
  Outcome outcome;
  std::vector<NDArray> gradients;
  Tape tape;
  const auto watch = [&](const NDArray& array) {
    gradients.push_back(NDArray::full(array.shape(), 7, array.dtype(), array.device(), array.engine()));
    tape.watch(array, gradients.back());
  };
  watch(inputs[0]);
  watch(inputs[1]);
  watch(watched_part(inputs[3]));
  NDArray loss;
  try {
    loss = program(
        inputs, [&](std::size_t, const NDArray& array) { watch(array); },
        [&](std::size_t, const NDArray& array) {
          const RecordingScope off(nullptr);
          outcome.stopped.push_back(array.clone());
          return array;
        });
    tape.backward(loss);
  } catch (const InvalidArgument& error) {
    const std::string what = error.what();
    if (what.find("written in place after it was recorded") != std::string::npos) return std::nullopt;
    if (what.find("would overwrite an array that a Tape watches") != std::string::npos) return std::nullopt;
    if (what.find("into an array that stop_gradient() made constant") != std::string::npos) return std::nullopt;
    if (what.find("does not depend on any watched array") == std::string::npos) throw;
    for (const NDArray& gradient : gradients) gradient.fill(0);
  }
  outcome.arrays = {loss.clone()};
  outcome.arrays.insert(outcome.arrays.end(), gradients.begin(), gradients.end());
  return outcome;
}

std::vector<Numbers> numbers_of(const std::vector<NDArray>& arrays) {
  std::vector<Numbers> numbers;
  for (const NDArray& array : arrays) numbers.push_back(array.to_vector<double>());
  return numbers;
}

// The derivative of the loss along a random direction, against the same from the gradients.
std::string compare_with_differences(const Program& program, unsigned seed, const std::vector<NDArray>& inputs,
                                     const Outcome& outcome) {
  std::mt19937 random(seed ^ 0x5eed);
  std::vector<NDArray> directions;
  double expected = 0, size = 1;
  for (std::size_t i = 1; i < outcome.arrays.size(); ++i) {
    const Numbers gradient = outcome.arrays[i].to_vector<double>();
    Numbers direction;
    for (const double g : gradient) {
      direction.push_back(std::uniform_real_distribution<double>(-1, 1)(random));
      expected += g * direction.back();
      size += std::fabs(g * direction.back());
    }
    directions.push_back(NDArray::from(direction, outcome.arrays[i].shape(), {}, inputs[0].engine()));
  }
  const auto loss_at = [&](double distance) {
    std::vector<NDArray> moved{inputs[0] + directions[0] * distance, inputs[1] + directions[1] * distance};
    moved.push_back(view_of_first(moved[0]));
    moved.push_back(inputs[3].clone());
    kernels::axpy(distance, directions[2], watched_part(moved[3]));
    return program(
               moved, [&](std::size_t i, const NDArray& array) { kernels::axpy(distance, directions[3 + i], array); },
               [&](std::size_t i, const NDArray&) { return outcome.stopped[i].clone(); })
        .item<double>();
  };
  constexpr double kStep = 1e-3;
  const double measured =
      (8 * (loss_at(kStep) - loss_at(-kStep)) - (loss_at(2 * kStep) - loss_at(-2 * kStep))) / (12 * kStep);
  if (std::fabs(measured - expected) <= 1e-7 * size) return "";
  return "the derivative along a line is " + std::to_string(measured) + ", the gradients say " +
         std::to_string(expected);
}

std::string compare_places(const Program& program, unsigned seed, const std::vector<Numbers>& expected) {
  const auto threaded = make_threaded_engine();
  for (const char* name : {"cpu", "sim:0", "sim:1"}) {
    const std::vector<NDArray> inputs = program_inputs(seed, Device(name), *threaded);
    const auto outcome = differentiate(program, inputs);
    if (!outcome || numbers_of(outcome->arrays) != expected) return std::string("other numbers on ") + name;
  }
  const std::vector<NDArray> inputs = program_inputs(seed, {}, *threaded);
  Captured captured([&](const std::vector<NDArray>& in) {
    return differentiate(program, {in[0], in[1], view_of_first(in[0]), in[2]})->arrays;
  });
  for (int call = 0; call < 4; ++call)
    if (numbers_of(captured({inputs[0], inputs[1], inputs[3]})) != expected)
      return "other numbers from call " + std::to_string(call) + " of the captured program";
  return "";
}

enum class Verdict { kRight, kRefused, kWrong };

// `what`: the difference, where it is wrong.
Verdict examine(const Program& program, unsigned seed, std::string* what) {
  const auto engine = make_serial_engine();
  const std::vector<NDArray> inputs = program_inputs(seed, {}, *engine);
  try {
    const auto outcome = differentiate(program, inputs);
    if (!outcome) return Verdict::kRefused;
    *what = compare_with_differences(program, seed, inputs, *outcome);
    if (what->empty()) *what = compare_places(program, seed, numbers_of(outcome->arrays));
  } catch (const std::exception& error) {
    *what = error.what();
  }
  return what->empty() ? Verdict::kRight : Verdict::kWrong;
}

// May the program run at all? Leaving out a step may make a later one impossible.
bool runs(const Program& program, unsigned seed) {
  const auto engine = make_serial_engine();
  try {
    program(
        program_inputs(seed, {}, *engine), [](auto, const auto&) {}, [](auto, const NDArray& array) { return array; });
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

Program shrunk(Program program, unsigned seed) {
  for (bool shorter = true; shorter;) {
    shorter = false;
    for (std::size_t i = program.steps().size(); i-- > 0;) {
      const Program candidate = program.without(i);
      std::string what;
      if (!runs(candidate, seed) || examine(candidate, seed, &what) != Verdict::kWrong) continue;
      program = candidate;
      shorter = true;
    }
  }
  return program;
}

unsigned number_from(const char* variable, unsigned otherwise) {
  const char* const text = std::getenv(variable);
  return text ? static_cast<unsigned>(std::stoul(text)) : otherwise;
}

constexpr int kParts = 20;  // each of some seconds, so that a starved one ends in time

class GradientPrograms : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Parts, GradientPrograms, testing::Range(0, kParts));

TEST_P(GradientPrograms, AgreeWithFiniteDifferencesAndEverywhere) {
  const unsigned programs = number_from("TEST_PROGRAMS", 2000),
                 first = number_from("TEST_SEED", std::random_device()());
  std::cout << "first seed " << first << '\n';
  unsigned refused = 0, run = 0;
  for (unsigned i = static_cast<unsigned>(GetParam()); i < programs; i += kParts) {
    const unsigned seed = first + i;
    const Program program(seed);
    std::string what;
    const Verdict verdict = examine(program, seed, &what);
    ++run;
    refused += verdict == Verdict::kRefused;
    ASSERT_NE(verdict, Verdict::kWrong) << "seed " << seed << ": " << what << "\n" << shrunk(program, seed).text();
  }
  std::cout << run << " programs, of which " << refused << " overwrite what a gradient needs\n";
  EXPECT_LT(refused, run / 2);
}

}  // namespace
}  // namespace paceline::test

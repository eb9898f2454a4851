#pragma once
// Random programs over float64 arrays: operators, views, views of views, copies and writes in place. What a program
// does depends on its seed alone, not on the numbers that it computes with. Arrays are small; in one program of 40 they
// are large enough for a captured chain of operators to run in several pieces.

#include <paceline/autograd.h>
#include <paceline/ops.h>

#include <random>
#include <string>
#include <vector>

namespace paceline::test {

struct Step {
  enum Kind {
    kTanh,
    kSin,
    kSquare,
    kScale,
    kAdd,
    kSubtract,
    kMultiply,
    kMatmul,
    kDense,
    kSoftmax,
    kSum,
    kConcat,
    kCumsum,
    kNarrow,
    kAt,
    kPermute,
    kView,
    kReshape,
    kBroadcast,
    kClone,
    kContiguous,
    kCast,
    kCopy,
    kStop,
    kWatch,
    kConstant,
    kFill,
    kCopyFrom,
    kAddTo,
    kScaleBy,
    kTanhIn,
    kKinds
  };
  Kind kind = kTanh;
  int a = 0, b = 0;  // arrays by number: inputs, then results of steps
  int axis = 0;
  std::int64_t begin = 0, end = 0, stride = 1;
  std::vector<int> axes = {};
  Shape shape = {};

  bool writes() const { return kind >= kFill; }
};

class Program {
 public:
  static constexpr int kInputs = 4;

  explicit Program(unsigned seed, int most_steps = 20);

  const std::vector<Step>& steps() const { return steps_; }
  Program without(std::size_t step) const;
  std::string text() const;  // as C++

  // What the program's kWatch steps do with the array that they name, the index counting these steps.
  using Watch = std::function<void(std::size_t index, const NDArray& array)>;
  // What its kStop steps give for the array that they name.
  using Stop = std::function<NDArray(std::size_t index, const NDArray& array)>;
  // The loss, of one element. Throws InvalidArgument where a step is impossible.
  NDArray operator()(const std::vector<NDArray>& inputs, const Watch& watch, const Stop& stop) const;

 private:
  Program() = default;
  static NDArray run(const Step& step, const std::vector<NDArray>& arrays);

  std::vector<Step> steps_;
};

// Two matrices, a view of the first one, and a matrix of whose rows watched_part() is watched.
std::vector<NDArray> program_inputs(unsigned seed, Device device, Engine& engine);

NDArray view_of_first(const NDArray& first);
NDArray watched_part(const NDArray& fourth);

}  // namespace paceline::test

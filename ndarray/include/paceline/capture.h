#pragma once
// Capture and replay: a function over arrays runs once while its kernel launches are noted. From then on it is replayed
// from a plan, with the same numbers. The plan lays all intermediate arrays into one block of memory by their
// lifetimes. It leaves out copies, constants and results that nobody reads. It runs chains of element-wise kernels
// piece by piece, while a piece is in the cache, and it hands the engine few large tasks.
//
//   Captured step([&](const std::vector<NDArray>& in) { return std::vector{train(in[0], in[1])}; });
//   NDArray loss = step({data, label})[0];   // first eager, then captured, then replayed
//   LOG(INFO) << step.plan();
//
// What a function may do: launch kernels on one device, by operators, copies, views or a Tape. Rules:
//
// - Work on the host happens only while the function is captured: sizes, attributes and constants stay as they were.
// - Reading a value (item(), wait()), host code as a task, and crossing devices throw InvalidArgument while it is
// captured.
// - Pass what changes from call to call as an input. Arrays from elsewhere, such as weights, are used where they lie;
// the
//   function must not replace them.
// - What the function pushes to an engine or a store itself is not seen, nor what threads that it starts launch.
// - If a call fails, everything that the function writes fails. An array that it changes (x += ...) stays failed.

#include <paceline/ndarray.h>

#include <functional>
#include <iosfwd>
#include <memory>
#include <vector>

namespace paceline {

// What became of a captured function. Bytes are of intermediate arrays: inputs, outputs and arrays from elsewhere do
// not count.
struct CapturePlan {
  std::int64_t launches = 0;       // kernel launches of an eager call; each is a task
  std::int64_t kernels = 0;        // kernel calls of a replay
  std::int64_t tasks = 0;          // engine tasks of a replay
  std::int64_t unused = 0;         // kernels left out, as nobody reads their results
  std::int64_t constants = 0;      // kernels that run once, when the plan is made
  std::int64_t copies = 0;         // copies left out, as the source is computed in the copy's place
  std::int64_t in_place = 0;       // results that took an input's place
  std::int64_t chains = 0;         // chains of element-wise kernels
  std::int64_t chained = 0;        // kernels in these chains
  std::int64_t eager_bytes = 0;    // of all arrays that an eager call makes; all exist at once where it runs ahead
  std::int64_t planned_bytes = 0;  // the block of a replay, constants included
};
// Prints two lines: tasks and bytes, before and after.
std::ostream& operator<<(std::ostream& out, const CapturePlan& plan);

// A function with its plans. Not thread-safe. Results are as asynchronous as those of an operator. It may be destroyed
// while replays are queued.
class Captured {
 public:
  // What can be captured.
  using Function = std::function<std::vector<NDArray>(const std::vector<NDArray>& inputs)>;

  // There is one plan for each combination of the inputs' shapes, types and device. Beyond `most_plans` combinations,
  // calls stay eager.
  explicit Captured(Function function, int most_plans = 4);
  ~Captured();
  Captured(Captured&&) noexcept;
  Captured& operator=(Captured&&) noexcept;

  // Of the calls with one combination of inputs, the first that does not throw is eager: layers create their weights in
  // it. The next is noted, later ones are replayed. Inputs must be contiguous. A call stays eager inside a Tape, which
  // could not see the operators otherwise, and where inputs share memory with each other. So does one that would be
  // replayed where inputs share memory with arrays from elsewhere. Throws what the function throws. Throws
  // InvalidArgument where a call cannot be noted, also if the function changes memory that an input shares with an
  // array from elsewhere.
  std::vector<NDArray> operator()(const std::vector<NDArray>& inputs);

  // The newest plan; all zero before there is one.
  const CapturePlan& plan() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace paceline

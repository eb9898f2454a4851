#pragma once
// Capturing: a function over arrays is run once while its kernel launches are noted; from then on it is replayed from a
// plan, with the same numbers. The plan lays all intermediates into one block of memory by their lifetimes, leaves out
// copies, constants and results that nobody reads, runs element-wise chains piece by piece while they are in the cache,
// and hands the engine few large tasks.
//
//   Captured step([&](const std::vector<NDArray>& in) { return std::vector{train(in[0], in[1])}; });
//   NDArray loss = step({data, label})[0];   // first eager, then captured, then replayed
//   LOG(INFO) << step.plan();
//
// What a function may do: launch kernels (operators, copies on one device, views, a Tape) on one device. What it
// computes on the host is done only while it is captured: sizes, attributes and constants stay as they were. Reading a
// value (item(), wait()), running host code as a task or crossing devices throws InvalidArgument while it is captured.
// What changes from call to call is passed as an input; arrays that the function takes from elsewhere (weights) are
// used where they lie, and must not be replaced by it. What it pushes to an engine or a store itself, and what threads
// that it starts launch, is not seen. A call that fails, fails all that the function writes; an array that it changes
// (x += ...) stays failed, as it would after x += of a failed array.

#include <paceline/ndarray.h>

#include <functional>
#include <iosfwd>
#include <memory>
#include <vector>

namespace paceline {

// What became of the function; bytes are of intermediates, without inputs, outputs and arrays from elsewhere.
struct CapturePlan {
  std::int64_t launches = 0;       // eager: kernel launches, a task each
  std::int64_t kernels = 0;        // kernel calls of a replay
  std::int64_t tasks = 0;          // engine tasks of a replay
  std::int64_t unused = 0;         // left out: nobody reads the result
  std::int64_t constants = 0;      // computed once
  std::int64_t copies = 0;         // left out: the source was computed in the copy's place
  std::int64_t in_place = 0;       // results that took an input's place
  std::int64_t chains = 0;         // element-wise chains
  std::int64_t chained = 0;        // kernels in them
  std::int64_t eager_bytes = 0;    // all that the launches make; an eager call that runs ahead has it at once
  std::int64_t planned_bytes = 0;  // the block of a replay, constants included
};
// Two lines: tasks and bytes, before and after.
std::ostream& operator<<(std::ostream& out, const CapturePlan& plan);

// Not thread-safe: one thread calls it. Results are as asynchronous as those of any operator. Destroying it while
// replays are queued is allowed.
class Captured {
 public:
  using Function = std::function<std::vector<NDArray>(const std::vector<NDArray>& inputs)>;

  // One plan for each combination of the inputs' shapes, types and device, at most `most_plans`; calls with further
  // ones stay eager.
  explicit Captured(Function function, int most_plans = 4);
  ~Captured();
  Captured(Captured&&) noexcept;
  Captured& operator=(Captured&&) noexcept;

  // The first call with inputs of some shapes is eager (layers create their weights in it), the second is noted, later
  // ones are replayed. Inputs must be contiguous arrays. Calls remain eager inside a Tape, which sees the operators
  // only so, and where inputs share memory with each other or with what the function takes from elsewhere. Throws what
  // the function throws, and InvalidArgument where the second call cannot be noted.
  std::vector<NDArray> operator()(const std::vector<NDArray>& inputs);

  // Of the newest plan; all zero before there is one.
  const CapturePlan& plan() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace paceline

#pragma once
// The execution engine: tasks declare the variables they read and those they write; tasks that conflict run in push
// order, all others may run at once. The threaded engine gives the serial engine's result for every program.

#include <paceline/device.h>
#include <paceline/unique_function.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <span>

namespace paceline {

namespace detail {
class Stream;
struct VariableState;
void retain(VariableState*);
void release(VariableState*);
}  // namespace detail

class EngineObserver;

// The thing that tasks read and write, usually one per block of memory. A handle: copies name the same variable.
class Variable {
 public:
  Variable() = default;
  explicit Variable(detail::VariableState* adopted) : state_(adopted) {}
  Variable(const Variable& other) : state_(other.state_) {
    if (state_) detail::retain(state_);
  }
  Variable(Variable&& other) noexcept : state_(other.state_) { other.state_ = nullptr; }
  Variable& operator=(Variable other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~Variable() {
    if (state_) detail::release(state_);
  }

  // Number of writing tasks pushed so far; what autograd compares to find in-place writes.
  std::uint64_t version() const;

  explicit operator bool() const { return state_ != nullptr; }
  friend bool operator==(const Variable& a, const Variable& b) { return a.state_ == b.state_; }
  detail::VariableState* state() const { return state_; }

 private:
  detail::VariableState* state_ = nullptr;
};

// Which queue of a device a task runs on. On a CPU, kCompute is the compute lane and the others share a few I/O
// threads; on an accelerator each is a stream with a thread that issues to it.
enum class Lane : std::uint8_t { kCompute, kCopyIn, kCopyOut, kCommunication };

struct TaskInfo {
  const char* name;  // a string that outlives the engine (a literal); shown in traces and errors
  Device device = {};
  Lane lane = Lane::kCompute;
  int priority = 0;  // larger runs sooner among the tasks that may run; ties in push order
  // The work is shorter than waking a thread, never blocks and takes no lock that a pusher may hold: where nothing
  // holds the task back it runs on the thread that pushes it, before push returns. For tasks of a CPU.
  bool at_once = false;
};

struct TaskContext {
  Device device;
  detail::Stream* stream;  // where an accelerator's work is issued; never null
};

// Ends an asynchronous task. Move-only; call exactly one function, once, from any thread. Destroying it unused fails
// the task with "dropped its completion".
class Completion {
 public:
  class Target {
   public:
    virtual void complete(void* task, std::exception_ptr error) = 0;

   protected:
    ~Target() = default;
  };

  Completion(Target* target, void* task) : target_(target), task_(task) {}
  Completion(Completion&& other) noexcept : target_(other.target_), task_(other.task_) { other.target_ = nullptr; }
  Completion& operator=(Completion&&) = delete;
  ~Completion();

  void done() { finish(nullptr); }
  void fail(std::exception_ptr error) { finish(std::move(error)); }

 private:
  void finish(std::exception_ptr error);
  Target* target_;
  void* task_;
};

class Engine {
 public:
  using Work = UniqueFunction<void(TaskContext&)>;
  using AsyncWork = UniqueFunction<void(TaskContext&, Completion)>;

  // Waits for all tasks. Failures that nobody waited for are logged.
  virtual ~Engine() = default;

  virtual Variable new_variable() = 0;

  // Runs `work` after every earlier task that conflicts. Returns at once; a thread outside the engine is held back
  // while `EngineOptions::queue_limit` tasks are unfinished. A variable may occur several times and in both spans (then
  // it is written, and its old value is read). Thread-safe.
  //
  // On an accelerator the task is *issued* when `work` returns and *completed* when the device has done it. A dependent
  // task on the same kind of accelerator starts on issued, ordered by streams and events; tasks of other devices and
  // waiting threads start on completed. Closures live until completed.
  //
  // If `work` throws, or one of the `reads` is poisoned (then `work` does not run), every variable in `writes` is
  // poisoned: each wait for it throws the same kind of Error, naming the task, until a task that does not read it
  // writes it. Undefined: waiting inside a task (asserted; throws InvalidArgument).
  virtual void push(const TaskInfo& info, std::span<const Variable> reads, std::span<const Variable> writes,
                    Work work) = 0;

  // The same for work that ends later: the task is complete when the Completion says so. The lane is free in between.
  virtual void push_async(const TaskInfo& info, std::span<const Variable> reads, std::span<const Variable> writes,
                          AsyncWork work) = 0;

  // Blocks until every task pushed so far that writes `variable` is complete; throws if it is poisoned.
  virtual void wait(const Variable& variable) = 0;

  // Blocks until every task pushed so far that reads or writes `variable` is complete. Does not throw for poison.
  virtual void wait_unused(const Variable& variable) = 0;

  // Blocks until all tasks are complete; throws the first failure that no wait has thrown since the last wait_all.
  virtual void wait_all() = 0;

  // Observers are called on the engine's threads, from the next task on, and must be thread-safe.
  virtual void add_observer(std::shared_ptr<EngineObserver> observer) = 0;
};

struct EngineOptions {
  int cpu_lanes = 1;                 // threads of each CPU device's compute pool; each has its share of the core budget
  int io_threads = 2;                // threads of the other lanes of the CPU
  std::int64_t queue_limit = 16384;  // unfinished tasks before outside producers are held back
};

std::unique_ptr<Engine> make_threaded_engine(const EngineOptions& options = {});

// Runs each task to completion inside push(). Oracle and debugging aid.
std::unique_ptr<Engine> make_serial_engine();

// Used by arrays unless told otherwise, made at first use: threaded, or PACELINE_ENGINE. What waits at exit never runs.
Engine& default_engine();

// Marks the calling thread as one that the queue's bound never holds back (the transport's threads: they deliver the
// completions that shorten the queue).
void never_hold_back_this_thread();

namespace detail {
// Which task the calling thread runs, to be compared; null outside of tasks.
const void* current_task();
}  // namespace detail

}  // namespace paceline

#pragma once
// The execution engine. Tasks declare the variables that they read and those that they write. Tasks that conflict run
// in push order; all others may run at once. The threaded engine gives the serial engine's result for every program.

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

// What tasks read and write, usually one for a block of memory. A handle: copies name the same variable. Thread-safe as
// a std::shared_ptr is.
class Variable {
 public:
  Variable() = default;
  // For engines: takes over one reference to the state.
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

  // The number of writing tasks pushed so far.
  std::uint64_t version() const;

  // False for a handle that names no variable.
  explicit operator bool() const { return state_ != nullptr; }
  friend bool operator==(const Variable& a, const Variable& b) { return a.state_ == b.state_; }
  // For engines: what the handle names; may be null.
  detail::VariableState* state() const { return state_; }

 private:
  detail::VariableState* state_ = nullptr;
};

// The queue of a device that a task runs in. On a CPU, kCompute is the compute lane, and the other lanes share a few
// I/O threads. On an accelerator each lane is a stream, with a thread that issues to it.
enum class Lane : std::uint8_t { kCompute, kCopyIn, kCopyOut, kCommunication };

// What the engine is told of a task.
struct TaskInfo {
  const char* name;            // for traces and errors; must outlive the engine, as a literal does
  Device device = {};          // where it runs
  Lane lane = Lane::kCompute;  // in which queue of that device
  int priority = 0;            // larger runs sooner among the tasks that may run; ties in push order
  // For tasks of a CPU: where nothing holds the task back, the pushing thread runs it before push() returns. The work
  // must be shorter than waking a thread, must never block, and must take no lock that a pusher may hold.
  bool at_once = false;
};

// What the engine tells the work of a task. Valid while the work runs.
struct TaskContext {
  Device device;           // where it runs
  detail::Stream* stream;  // where an accelerator's work is issued; never null
};

// Ends an asynchronous task. Call done() or fail() once, from any thread. A Completion that is destroyed unused fails
// the task with "dropped its completion". Can be moved, not copied.
class Completion {
 public:
  // For engines: whom a Completion tells.
  class Target {
   public:
    // Called once for a task; `error` is null where it succeeded.
    virtual void complete(void* task, std::exception_ptr error) = 0;

   protected:
    ~Target() = default;
  };

  // For engines: ends `task`, which only `target` understands.
  Completion(Target* target, void* task) : target_(target), task_(task) {}
  Completion(Completion&& other) noexcept : target_(other.target_), task_(other.task_) { other.target_ = nullptr; }
  Completion& operator=(Completion&&) = delete;
  ~Completion();

  // The task succeeded.
  void done() { finish(nullptr); }
  // The task failed with `error`, which poisons what it writes. A null `error` stands for an Error that says no more.
  void fail(std::exception_ptr error);

 private:
  void finish(std::exception_ptr error);
  Target* target_;
  void* task_;
};

// Runs tasks. All functions are thread-safe. Outside of tasks any thread may call them; inside a task only those that
// do not wait.
class Engine {
 public:
  // What a task does; called once, on a thread of the engine.
  using Work = UniqueFunction<void(TaskContext&)>;
  // The same for a task that ends when its Completion is called.
  using AsyncWork = UniqueFunction<void(TaskContext&, Completion)>;

  // Waits for all tasks. Failures that nobody waited for are logged.
  virtual ~Engine() = default;

  // A new variable. The engine must outlive it.
  virtual Variable new_variable() = 0;

  // Runs `work` after every earlier task that conflicts. Returns at once, but a thread outside the engine is held back
  // while `EngineOptions::queue_limit` tasks are unfinished. A variable may occur several times, and in both spans:
  // then the task writes it and may read its old value. Throws InvalidArgument for an empty or foreign variable.
  //
  // A task on an accelerator is issued when `work` returns, and completed when the device has done it. A dependent task
  // on the same kind of accelerator starts once this one is issued; streams and events keep the order. Tasks of other
  // devices and waiting threads start once it is completed. The closure lives until then.
  //
  // If `work` throws, every variable in `writes` is poisoned. If one of the `reads` is poisoned, `work` does not run,
  // and the same happens. Each wait for a poisoned variable throws the same kind of Error, which names the task, until
  // a task that does not read the variable writes it. A wait inside a task is asserted, and throws InvalidArgument.
  virtual void push(const TaskInfo& info, std::span<const Variable> reads, std::span<const Variable> writes,
                    Work work) = 0;

  // The same for work that ends later: the task is complete when its Completion is called. Its lane is free meanwhile.
  virtual void push_async(const TaskInfo& info, std::span<const Variable> reads, std::span<const Variable> writes,
                          AsyncWork work) = 0;

  // Blocks until every task pushed so far that writes `variable` is complete. Throws its failure if it is poisoned.
  virtual void wait(const Variable& variable) = 0;

  // Blocks until every task pushed so far that reads or writes `variable` is complete. Does not throw for poison.
  virtual void wait_unused(const Variable& variable) = 0;

  // Blocks until all tasks are complete; throws the first failure that no wait has thrown since the last wait_all.
  virtual void wait_all() = 0;

  // From the next task on, the engine's threads call the observer, which must be thread-safe.
  virtual void add_observer(std::shared_ptr<EngineObserver> observer) = 0;
};

// How large an engine is.
struct EngineOptions {
  int cpu_lanes = 1;                 // threads of each CPU device's compute pool; each has its share of the core budget
  int io_threads = 2;                // threads of the other lanes of the CPU
  std::int64_t queue_limit = 16384;  // unfinished tasks before outside producers are held back
};

// An engine with threads of its own for each device. Throws InvalidArgument for options below 1.
std::unique_ptr<Engine> make_threaded_engine(const EngineOptions& options = {});

// An engine that runs each task to completion inside push(); for tests and debugging.
std::unique_ptr<Engine> make_serial_engine();

// The engine of arrays unless they name another: threaded, or what PACELINE_ENGINE says (`threaded` or `serial`). Made
// at first use. Tasks that still wait when the process exits never run.
Engine& default_engine();

// Marks the calling thread as one that the queue's limit never holds back. For the transport's threads, which deliver
// the completions that shorten the queue.
void never_hold_back_this_thread();

namespace detail {
// Which task the calling thread runs, to be compared; null outside of tasks.
const void* current_task();
}  // namespace detail

}  // namespace paceline

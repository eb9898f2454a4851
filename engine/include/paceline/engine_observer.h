#pragma once
// Observers see tasks start and finish: traces and counters. The engine itself carries no instrumentation.

#include <paceline/engine.h>

#include <chrono>
#include <memory>
#include <string>

namespace paceline {

// The start or the end of a task.
struct TaskEvent {
  std::uint64_t id;                            // of the task, in push order, from 1
  TaskInfo info;                               // as it was pushed
  std::chrono::steady_clock::time_point time;  // of the start or the end
  int thread;                                  // small number of the engine's thread
  bool failed;                                 // at the end: it threw, or was skipped as it read a poisoned variable
};

// Is told of every task (Engine::add_observer()). Several threads call it at a time.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  // Before the work runs, on the thread that runs it.
  virtual void on_start(const TaskEvent& event) = 0;
  // When the task is complete: for accelerators once the device is done, for asynchronous tasks after their Completion.
  virtual void on_finish(const TaskEvent& event) = 0;
};

// Collects tasks and writes them in Chrome's trace format, which chrome://tracing and Perfetto open. It writes when it
// is destroyed, then without throwing, and in flush().
class ChromeTrace : public EngineObserver {
 public:
  // Writes the file with all tasks so far. Throws IoError.
  virtual void flush() = 0;
};
// A trace for the file `path`, to be given to Engine::add_observer().
std::shared_ptr<ChromeTrace> make_chrome_trace(const std::string& path);

}  // namespace paceline

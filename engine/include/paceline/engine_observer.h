#pragma once
// Sees tasks start and finish; tracing and counters are observers, the engine itself carries no instrumentation.

#include <paceline/engine.h>

#include <chrono>
#include <memory>
#include <string>

namespace paceline {

struct TaskEvent {
  std::uint64_t id;  // in push order, from 1
  TaskInfo info;
  std::chrono::steady_clock::time_point time;
  int thread;   // small number of the engine thread
  bool failed;  // on_finish only: threw, or was skipped because it read a poisoned variable
};

class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void on_start(const TaskEvent& event) = 0;
  // After completion: for accelerators when the device is done, for asynchronous tasks when their Completion ran.
  virtual void on_finish(const TaskEvent& event) = 0;
};

// Collects tasks and writes them to `path` in Chrome's trace format (open in chrome://tracing or Perfetto) when it is
// destroyed or flush() is called. Throws IoError from flush() only.
class ChromeTrace : public EngineObserver {
 public:
  virtual void flush() = 0;
};
std::shared_ptr<ChromeTrace> make_chrome_trace(const std::string& path);

}  // namespace paceline

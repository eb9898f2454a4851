#pragma once
// Lets the array check that a task touches only what it declared. Not installed.

#include <paceline/engine.h>

#include <span>
#include <string>

namespace paceline::detail {

// On a thread that runs a task which declared neither to read nor to write `variable`, the task's name; else null.
const char* task_that_did_not_declare(const Variable& variable);

// May the calling thread work for a task: does it run one, or is there one that uses `variable` or waits for it? The
// work of an asynchronous task goes on in threads that the engine does not know.
bool may_work_for_a_task(const Variable& variable);

// Is this the checking build (PACELINE_CHECK_ACCESS)? And does NDArray::data() ask the question above?
bool checks_access();
bool checks_data();

struct Declaration {
  const VariableState* variable;
  bool writes;
};

// Watches over memory while tasks of a CPU run; the checking build only.
class TaskGuard {
 public:
  // The calling thread begins the work of a task. `alone`: the engine runs no other task meanwhile.
  virtual void enter(const Engine* engine, const char* task, std::span<const Declaration> declared, bool alone) = 0;
  // The work that this thread entered last has returned; what it did wrong, or nothing.
  virtual std::string leave() = 0;

 protected:
  ~TaskGuard() = default;
};

// One for all engines, from the next task on; it lives until the process ends.
void set_task_guard(TaskGuard* guard);
TaskGuard* task_guard();

}  // namespace paceline::detail

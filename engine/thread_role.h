#pragma once
// What the engine knows about the calling thread.

#include <paceline/detail/checking.h>
#include <paceline/detail/declared.h>
#include <paceline/error.h>
#include <paceline/log.h>

#include <exception>
#include <utility>

namespace paceline {
namespace detail {

struct ThreadRole {
  const Engine* running = nullptr;  // the engine one of whose tasks this thread is running
  const void* task = nullptr;       // that task, its name, and a function that says whether it declared a variable
  const char* task_name = nullptr;
  bool (*declares)(const void* task, const VariableState* variable) = nullptr;
  // No limit on tasks or on their memory holds this thread back. True for threads of engines, for others while they run
  // or complete a task, and after never_hold_back_this_thread().
  bool never_held_back = false;
  int number = 0;                              // of an engine's thread; 0 for all others
  std::exception_ptr* late_failure = nullptr;  // for fail_late(), while the thread destroys a closure that may call it
};

ThreadRole& thread_role();

// Throws InvalidArgument on a thread that runs a task of `engine`.
void require_outside_task(const Engine* engine);

// Destroys the closure that `destroy` destroys; what that said with fail_late(), or null.
template <class Destroy>
std::exception_ptr late_failure_of(const Destroy& destroy) {
  std::exception_ptr found;
  ThreadRole& role = thread_role();
  std::exception_ptr* const before = std::exchange(role.late_failure, &found);
  destroy();
  role.late_failure = before;
  return found;
}

// The calling thread runs a task of `engine` while this lives. Task has `info`, `declares(variable)` and
// `declarations()`.
class InsideTask {
 public:
  template <class Task>
  InsideTask(const Engine* engine, const Task& task, bool alone = false) : role_(thread_role()), before_(role_) {
    role_.running = engine;
    role_.task = &task;
    role_.task_name = task.info.name;
    role_.declares = [](const void* running, const VariableState* variable) {
      return static_cast<const Task*>(running)->declares(variable);
    };
    role_.never_held_back = true;
    if constexpr (kChecksAccess) {
      if (!task.info.device.is_cpu() || !(guard_ = task_guard())) return;
      guard_->enter(engine, task.info.name, task.declarations(), alone);
    }
  }
  ~InsideTask() {
    role_ = before_;
    if constexpr (kChecksAccess)
      if (const std::string wrong = leave(); !wrong.empty()) LOG(ERROR) << wrong;
  }
  InsideTask(const InsideTask&) = delete;
  InsideTask& operator=(const InsideTask&) = delete;

  // To be called when the work has returned. In the checking build it throws InvalidArgument where the work touched
  // what it must not.
  void check() {
    if constexpr (kChecksAccess)
      if (const std::string wrong = leave(); !wrong.empty()) throw InvalidArgument(wrong);
  }

 private:
  std::string leave() {
    TaskGuard* const guard = std::exchange(guard_, nullptr);
    return guard ? guard->leave() : std::string();
  }

  ThreadRole& role_;
  const ThreadRole before_;
  TaskGuard* guard_ = nullptr;
};

}  // namespace detail
}  // namespace paceline

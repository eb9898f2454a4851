#pragma once
// What the engine knows about the calling thread.

namespace paceline {

class Engine;

namespace detail {

struct VariableState;

struct ThreadRole {
  const Engine* running = nullptr;  // the engine one of whose tasks this thread is running
  const void* task = nullptr;       // that task, its name, and a function that says whether it declared a variable
  const char* task_name = nullptr;
  bool (*declares)(const void* task, const VariableState* variable) = nullptr;
  bool never_held_back = false;  // threads of engines, and those that said so
  int number = 0;                // of an engine's thread; 0 for all others
};

ThreadRole& thread_role();

// Throws InvalidArgument on a thread that runs a task of `engine`.
void require_outside_task(const Engine* engine);

// The calling thread runs a task of `engine` while this lives. Task has `info` and `declares(variable)`.
class InsideTask {
 public:
  template <class Task>
  InsideTask(const Engine* engine, const Task& task) : role_(thread_role()), before_(role_) {
    role_.running = engine;
    role_.task = &task;
    role_.task_name = task.info.name;
    role_.declares = [](const void* running, const VariableState* variable) {
      return static_cast<const Task*>(running)->declares(variable);
    };
    role_.never_held_back = true;
  }
  ~InsideTask() { role_ = before_; }
  InsideTask(const InsideTask&) = delete;
  InsideTask& operator=(const InsideTask&) = delete;

 private:
  ThreadRole& role_;
  const ThreadRole before_;
};

}  // namespace detail
}  // namespace paceline

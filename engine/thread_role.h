#pragma once
// What the engine knows about the calling thread.

namespace paceline {

class Engine;

namespace detail {

struct ThreadRole {
  const Engine* running = nullptr;  // the engine one of whose tasks this thread is running
  bool never_held_back = false;     // threads of engines, and those that said so
  int number = 0;                   // of an engine's thread; 0 for all others
};

ThreadRole& thread_role();

// Throws InvalidArgument on a thread that runs a task of `engine`.
void require_outside_task(const Engine* engine);

// The calling thread runs a task of `engine` while this lives.
class InsideTask {
 public:
  explicit InsideTask(const Engine* engine) : role_(thread_role()), before_(role_) {
    role_.running = engine;
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

#pragma once
// One pushed task. Lives in a slab from push until it is complete.

#include "variable.h"

#include <paceline/detail/declared.h>
#include <paceline/detail/slab.h>

#include <atomic>
#include <span>
#include <vector>

namespace paceline::detail {

class WorkerPool;

struct alignas(64) Task {
  enum class Kind : std::uint8_t { kWork, kAsyncWork, kWaitingThread };
  enum AsyncState : std::uint8_t { kReturned = 1, kCompleted = 2 };
  static constexpr std::size_t kInlineAccesses = 6;

  // Takes memory from the slab. `reads` and `writes` become one access per variable, in the order of their addresses,
  // so that two pushing threads lock them in the same order. Throws InvalidArgument for an empty variable or one of
  // another engine.
  static Task* make(Kind kind, const TaskInfo& info, WorkerPool* pool, std::uint32_t engine,
                    std::span<const Variable> reads, std::span<const Variable> writes);
  static void free(Task* task);

  std::span<Access> all_accesses() { return {accesses, access_count}; }
  bool declares(const VariableState* variable) const;
  std::vector<Declaration> declarations() const;
  void destroy_closure() { kind == Kind::kAsyncWork ? async_work.reset() : work.reset(); }

  // Accesses that have not been granted, and one for the pusher while it works.
  std::atomic<std::uint32_t> pending;
  Kind kind;
  std::atomic<std::uint8_t> async_state = 0;
  std::uint32_t access_count = 0;
  TaskInfo info;
  std::uint64_t id = 0;
  WorkerPool* pool;
  Access* accesses = inline_accesses;
  Task* next = nullptr;  // in a list of tasks that may run
  union {
    Engine::Work work;
    Engine::AsyncWork async_work;
  };
  Access inline_accesses[kInlineAccesses];
  FailurePointer failure;
  FailurePointer completed_with;  // what the Completion of an asynchronous task said

 private:
  Task(Kind task_kind, const TaskInfo& task_info, WorkerPool* task_pool)
      : pending(0), kind(task_kind), info(task_info), pool(task_pool), work() {
    if (kind == Kind::kAsyncWork) new (&async_work) Engine::AsyncWork();
  }
  ~Task();
};

// Tasks that may run, in the order in which they were found.
class TaskList {
 public:
  void add(Task* task) {
    task->next = nullptr;
    (last_ ? last_->next : first_) = task;
    last_ = task;
  }
  Task* take() {
    Task* task = first_;
    if (task && !(first_ = task->next)) last_ = nullptr;
    return task;
  }
  bool empty() const { return !first_; }

 private:
  Task* first_ = nullptr;
  Task* last_ = nullptr;
};

}  // namespace paceline::detail

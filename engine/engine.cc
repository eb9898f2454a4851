#include "thread_role.h"
#include "variable.h"

#include <paceline/detail/late_failure.h>

#include <atomic>

namespace paceline {
namespace detail {

ThreadRole& thread_role() {
  static thread_local ThreadRole role;
  return role;
}

void fail_late(std::exception_ptr failure) noexcept {
  if (std::exception_ptr* const found = thread_role().late_failure) *found = std::move(failure);
}

void require_outside_task(const Engine* engine) {
  require(thread_role().running != engine,
          "a task may not wait for its own engine; let a later task read the variable");
}

const char* task_that_did_not_declare(const Variable& variable) {
  const ThreadRole& role = thread_role();
  return role.task && !role.declares(role.task, variable.state()) ? role.task_name : nullptr;
}

bool may_work_for_a_task(const Variable& variable) {
  if (thread_role().task) return true;
  VariableState& state = *variable.state();
  const SpinGuard guard(state.lock);
  return !state.idle();
}

bool checks_access() { return kChecksAccess; }
bool checks_data() { return kChecksData; }

namespace {
std::atomic<TaskGuard*> the_task_guard = nullptr;
}

void set_task_guard(TaskGuard* guard) { the_task_guard.store(guard, std::memory_order_release); }
TaskGuard* task_guard() { return the_task_guard.load(std::memory_order_acquire); }

}  // namespace detail

// NOLINTNEXTLINE(bugprone-exception-escape): without memory for the error the program may end
Completion::~Completion() {
  if (target_) fail(std::make_exception_ptr(Error("dropped its completion")));
}

void Completion::fail(std::exception_ptr error) {
  finish(error ? std::move(error) : std::make_exception_ptr(Error("failed without saying why")));
}

void Completion::finish(std::exception_ptr error) {
  require(target_ != nullptr, "this completion has been used already");
  std::exchange(target_, nullptr)->complete(task_, std::move(error));
}

const void* detail::current_task() { return thread_role().task; }

void never_hold_back_this_thread() { detail::thread_role().never_held_back = true; }

}  // namespace paceline

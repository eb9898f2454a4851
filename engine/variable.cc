#include "variable.h"

#include "task.h"

#include <paceline/detail/slab.h>

#include <algorithm>

namespace paceline {
namespace detail {

bool VariableState::enter(Access& access) {
  if (!first_waiting && may_run(access.writes(), access.task()->info.device.kind)) {
    run(access);
    return true;
  }
  access.next = nullptr;
  (first_waiting ? last_waiting->next : first_waiting) = &access;
  last_waiting = &access;
  return false;
}

Access* VariableState::grant_waiting() {
  Access* granted = nullptr;
  Access** end = &granted;
  while (first_waiting && may_run(first_waiting->writes(), first_waiting->task()->info.device.kind)) {
    Access* access = first_waiting;
    first_waiting = access->next;
    access->next = nullptr;
    run(*access);
    *end = access;
    end = &access->next;
  }
  return granted;
}

bool InFlight::conflicts(bool write, DeviceKind kind) const {
  for (std::size_t other = 0; other < kKinds; ++other)
    if (other != static_cast<std::size_t>(kind) && (writes[other] > 0 || (write && reads[other] > 0))) return true;
  return false;
}

std::vector<std::shared_ptr<Event>> VariableState::events_before(const Access& access, const Stream& stream) {
  std::vector<std::shared_ptr<Event>> events;
  const SpinGuard guard(lock);
  if (!in_flight) return events;
  for (const InFlight::Entry& entry : in_flight->last)
    if (entry.stream != &stream && (access.writes() || entry.write)) events.push_back(entry.event);
  return events;
}

void VariableState::add_in_flight(const Access& access, Stream& stream, std::shared_ptr<Event> event) {
  if (!in_flight) in_flight = std::make_unique<InFlight>();
  const bool write = access.writes();
  const Task& task = *access.task();
  // A reader's event stands for those of earlier readers in its stream where one thread issues them and adds them here.
  // An asynchronous task is issued by the thread that completes it. Its event may be older than one that is here
  // already.
  const bool in_order = task.kind == Task::Kind::kWork;
  // A writer's stream waits for all earlier entries, so the writer's event stands for them.
  std::erase_if(in_flight->last, [&](const InFlight::Entry& earlier) {
    return write || (!earlier.write && earlier.stream == &stream && in_order && earlier.in_order);
  });
  in_flight->last.push_back({task.id, write, in_order, &stream, std::move(event)});
  ++(write ? in_flight->writes : in_flight->reads)[static_cast<std::size_t>(task.info.device.kind)];
}

void VariableState::remove_in_flight(const Access& access) {
  const Task& task = *access.task();
  std::erase_if(in_flight->last, [&](const InFlight::Entry& entry) { return entry.task == task.id; });
  --(access.writes() ? in_flight->writes : in_flight->reads)[static_cast<std::size_t>(task.info.device.kind)];
}

void VariableState::fail_in_flight(const Access& access, const FailurePointer& failure) {
  const std::uint64_t task = access.task()->id;
  const bool is_last = std::ranges::any_of(in_flight->last, [&](const auto& entry) { return entry.task == task; });
  if (access.writes() && is_last) poison = failure;
}

FailurePointer VariableState::poison_in_flight() {
  const SpinGuard guard(lock);
  return poison;
}

std::uint32_t new_engine_number() {
  static std::atomic<std::uint32_t> engines = 0;
  return ++engines;
}

Variable make_variable(std::uint32_t engine) {
  auto* state = new (Slab<VariableState>::take()) VariableState;
  state->engine = engine;
  return Variable(state);
}

void free_variable(VariableState* state) {
  state->~VariableState();
  Slab<VariableState>::give(state);
}

void retain(VariableState* state) { state->handles.fetch_add(1, std::memory_order_relaxed); }

void release(VariableState* state) {
  if (state->handles.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  {
    const SpinGuard guard(state->lock);
    state->abandoned = true;
    if (!state->idle()) return;
  }
  free_variable(state);
}

}  // namespace detail

std::uint64_t Variable::version() const { return state_->version.load(std::memory_order_relaxed); }

}  // namespace paceline

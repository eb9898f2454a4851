#include "variable.h"

#include "slab.h"
#include "task.h"

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

bool VariableState::in_flight_conflict(bool writes, DeviceKind kind) const {
  return std::any_of(in_flight->begin(), in_flight->end(),
                     [&](const InFlight& entry) { return (writes || entry.write) && entry.kind != kind; });
}

std::vector<std::shared_ptr<Event>> VariableState::events_before(const Access& access, const Stream& stream) {
  std::vector<std::shared_ptr<Event>> events;
  const SpinGuard guard(lock);
  if (!in_flight) return events;
  for (const InFlight& entry : *in_flight)
    if (entry.stream != &stream && (access.writes() || entry.write)) events.push_back(entry.event);
  return events;
}

void VariableState::add_in_flight(InFlight entry) {
  if (!in_flight) in_flight = std::make_unique<std::vector<InFlight>>();
  // A writer's stream waits for all before it, and a stream's later reader for its earlier ones: they need no entry.
  std::erase_if(*in_flight, [&](const InFlight& earlier) {
    return entry.write || (!earlier.write && earlier.stream == entry.stream);
  });
  in_flight->push_back(std::move(entry));
}

void VariableState::remove_in_flight(std::uint64_t task) {
  if (in_flight) std::erase_if(*in_flight, [&](const InFlight& entry) { return entry.task == task; });
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

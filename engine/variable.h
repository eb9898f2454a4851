#pragma once
// The state of one variable: who uses it and who waits for it, in push order. One spin lock per variable, held for a
// few instructions; no lock is shared by two variables.
//
// An access goes through: waiting -> running -> (accelerators only: in flight, that is issued and not completed) ->
// gone. Waiting accesses are granted first come, first served, consecutive reads together. A task that runs on the same
// kind of accelerator does not wait for what is in flight, because its stream will; everybody else does.

#include "failure.h"

#include <paceline/detail/device_runtime.h>
#include <paceline/detail/spin_lock.h>
#include <paceline/engine.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace paceline::detail {

struct Task;

enum AccessMode : std::uintptr_t { kRead = 1, kWrite = 2 };

// One task's use of one variable.
class Access {
 public:
  // A variable and what becomes of it, in one word.
  static std::uintptr_t tagged(const VariableState* variable, std::uintptr_t mode) {
    return reinterpret_cast<std::uintptr_t>(variable) | mode;
  }
  static VariableState* variable(std::uintptr_t tagged) {
    return reinterpret_cast<VariableState*>(tagged & ~std::uintptr_t{kRead | kWrite});
  }

  void set(std::uintptr_t tagged, Task* task) {
    tagged_ = tagged;
    task_ = task;
  }
  VariableState* variable() const { return variable(tagged_); }
  bool reads() const { return tagged_ & kRead; }
  bool writes() const { return tagged_ & kWrite; }
  Task* task() const { return task_; }

  Access* next = nullptr;

 private:
  std::uintptr_t tagged_ = 0;
  Task* task_ = nullptr;
};

// The accesses of tasks whose work is in a stream of an accelerator and not known to be done.
struct InFlight {
  struct Entry {
    std::uint64_t task;
    bool write;
    bool in_order;  // issued by its pool's thread
    Stream* stream;
    std::shared_ptr<Event> event;
  };
  static constexpr std::size_t kKinds = 3;  // of devices

  // Those that later work must follow; all others come before one of these.
  std::vector<Entry> last;
  std::array<std::uint32_t, kKinds> reads = {};
  std::array<std::uint32_t, kKinds> writes = {};

  bool empty() const { return reads == decltype(reads){} && writes == decltype(writes){}; }
  bool conflicts(bool write, DeviceKind kind) const;
};

struct alignas(64) VariableState {
  SpinLock lock;
  bool writer_running PACELINE_GUARDED_BY(lock) = false;
  bool abandoned PACELINE_GUARDED_BY(lock) = false;  // the last handle is gone
  std::atomic<std::uint32_t> handles = 1;
  std::uint32_t readers_running PACELINE_GUARDED_BY(lock) = 0;
  std::uint32_t engine = 0;
  std::atomic<std::uint64_t> version = 0;
  Access* first_waiting PACELINE_GUARDED_BY(lock) = nullptr;
  Access* last_waiting PACELINE_GUARDED_BY(lock) = nullptr;
  // Written by running writers only, read by running readers and writers; under the lock where they are tasks of
  // accelerators, for work of theirs can fail later, while it is in flight.
  FailurePointer poison;
  std::unique_ptr<InFlight> in_flight PACELINE_GUARDED_BY(lock);  // null until an accelerator uses the variable

  bool idle() const PACELINE_REQUIRES(lock) {
    return !writer_running && readers_running == 0 && !first_waiting && (!in_flight || in_flight->empty());
  }
  // May an access of a task of that kind of device begin? (kCpu: also waiting threads.)
  bool may_run(bool writes, DeviceKind kind) const PACELINE_REQUIRES(lock) {
    if (writer_running || (writes && readers_running > 0)) return false;
    return !in_flight || !in_flight->conflicts(writes, kind);
  }
  // Lets the access begin, or appends it and returns false.
  bool enter(Access& access) PACELINE_REQUIRES(lock);
  void stop_running(const Access& access) PACELINE_REQUIRES(lock) {
    if (access.writes()) {
      writer_running = false;
    } else {
      --readers_running;
    }
  }
  void bump_version() PACELINE_REQUIRES(lock) {
    version.store(version.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  // Lets those begin that may, and returns them as a list.
  Access* grant() PACELINE_REQUIRES(lock) { return first_waiting ? grant_waiting() : nullptr; }
  // What the access follows and is in flight in other streams than its own.
  std::vector<std::shared_ptr<Event>> events_before(const Access& access, const Stream& stream) PACELINE_EXCLUDES(lock);
  void add_in_flight(const Access& access, Stream& stream, std::shared_ptr<Event> event) PACELINE_REQUIRES(lock);
  void remove_in_flight(const Access& access) PACELINE_REQUIRES(lock);
  // Poisons what the access wrote, unless a later one has overwritten it.
  void fail_in_flight(const Access& access, const FailurePointer& failure) PACELINE_REQUIRES(lock);
  FailurePointer poison_in_flight() PACELINE_EXCLUDES(lock);

 private:
  void run(const Access& access) PACELINE_REQUIRES(lock) {
    if (access.writes()) {
      writer_running = true;
    } else {
      ++readers_running;
    }
  }
  Access* grant_waiting() PACELINE_REQUIRES(lock);
};

// A number for each engine; a variable carries that of the engine that made it.
std::uint32_t new_engine_number();
Variable make_variable(std::uint32_t engine);

// Frees the state if the last handle is gone. `state` is not locked, and the caller was its last user.
void free_variable(VariableState* state);

}  // namespace paceline::detail

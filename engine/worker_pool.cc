#include "worker_pool.h"

#include "thread_role.h"

#include <paceline/cores.h>
#include <paceline/detail/start_thread.h>

#include <chrono>
#include <utility>

namespace paceline::detail {
namespace {

// An idle core of a virtual machine takes 25 to 40 microseconds to wake. Longer spinning would take time from other
// threads on the same cores.
constexpr int kPauses = 100;
constexpr int kYields = 100;

// On busy cores a yield costs a time slice, while a thread that sleeps is woken at once. So a worker that has met busy
// cores sleeps without yielding for this many times.
constexpr int kSleepsOnBusyCores = 64;

// Returns false if other threads had the core for long.
bool yield_briefly() {
  constexpr std::chrono::microseconds kLong{100};
  const auto begin = std::chrono::steady_clock::now();
  sched_yield();
  return std::chrono::steady_clock::now() - begin < kLong;
}

}  // namespace

WorkerPool::WorkerPool(TaskRunner& runner, Settings settings) : runner_(runner), settings_(std::move(settings)) {
  try {
    for (int i = 0; i < settings_.threads; ++i)
      threads_.push_back(start_thread(str("thread ", i + 1, " of ", settings_.threads, " of an engine"),
                                      [this, i] { serve(Worker{settings_.first_worker + i}); }));
  } catch (...) {
    end();
    throw;
  }
}

WorkerPool::~WorkerPool() { end(); }

void WorkerPool::end() {
  {
    const SpinGuard guard(lock_);
    stopping_ = true;
  }
  for (std::size_t i = 0; i < threads_.size(); ++i) wake_.post();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::add(Task* task) {
  bool wake = false;
  {
    const SpinGuard guard(lock_);
    ready_.add(task);
    ready_hint_.store(ready_.size(), std::memory_order_relaxed);
    if (sleeping_ > 0 && searching_ == 0) {
      --sleeping_;
      ++searching_;
      wake = true;
    }
  }
  if (wake) wake_.post();
}

void WorkerPool::serve(Worker worker) {
  name_thread(settings_.name.c_str());
  set_team_size(settings_.team_size);
  thread_role().never_held_back = true;
  thread_role().number = worker.number;
  while (Task* task = next(worker)) runner_.run_task(task, worker);
}

void WorkerPool::rest() {
  const SpinGuard guard(lock_);
  resting_ = true;
}

bool WorkerPool::is_running() {
  const SpinGuard guard(lock_);
  return running_ > 0;
}

Task* WorkerPool::take(Worker& worker) {
  if (ready_.empty() || resting_) return nullptr;
  Task* task = ready_.take();
  ready_hint_.store(ready_.size(), std::memory_order_relaxed);
  ++running_;
  worker.running = true;
  return task;
}

Task* WorkerPool::next(Worker& worker) {
  {
    const SpinGuard guard(lock_);
    if (std::exchange(worker.running, false)) --running_;
    if (Task* task = take(worker)) return task;
    ++searching_;
  }
  runner_.out_of_work(worker);
  return take_spinning(worker);
}

void WorkerPool::spin(Worker& worker) const {
  const auto is_idle = [this] { return ready_hint_.load(std::memory_order_relaxed) == 0; };
  for (int i = 0; i < kPauses && is_idle(); ++i) pause_briefly();
  if (worker.sleeps_on_busy_cores > 0) {
    --worker.sleeps_on_busy_cores;
    return;
  }
  for (int i = 0; i < kYields && is_idle(); ++i) {
    if (yield_briefly()) continue;
    worker.sleeps_on_busy_cores = kSleepsOnBusyCores;
    return;
  }
}

Task* WorkerPool::take_spinning(Worker& worker) {
  for (;;) {
    spin(worker);
    {
      bool wake_another = false;
      Task* task = nullptr;
      bool stop = false;
      {
        const SpinGuard guard(lock_);
        --searching_;
        task = take(worker);
        if (task) {
          if (!ready_.empty() && sleeping_ > 0 && searching_ == 0) {
            --sleeping_;
            ++searching_;
            wake_another = true;
          }
        } else if (stopping_) {
          stop = true;
        } else {
          ++sleeping_;
        }
      }
      if (wake_another) wake_.post();
      if (task || stop) return task;
    }
    wake_.wait();
    // Whoever woke this thread has counted it as searching, unless the pool is stopping.
    const SpinGuard guard(lock_);
    if (stopping_) return nullptr;
  }
}

}  // namespace paceline::detail

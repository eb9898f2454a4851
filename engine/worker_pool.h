#pragma once
// The threads that serve one queue: a CPU device's compute lane, the I/O lanes, or one stream of an accelerator.

#include "ready_queue.h"
#include "task.h"

#include <paceline/detail/device_runtime.h>
#include <paceline/detail/spin_lock.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <semaphore.h>

namespace paceline::detail {

// Wakes as many threads as it is posted.
class Semaphore {
 public:
  Semaphore() { sem_init(&semaphore_, 0, 0); }
  ~Semaphore() { sem_destroy(&semaphore_); }
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;
  void post() { sem_post(&semaphore_); }
  void wait() {
    while (sem_wait(&semaphore_) != 0) continue;
  }

 private:
  sem_t semaphore_;
};

struct Worker {
  int number;                    // of the engine's threads, from 1
  std::uint32_t unnoticed = 0;   // tasks completed since the last Progress::notice()
  bool running = false;          // a task that was taken
  int sleeps_on_busy_cores = 0;  // times that it will sleep without yielding first
};

// What a pool asks of its engine. Called on the pool's threads.
class TaskRunner {
 public:
  virtual void run_task(Task* task, Worker& worker) = 0;
  // The thread has found no work; it will look again, and then sleep.
  virtual void out_of_work(Worker& worker) = 0;

 protected:
  ~TaskRunner() = default;
};

class WorkerPool {
 public:
  struct Settings {
    std::string name;
    int threads;
    int team_size;  // OpenMP threads of each
    std::unique_ptr<Stream> stream;
    int first_worker;
  };

  // Throws OutOfMemory where the system makes no more threads.
  WorkerPool(TaskRunner& runner, Settings settings);
  // All tasks have run.
  ~WorkerPool();

  Stream& stream() { return *settings_.stream; }

  void add(Task* task);

  // From now on tasks that were not begun stay where they are, for ever.
  void rest();
  bool is_running();

 private:
  void end();
  void serve(Worker worker);
  Task* next(Worker& worker);
  // Waits for a task for some microseconds.
  void spin(Worker& worker) const;
  Task* take_spinning(Worker& worker);
  Task* take(Worker& worker) PACELINE_REQUIRES(lock_);

  TaskRunner& runner_;
  const Settings settings_;
  std::vector<std::thread> threads_;

  alignas(64) SpinLock lock_;
  ReadyQueue ready_ PACELINE_GUARDED_BY(lock_);
  int searching_ PACELINE_GUARDED_BY(lock_) = 0;  // threads that spin, or have been woken and not arrived
  int sleeping_ PACELINE_GUARDED_BY(lock_) = 0;
  bool stopping_ PACELINE_GUARDED_BY(lock_) = false;
  bool resting_ PACELINE_GUARDED_BY(lock_) = false;
  int running_ PACELINE_GUARDED_BY(lock_) = 0;
  std::atomic<std::size_t> ready_hint_ = 0;  // the queue's size, for threads that spin
  Semaphore wake_;
};

}  // namespace paceline::detail

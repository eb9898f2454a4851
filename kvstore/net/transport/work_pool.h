#pragma once
// A few threads that do short jobs in the order of their arrival.

#include <paceline/cores.h>
#include <paceline/detail/start_thread.h>
#include <paceline/mutex.h>

#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace paceline {

class WorkPool {
 public:
  // Starts `threads` threads with the name `name`.
  WorkPool(int threads, const char* name) {
    for (int i = 0; i < threads; ++i)
      threads_.push_back(detail::start_thread("sealing frames", [this, name] { run(name); }));
  }
  ~WorkPool() { stop(); }
  WorkPool(const WorkPool&) = delete;

  std::size_t threads() const { return threads_.size(); }

  // Runs all jobs that were submitted before, and ends the threads. Later jobs are dropped.
  void stop() {
    {
      const Lock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_)
      if (thread.joinable()) thread.join();
  }

  // Thread-safe. Jobs do not throw.
  void submit(std::vector<std::function<void()>> jobs) {
    {
      const Lock lock(mutex_);
      if (stopping_) return;
      for (auto& job : jobs) jobs_.push_back(std::move(job));
    }
    jobs.size() == 1 ? changed_.notify_one() : changed_.notify_all();
  }

 private:
  void run(const char* name) {
    name_thread(name);
    become_single_threaded();
    for (;;) {
      std::function<void()> job;
      {
        const Lock lock(mutex_);
        changed_.wait(mutex_, [this]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return stopping_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> jobs_ PACELINE_GUARDED_BY(mutex_);
  bool stopping_ PACELINE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace paceline

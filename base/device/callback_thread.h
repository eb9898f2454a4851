#pragma once
// Runs call-backs one after the other on a thread of its own, because a device's own threads may not call the device.

#include <paceline/cores.h>
#include <paceline/mutex.h>

#include <deque>
#include <functional>
#include <thread>
#include <utility>

namespace paceline::detail {

class CallbackThread {
 public:
  explicit CallbackThread(const char* name) : thread_([this, name] { run(name); }) {}
  ~CallbackThread() {
    {
      const Lock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  // Thread-safe; must not throw when it runs.
  void post(std::function<void()> callback) {
    {
      const Lock lock(mutex_);
      callbacks_.push_back(std::move(callback));
    }
    changed_.notify_one();
  }

 private:
  void run(const char* name) {
    name_thread(name);
    become_single_threaded();
    std::deque<std::function<void()>> batch;
    for (;;) {
      {
        const Lock lock(mutex_);
        changed_.wait(mutex_, [this]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return stopping_ || !callbacks_.empty(); });
        if (callbacks_.empty()) return;
        batch.swap(callbacks_);
      }
      for (std::function<void()>& callback : batch) callback();
      batch.clear();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> callbacks_ PACELINE_GUARDED_BY(mutex_);
  bool stopping_ PACELINE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace paceline::detail

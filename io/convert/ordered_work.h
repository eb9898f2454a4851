#pragma once
// Results of several threads, handed out in order.

#include <paceline/detail/start_thread.h>
#include <paceline/mutex.h>

#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace paceline::io {

// Computes results 0 to count - 1, a bounded number of them ahead of the thread that takes them.
template <class Result>
class OrderedWork {
 public:
  // Makes a result by its number; called by one thread. It must not throw.
  using Body = std::function<void(std::size_t number, Result& result)>;

  // `make_body` is called once for each thread. What it throws, next() throws.
  OrderedWork(std::size_t count, int threads, std::function<Body()> make_body)
      : count_(count), bound_(static_cast<std::size_t>(threads) * 4), make_body_(std::move(make_body)) {
    try {
      for (int i = 0; i < threads; ++i) threads_.push_back(detail::start_thread("converting", [this] { work(); }));
    } catch (...) {
      stop();
      throw;
    }
  }

  ~OrderedWork() { stop(); }
  OrderedWork(const OrderedWork&) = delete;
  OrderedWork& operator=(const OrderedWork&) = delete;

  // The next result in order; called `count` times.
  std::unique_ptr<Result> next() {
    Lock lock(mutex_);
    changed_.wait(mutex_, [this]() PACELINE_NO_THREAD_SAFETY_ANALYSIS {
      return failure_ || (!window_.empty() && window_.front()->ready);
    });
    if (failure_) std::rethrow_exception(failure_);
    std::unique_ptr<Result> result = std::move(window_.front()->result);
    window_.pop_front();
    changed_.notify_all();
    return result;
  }

 private:
  struct Slot {
    std::unique_ptr<Result> result = std::make_unique<Result>();
    bool ready = false;
  };

  void stop() {
    {
      Lock lock(mutex_);
      next_ = count_;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void work() {
    try {
      const Body body = make_body_();
      for (;;) {
        const auto slot = std::make_shared<Slot>();
        std::size_t mine = 0;
        {
          Lock lock(mutex_);
          changed_.wait(mutex_, [this]() PACELINE_NO_THREAD_SAFETY_ANALYSIS {
            return next_ >= count_ || window_.size() < bound_;
          });
          if (next_ >= count_) return;
          mine = next_++;
          window_.push_back(slot);
        }
        body(mine, *slot->result);
        Lock lock(mutex_);
        slot->ready = true;
        changed_.notify_all();
      }
    } catch (...) {
      Lock lock(mutex_);
      failure_ = std::current_exception();
      next_ = count_;
      changed_.notify_all();
    }
  }

  const std::size_t count_;
  const std::size_t bound_;
  const std::function<Body()> make_body_;
  Mutex mutex_;
  CondVar changed_;
  std::size_t next_ PACELINE_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<Slot>> window_ PACELINE_GUARDED_BY(mutex_);
  std::exception_ptr failure_ PACELINE_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace paceline::io

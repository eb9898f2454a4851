#pragma once
// Lets a thread that waits for an engine receive packets of a transport meanwhile. Only one thread at a time can do so.
// This object may outlive the transport.

#include <paceline/detail/waiting_work.h>
#include <paceline/mutex.h>

#include <atomic>
#include <functional>
#include <utility>

namespace paceline {

class BorrowedPoller final : public detail::WaitingWork {
 public:
  // `receive_until` receives packets until its argument returns true. `ring` makes a sleeping `receive_until` call its
  // argument again.
  BorrowedPoller(std::function<void(const std::function<bool()>&)> receive_until, std::function<void()> ring)
      : receive_until_(std::move(receive_until)), ring_(std::move(ring)) {}

  bool work_until(const std::function<bool()>& done) noexcept override {
    {
      const Lock lock(mutex_);
      if (inside_ || leaving_) return false;
      inside_ = true;
    }
    receive_until_([&] { return leaving_ || done(); });
    const Lock lock(mutex_);
    inside_ = false;
    left_.notify_all();
    return done();
  }

  void look_again() override {
    const Lock lock(mutex_);
    if (inside_) ring_();
  }

  // Call this before the transport ends. Returns when no thread is in work_until(). From then on, work_until() returns
  // false at once.
  void leave() {
    const Lock lock(mutex_);
    leaving_ = true;
    if (inside_) ring_();
    left_.wait(mutex_, [this]() PACELINE_REQUIRES(mutex_) { return !inside_; });
  }

 private:
  const std::function<void(const std::function<bool()>&)> receive_until_;
  const std::function<void()> ring_;
  Mutex mutex_;
  CondVar left_;
  bool inside_ PACELINE_GUARDED_BY(mutex_) = false;
  std::atomic<bool> leaving_ = false;  // written under mutex_
};

}  // namespace paceline

#pragma once
// Delays of applied pushes, by worker.

#include <paceline/histogram.h>
#include <paceline/mutex.h>

#include <cstdint>
#include <vector>

namespace paceline {

class StalenessHistogram {
 public:
  // Adds runs of equal delays with one call, because many consecutive pushes have the same delay.
  class Row {
   public:
    explicit Row(StalenessHistogram& book) : book_(book) {}
    ~Row() { enter(); }
    Row(const Row&) = delete;
    void add(int worker, std::int64_t delay) {
      if (worker != worker_ || delay != delay_) enter();
      worker_ = worker;
      delay_ = delay;
      ++count_;
    }

   private:
    void enter() {
      if (count_ > 0) book_.add(worker_, delay_, count_);
      count_ = 0;
    }

    StalenessHistogram& book_;
    int worker_ = 0;
    std::int64_t delay_ = 0, count_ = 0;
  };

  std::vector<Histogram> all() const {
    Lock lock(mutex_);
    return delays_;
  }

 private:
  void add(int worker, std::int64_t delay, std::int64_t count) {
    if (worker < 0) return;
    const auto number = static_cast<std::size_t>(worker);
    Lock lock(mutex_);
    if (delays_.size() <= number) delays_.resize(number + 1);
    delays_[number].add(delay, count);
  }

  mutable Mutex mutex_;
  std::vector<Histogram> delays_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline

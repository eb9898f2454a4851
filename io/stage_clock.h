#pragma once
// Measures which stage of a loader a thread is in. A StageScope costs two readings of the clock where the thread has a
// StageClock, and next to nothing elsewhere.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace paceline::io {

enum class Stage : std::uint8_t { kOther, kFetch, kRead, kDecode, kAugment, kCopy };
constexpr std::size_t kStages = 6;
using StageSeconds = std::array<double, kStages>;

// Measures the calling thread from construction to destruction. Of several in a thread, the last one measures.
class StageClock {
 public:
  StageClock() : outer_(std::exchange(current(), this)) {}
  ~StageClock() { current() = outer_; }
  StageClock(const StageClock&) = delete;
  StageClock& operator=(const StageClock&) = delete;

  // What passed in each stage so far.
  const StageSeconds& seconds() {
    enter(stage_);
    return seconds_;
  }

 private:
  friend class StageScope;
  using Clock = std::chrono::steady_clock;

  static StageClock*& current() {
    thread_local StageClock* clock = nullptr;
    return clock;
  }
  Stage enter(Stage stage) {
    const Clock::time_point now = Clock::now();
    seconds_[static_cast<std::size_t>(stage_)] += std::chrono::duration<double>(now - since_).count();
    since_ = now;
    const Stage left = stage_;
    stage_ = stage;
    return left;
  }

  StageClock* const outer_;
  Stage stage_ = Stage::kOther;
  Clock::time_point since_ = Clock::now();
  StageSeconds seconds_{};
};

// The thread is in `stage` while it lives; scopes nest.
class StageScope {
 public:
  explicit StageScope(Stage stage) : clock_(StageClock::current()) {
    if (clock_) outer_ = clock_->enter(stage);
  }
  ~StageScope() {
    if (clock_) clock_->enter(outer_);
  }
  StageScope(const StageScope&) = delete;
  StageScope& operator=(const StageScope&) = delete;

 private:
  StageClock* clock_;
  Stage outer_ = Stage::kOther;
};

}  // namespace paceline::io

#pragma once
// Bounds what one kind of event may write into the log: the first few, then one line every ten seconds. Thread-safe.

#include <paceline/mutex.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace paceline {

class LogBudget {
 public:
  // Counts an event. None if it is not to be logged, else what to append to the line: "", or " (7 others were not
  // logged)".
  std::optional<std::string> spend() {
    constexpr int kFirst = 10;
    constexpr auto kPause = std::chrono::seconds(10);
    const Lock lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (++events_ > kFirst && now - last_ < kPause) {
      ++left_out_;
      return std::nullopt;
    }
    last_ = now;
    const std::int64_t others = std::exchange(left_out_, 0);
    return others == 0 ? "" : " (" + std::to_string(others) + " others were not logged)";
  }

 private:
  Mutex mutex_;
  std::int64_t events_ PACELINE_GUARDED_BY(mutex_) = 0, left_out_ PACELINE_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point last_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline

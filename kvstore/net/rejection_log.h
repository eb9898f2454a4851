#pragma once
// Logs what peers do wrong. Writes at most one line in ten seconds. The line says how many others were suppressed since
// the last one.

#include <paceline/log.h>
#include <paceline/mutex.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace paceline {

class RejectionLog {
 public:
  // Thread-safe.
  void add(const std::string& text) {
    const auto now = std::chrono::steady_clock::now();
    std::int64_t unsaid = 0;
    {
      const Lock lock(mutex_);
      ++count_;
      if (last_ && now - *last_ < kBetweenLines) return;
      last_ = now;
      unsaid = count_ - said_ - 1;
      said_ = count_;
    }
    LOG(WARNING) << text << (unsaid > 0 ? " (and " + std::to_string(unsaid) + " more since the last such line)" : "");
  }

 private:
  static constexpr std::chrono::seconds kBetweenLines{10};

  Mutex mutex_;
  std::optional<std::chrono::steady_clock::time_point> last_ PACELINE_GUARDED_BY(mutex_);
  std::int64_t count_ PACELINE_GUARDED_BY(mutex_) = 0, said_ PACELINE_GUARDED_BY(mutex_) = 0;
};

}  // namespace paceline

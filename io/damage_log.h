#pragma once
// What a loader left out because it is damaged.

#include <paceline/log.h>
#include <paceline/mutex.h>
#include <paceline/recordio.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace paceline::io {

// Thread-safe.
class DamageLog {
 public:
  void add(RecordDamage damage) {
    Lock lock(mutex_);
    ++count_;
    if (listed_.size() < kMostListed) listed_.push_back(std::move(damage));
  }
  // Logs how many came since the last call, where there are any.
  void warn(const std::string& data) {
    Lock lock(mutex_);
    if (count_ == warned_) return;
    LOG(WARNING) << data << ": " << count_ - warned_ << " damaged records were left out of this epoch; the first that "
                 << "was left out: " << listed_.front().text();
    warned_ = count_;
  }
  std::vector<RecordDamage> listed() const {
    Lock lock(mutex_);
    return listed_;
  }
  std::int64_t count() const {
    Lock lock(mutex_);
    return count_;
  }

 private:
  static constexpr std::size_t kMostListed = 1000;

  mutable Mutex mutex_;
  std::int64_t count_ PACELINE_GUARDED_BY(mutex_) = 0;
  std::int64_t warned_ PACELINE_GUARDED_BY(mutex_) = 0;  // of so many
  std::vector<RecordDamage> listed_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline::io

#pragma once
// Tells whoever waits for work on files how far one thread of it is, now and then.

#include <paceline/record_tools.h>

#include <cstdint>

namespace paceline::io {

class WorkProgress {
 public:
  // `work` must outlive it.
  explicit WorkProgress(const RecordWork& work) : work_(work) {}

  // So many bytes more were read. Throws what the progress function throws.
  void add(std::uint64_t bytes) {
    constexpr std::uint64_t kSeldom = 1 << 20;
    bytes_ += bytes;
    if (bytes_ >= kSeldom) finish();
  }
  // Tells the rest.
  void finish() {
    if (work_.progress) work_.progress(bytes_);
    bytes_ = 0;
  }

 private:
  const RecordWork& work_;
  std::uint64_t bytes_ = 0;
};

}  // namespace paceline::io

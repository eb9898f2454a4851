#pragma once
// Shows how far a program is: a line that is rewritten on a terminal, plain lines elsewhere. The first line comes after
// half a second on a terminal, and after 5 seconds elsewhere. Work that ends earlier shows nothing.

#include <paceline/mutex.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace paceline::tools {

// Thread-safe.
class Progress {
 public:
  // Shows "12 of 345 `unit`", or "12 `unit`" where `total` is 0, which means unknown. `total` and add() count in parts
  // of a unit; `scale` parts make one unit.
  Progress(double total, const char* unit, double scale = 1) : total_(total), unit_(unit), scale_(scale) {}
  // Shows the last line if there were others before it.
  ~Progress() {
    if (shown_) show(done_);
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(double done) {
    Lock lock(mutex_);
    done_ += done;
    const std::chrono::duration<double> since_last = std::chrono::steady_clock::now() - last_;
    if (since_last.count() < (!terminal_ ? 5.0 : shown_ ? 0.1 : 0.5)) return;
    show(done_);
  }

 private:
  void show(double done) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
    last_ = std::chrono::steady_clock::now();
    shown_ = true;
    const bool last = total_ > 0 && done >= total_;
    std::fprintf(stderr, "%s%.0f", terminal_ ? "\r" : "", done / scale_);
    if (total_ > 0) std::fprintf(stderr, " of %.0f", total_ / scale_);
    std::fprintf(stderr, " %s, %.0f per second%s", unit_, done / scale_ / std::max(seconds.count(), 1e-9),
                 terminal_ && !last ? "   " : "\n");
  }

  const double total_;
  const char* const unit_;
  const double scale_;
  const bool terminal_ = isatty(STDERR_FILENO);
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Mutex mutex_;
  double done_ = 0;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_ = start_;
};

}  // namespace paceline::tools

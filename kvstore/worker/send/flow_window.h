#pragma once
// How a link is used, from what was measured on it. A pipeline of sending, applying and answering is fastest in
// messages of s* = sqrt(latency x bandwidth x bytes of a step / 2). Three of them may be under way to one server:
// enough to keep the link and the server busy, little enough that a request of higher priority waits behind few others;
// but at least what the link carries in 20 ms or in two round trips, for a machine that is busy answers late, and at
// most 16 MiB.

#include <chrono>
#include <cstddef>

namespace paceline {

class FlowWindow {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Given when a request is sent, shown when it is answered.
  struct Ticket {
    Time sent;
    Time since;  // of the answers counted: the last one before it was sent, where others were under way
    double answered_before = 0;
  };

  // `narrow`: messages are answered at once and best found in the caches on their way, so that no more of them are
  // under way than keep the link busy.
  explicit FlowWindow(std::size_t message_bytes = 0, bool narrow = false)
      : fixed_message_(message_bytes), narrow_(narrow) {}

  // `bytes` joined what is to be sent.
  void submitted(std::size_t bytes) { burst_ += static_cast<double>(bytes); }
  Ticket sent(Time now) const { return {now, last_answer_ == Time() ? now : last_answer_, answered_}; }
  void answered(const Ticket& ticket, std::size_t bytes, Time now);
  // Nothing is under way and nothing waits.
  void idle();
  // What was submitted since is one step's: for a worker that never rests.
  void step_over();

  // s*, 256 KiB to 4 MiB; 1 MiB until the bandwidth is known.
  std::size_t message_bytes() const;
  // May be under way together.
  std::size_t bytes() const;
  // One way; what is assumed until a small request was answered.
  double latency_seconds() const { return latency_; }
  // 0 until a large request was answered.
  double bytes_per_second() const;

 private:
  std::size_t fixed_message_;  // 0: measured
  bool narrow_;
  double burst_ = 0, last_burst_ = 0;  // of this step, and of the last
  double answered_ = 0;
  Time last_answer_;  // since the last rest
  double latency_ = 100e-6;
  bool latency_known_ = false;
  double fastest_ = 0, fastest_before_ = 0;  // of the latest samples, and of those before
  int samples_ = 0;
};

}  // namespace paceline

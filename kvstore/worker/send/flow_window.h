#pragma once
// The size and number of messages in flight on a link, from measurements. A pipeline of sending, applying and answering
// is fastest with messages of s* = sqrt(latency x bandwidth x bytes of a step / 2). Three of them may be in flight to
// one server. This keeps the link and the server busy, and a request of higher priority waits behind few others. At
// least the bytes that the link carries in 20 ms or in two round trips, whichever is more, may be in flight, because a
// busy machine answers late. The limit is 16 MiB.

#include <chrono>
#include <cstddef>

namespace paceline {

class FlowWindow {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Issued when a request is sent, and passed back when it is answered.
  struct Ticket {
    Time sent;
    Time since;  // the last answer before the request was sent; `sent` if none has come since the start or idle()
    double answered_before = 0;
  };

  // `narrow`: messages are answered at once, and should stay in the caches on their way. Then only as many are in
  // flight as keep the link busy.
  explicit FlowWindow(std::size_t message_bytes = 0, bool narrow = false)
      : fixed_message_(message_bytes), narrow_(narrow) {}

  // Records that `bytes` wait to be sent.
  void submitted(std::size_t bytes) { burst_ += static_cast<double>(bytes); }
  Ticket sent(Time now) const { return {now, last_answer_ == Time() ? now : last_answer_, answered_}; }
  void answered(const Ticket& ticket, std::size_t bytes, Time now);
  // Call it when nothing is in flight, and nothing waits.
  void idle();
  // Ends a step: everything submitted since the last call belongs to it. A worker that is never idle needs this call.
  void step_over();

  // The best size of a message. If the constructor got a size, it is that size. Otherwise it is s*, between 256 KiB and
  // 4 MiB, or 1 MiB until the bandwidth is known.
  std::size_t message_bytes() const;
  // The number of bytes that may be in flight.
  std::size_t bytes() const;
  // The latency in one direction. An assumed value until a small request was answered.
  double latency_seconds() const { return latency_; }
  // The bandwidth; 0 until a large request was answered.
  double bytes_per_second() const;

 private:
  std::size_t fixed_message_;  // 0: measured
  bool narrow_;
  double burst_ = 0, last_burst_ = 0;  // bytes of this step, and of the last step
  double answered_ = 0;
  Time last_answer_;  // unset after idle(), until the next answer
  double latency_ = 100e-6;
  bool latency_known_ = false;
  double fastest_ = 0, fastest_before_ = 0;  // bandwidth: the largest of the latest samples, and of the samples before
  int samples_ = 0;
};

}  // namespace paceline

#include "send/flow_window.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace paceline {
namespace {

constexpr double kSmallRequest = 4096;      // bytes; the round trip of a request up to this size measures latency
constexpr double kLargeRequest = 64 << 10;  // bytes; a request from this size on measures bandwidth
constexpr int kSamples = 64;                // samples of a period; a bandwidth counts in its period and in the next
constexpr double kPieces = 3;               // messages: one travels, one is applied, one is answered
constexpr double kLeastSeconds = 0.02;      // what a busy machine may take to answer
constexpr double kLeastMessage = 256 << 10, kMostMessage = 4 << 20;
constexpr double kFirstMessage = 1 << 20;  // good on fast links, and does not block a slow link for long
constexpr double kMost = 16 << 20, kAtFirst = 8 << 20;

}  // namespace

void FlowWindow::answered(const Ticket& ticket, std::size_t bytes, Time now) {
  answered_ += static_cast<double>(bytes);
  last_answer_ = now;
  const auto since = [now](Time then) { return std::max(1e-7, std::chrono::duration<double>(now - then).count()); };
  if (static_cast<double>(bytes) <= kSmallRequest) {
    // Takes the shortest time of all, because other requests waited behind large ones or for other workers.
    const double way = since(ticket.sent) / 2;
    latency_ = latency_known_ ? std::min(latency_, way) : way;
    latency_known_ = true;
  }
  if (static_cast<double>(bytes) < kLargeRequest) return;
  // The largest sample is the link's bandwidth. A sample is too low if there was little to send.
  fastest_ = std::max(fastest_, (answered_ - ticket.answered_before) / since(ticket.since));
  if (++samples_ < kSamples) return;
  samples_ = 0;
  fastest_before_ = std::exchange(fastest_, 0);
}

void FlowWindow::idle() {
  step_over();
  last_answer_ = {};
}

void FlowWindow::step_over() {
  if (burst_ > 0) last_burst_ = std::exchange(burst_, 0);
}

double FlowWindow::bytes_per_second() const { return std::max(fastest_, fastest_before_); }

std::size_t FlowWindow::message_bytes() const {
  if (fixed_message_ > 0) return fixed_message_;
  const double speed = bytes_per_second();
  const double best = speed > 0 ? std::sqrt(latency_ * speed * std::max(burst_, last_burst_) / 2) : kFirstMessage;
  return static_cast<std::size_t>(std::clamp(best, kLeastMessage, kMostMessage));
}

std::size_t FlowWindow::bytes() const {
  const double speed = bytes_per_second();
  if (speed == 0 && !narrow_) return static_cast<std::size_t>(kAtFirst);
  const double round_trips = narrow_ ? 2 * latency_ * speed : std::max(kLeastSeconds, 4 * latency_) * speed;
  return static_cast<std::size_t>(
      std::min(std::max(kPieces * static_cast<double>(message_bytes()), round_trips), kMost));
}

}  // namespace paceline

#include "exchange/credit_window.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace paceline {
namespace {

constexpr double kSmallRequest = 4096;      // its round trip is latency
constexpr double kLargeRequest = 64 << 10;  // its round trip tells the bandwidth
constexpr int kSamples = 64;                // after which an old bandwidth is forgotten
constexpr double kPieces = 4;
constexpr double kLeastSeconds = 0.02, kMostSeconds = 0.05;
constexpr double kLeast = 8 << 20;  // one of the largest messages travels while another is answered
constexpr double kMost = 16 << 20;

}  // namespace

void CreditWindow::answered(const Ticket& ticket, std::size_t bytes, Time now) {
  answered_ += static_cast<double>(bytes);
  last_answer_ = now;
  const auto since = [now](Time then) { return std::max(1e-7, std::chrono::duration<double>(now - then).count()); };
  if (static_cast<double>(bytes) <= kSmallRequest) {
    // The quickest of all: others waited behind large ones or for other workers.
    const double way = since(ticket.sent) / 2;
    latency_ = latency_known_ ? std::min(latency_, way) : way;
    latency_known_ = true;
  }
  if (static_cast<double>(bytes) < kLargeRequest) return;
  // The largest is the link's: a sample is low where little was to be sent.
  fastest_ = std::max(fastest_, (answered_ - ticket.answered_before) / since(ticket.since));
  if (++samples_ < kSamples) return;
  samples_ = 0;
  fastest_before_ = std::exchange(fastest_, 0);
}

void CreditWindow::idle() {
  if (burst_ > 0) last_burst_ = std::exchange(burst_, 0);
  last_answer_ = {};
}

double CreditWindow::bytes_per_second() const { return std::max(fastest_, fastest_before_); }

std::size_t CreditWindow::bytes() const {
  const double speed = bytes_per_second();
  if (speed == 0) return static_cast<std::size_t>(kLeast);
  const double piece = std::sqrt(latency_ * speed * std::max(burst_, last_burst_) / 2);
  const double least = std::clamp(kLeastSeconds * speed, kLeast, kMost);
  const double most = std::clamp(std::max(kMostSeconds, 4 * latency_) * speed, least, kMost);
  return static_cast<std::size_t>(std::clamp(kPieces * piece, least, most));
}

}  // namespace paceline

#include "attempts.h"

#include <paceline/log.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <random>
#include <thread>
#include <utility>

#include "url.h"

namespace paceline::remote {
namespace {

constexpr double kFirstPause = 0.2, kLongestPause = 20;  // in seconds
constexpr auto kTick = std::chrono::milliseconds(20);

bool may_pass(const HttpResponse& response, const std::string& code) {
  switch (response.status) {
    case 408:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504: return true;
    default: return code == "RequestTimeout" || code == "SlowDown" || code == "InternalError";
  }
}

double pause_asked_for(const HttpResponse& response) {
  const std::string text = response.header("retry-after");
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  return error == std::errc() && end == text.data() + text.size() && seconds > 0 ? std::min(seconds, kLongestPause) : 0;
}

// How far this host's clock is from the server's, as a part of a sentence.
std::string skew(const HttpResponse& response) {
  const std::int64_t theirs = seconds_of_date(response.header("date"));
  if (theirs < 0) return "the clocks of this host and of the server differ too much";
  const auto ours =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  const std::int64_t ahead = ours.count() - theirs;
  return str("the clock of this host is ", std::abs(ahead), " s ", ahead < 0 ? "behind" : "ahead of",
             " the server's; set it");
}

std::string advice(const HttpResponse& response, const std::string& code) {
  std::string region = printable(response.header("x-amz-bucket-region"), 64);
  if (region.empty()) region = printable(xml_text(response.body, "Region"), 64);
  if (!region.empty() && response.status != 403 && response.status != 404)
    return str("the bucket is in region '", region, "'; set AWS_REGION");
  if (code == "RequestTimeTooSkewed") return skew(response);
  if (code == "SignatureDoesNotMatch") return "the secret key does not fit; check AWS_SECRET_ACCESS_KEY";
  if (code == "InvalidAccessKeyId") return "the server does not know the key; check AWS_ACCESS_KEY_ID";
  if (code == "ExpiredToken" || code == "InvalidToken" || code == "TokenRefreshRequired")
    return "the session's token has ended or is wrong; renew AWS_SESSION_TOKEN";
  if (code == "NoSuchBucket") return "there is no such bucket";
  if (response.status == 404 || response.status == 410) return "there is no such file";
  if (response.status == 403) return "the server does not allow it";
  if (response.status == 401) return "the server wants a user and a password";
  return "the server refuses";
}

thread_local Tick tick_of_this_thread;

}  // namespace

Attempts::Attempts(const char* what, std::string url, const Tick& tick)
    : what_(what), url_(std::move(url)), tick_(tick ? tick : tick_of_this_thread) {}

void Attempts::refuse(const std::string& reason) const {
  throw IoError(str("cannot ", what_, ' ', shown(url_), ": ", reason));
}

void Attempts::failed(const std::string& reason, double least_seconds) {
  if (++failed_ >= settings_.attempts) refuse(failed_ == 1 ? reason : str(reason, " (", failed_, " attempts)"));
  thread_local std::minstd_rand random{std::random_device()()};
  const double longest = std::min(kLongestPause, std::ldexp(kFirstPause, std::min(failed_ - 1, 10)));
  const double seconds = std::max(least_seconds, std::uniform_real_distribution<>(longest / 2, longest)(random));
  LOG(WARNING) << "cannot " << what_ << ' ' << shown(url_) << " yet: " << reason << "; attempt " << failed_ + 1
               << " of " << settings_.attempts << " follows";
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    if (tick_) tick_();
    std::this_thread::sleep_for(kTick);
  }
}

HttpResponse Attempts::perform(const std::function<HttpRequest()>& make, int accept) {
  for (;;) {
    ++made_;
    try {
      HttpResponse response = exchange(make(), settings_, tick_);
      // S3 may begin to answer 200 and fail then.
      const std::string code = printable(xml_text(response.body, "Code"), 64);
      if (response.status == accept || (response.good() && code.empty())) return response;
      const std::string said = str(response.status, code.empty() ? "" : " ", code);
      if (may_pass(response, code)) {
        failed(str("the server answers ", said), pause_asked_for(response));
        continue;
      }
      const std::string reason = str(advice(response, code), " (it answers ", said, ")");
      // A wrong name of a bucket is a mistake, and not a file that does not exist yet.
      if (code != "NoSuchBucket" && (response.status == 404 || response.status == 410))
        throw NoSuchFile(str("cannot ", what_, ' ', shown(url_), ": ", reason));
      refuse(reason);
    } catch (const TransferError& error) {
      if (error.lasting()) refuse(error.what());
      failed(error.what());
    }
  }
}

}  // namespace paceline::remote

paceline::detail::TickScope::TickScope(Tick tick)
    : before_(std::exchange(remote::tick_of_this_thread, std::move(tick))) {}
paceline::detail::TickScope::~TickScope() { remote::tick_of_this_thread = std::move(before_); }

#include "requests.h"

#include <paceline/error.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "roster.h"

namespace paceline {

// ---- PendingRequests ----

namespace {

constexpr double kBytesPerSecond = 100e6;  // a low estimate of the network's speed
constexpr double kGrowth = 1.5;            // factor of the pause with each probe
constexpr double kMostGrowth = 8, kLongestPause = 3;
constexpr double kLongestRoundTrip = 0.5;
constexpr double kSlowSeconds = 10;
constexpr int kCertainProbes = 3;  // of one request, after which the silence of its peer counts

double seconds_between(PendingRequests::Clock::time_point from, PendingRequests::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

PendingRequests::Clock::duration as_duration(double seconds) {
  return std::chrono::duration_cast<PendingRequests::Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

std::uint64_t PendingRequests::next_number() {
  const Lock lock(mutex_);
  return ++last_number_;
}

std::optional<PeerId> PendingRequests::peer_of(std::uint64_t number) const {
  const Lock lock(mutex_);
  const auto found = pending_requests_.find(number);
  return found == pending_requests_.end() ? std::nullopt : std::optional(found->second.peer);
}

PendingRequests::Activity PendingRequests::activity() const {
  const Lock lock(mutex_);
  return {calls_, pending_requests_.empty() ? 0 : seconds_between(got_on_, Clock::now())};
}

void PendingRequests::get_on() {
  ++calls_;
  got_on_ = Clock::now();
}

void PendingRequests::add(std::uint64_t number, const PeerId& peer, MessageKind kind, Packet packet,
                          Node::ReplyHandler handler) {
  const Lock lock(mutex_);
  Traffic& traffic = traffic_[peer];
  Ask ask;
  ask.peer = peer;
  ask.kind = kind;
  for (const Frame& frame : packet) ask.bytes += frame.size;
  ask.packet = std::move(packet);
  ask.handler = std::move(handler);
  traffic.bytes_in_flight += ask.bytes;
  const double round_trip = std::min(traffic.round_trip + 4 * traffic.variation, kLongestRoundTrip);
  ask.pause = std::max(first_pause_, round_trip) + static_cast<double>(traffic.bytes_in_flight) / kBytesPerSecond;
  ask.first_pause = ask.pause;
  ask.longest_pause = std::min(kMostGrowth * ask.pause, std::max(kLongestPause, ask.pause));
  ask.asked = Clock::now();
  ask.probe_at = ask.asked + as_duration(ask.pause);
  pending_requests_.emplace(number, std::move(ask));
  get_on();
}

void PendingRequests::Traffic::measured(double seconds) {
  variation += round_trip == 0 ? seconds / 2 : (std::abs(round_trip - seconds) - variation) / 4;
  round_trip += round_trip == 0 ? seconds : (seconds - round_trip) / 8;
}

void PendingRequests::heard(const Ask& ask) {
  traffic_[ask.peer].unheard = 0;
  if (ask.probes > 0) traffic_[ask.peer].measured(seconds_between(ask.probed, Clock::now()));
}

Node::ReplyHandler PendingRequests::remove(std::map<std::uint64_t, Ask>::iterator ask) {
  traffic_[ask->second.peer].bytes_in_flight -= ask->second.bytes;
  Node::ReplyHandler handler = std::move(ask->second.handler);
  pending_requests_.erase(ask);
  get_on();
  return handler;
}

Node::ReplyHandler PendingRequests::take(std::uint64_t number) {
  const Lock lock(mutex_);
  const auto found = pending_requests_.find(number);
  if (found == pending_requests_.end()) return nullptr;
  traffic_[found->second.peer].unheard = 0;
  // Only a prompt answer to a request that was sent once measures the round trip. A late answer may have waited for
  // other workers.
  const double age = seconds_between(found->second.asked, Clock::now());
  if (found->second.probes == 0 && age <= first_pause_) traffic_[found->second.peer].measured(age);
  return remove(found);
}

Node::ReplyHandler PendingRequests::cancel(std::uint64_t number) {
  const Lock lock(mutex_);
  const auto found = pending_requests_.find(number);
  return found == pending_requests_.end() ? nullptr : remove(found);
}

void PendingRequests::received(std::uint64_t number) {
  const Lock lock(mutex_);
  const auto found = pending_requests_.find(number);
  if (found == pending_requests_.end()) return;
  heard(found->second);
}

std::optional<PendingRequests::Again> PendingRequests::send_again(std::uint64_t number, int probe) {
  const Lock lock(mutex_);
  const auto found = pending_requests_.find(number);
  if (found == pending_requests_.end()) return std::nullopt;
  Ask& ask = found->second;
  if (probe <= ask.resent_after || probe > ask.probes) return std::nullopt;
  ask.resent_after = ask.probes;
  ask.pause = ask.first_pause;  // the peer answers, so probe it soon
  ask.probe_at = Clock::now() + as_duration(ask.pause);
  if (probe == ask.probes) heard(ask);
  traffic_[ask.peer].unheard = 0;
  return Again{ask.peer, ask.packet};
}

std::vector<PendingRequests::Probe> PendingRequests::due(std::vector<Slow>& slow) {
  const Lock lock(mutex_);
  const Clock::time_point now = Clock::now();
  std::vector<Probe> probes;
  std::map<PeerId, Slow> late;
  for (auto& [number, ask] : pending_requests_) {  // the oldest first
    const double age = seconds_between(ask.asked, now);
    if (age > kSlowSeconds) {
      const auto [oldest, first] = late.try_emplace(ask.peer, Slow{ask.peer, ask.kind, age});
      if (!first) ++oldest->second.others;
    }
    if (now < ask.probe_at) continue;
    ++ask.probes;
    ask.probed = now;
    ask.pause = std::min(kGrowth * ask.pause, ask.longest_pause);
    ask.probe_at = now + as_duration(ask.pause);
    probes.push_back({ask.peer, number, ask.probes});
  }
  for (const auto& [peer, one] : late) {
    Clock::time_point& next = traffic_[peer].next_report;
    if (now < next) continue;
    next = now + as_duration(kSlowSeconds);
    slow.push_back(one);
  }
  return probes;
}

std::optional<PeerId> PendingRequests::unheard(double seconds, double limit, const PeerId& self) {
  const Lock lock(mutex_);
  std::set<PeerId> asked;
  for (const auto& [number, ask] : pending_requests_)
    if (ask.probes >= kCertainProbes && ask.peer.role != Role::kScheduler) asked.insert(ask.peer);
  for (auto& [peer, traffic] : traffic_) {
    traffic.unheard = asked.contains(peer) ? traffic.unheard + seconds : 0;
    if (traffic.unheard > (peer.role == self.role && peer.rank > self.rank ? 2 * limit : limit)) return peer;
  }
  return std::nullopt;
}

std::vector<PendingRequests::Failure> PendingRequests::fail(const PeerId& peer, const std::string& why) {
  const Lock lock(mutex_);
  std::vector<Failure> failures;
  for (auto ask = pending_requests_.begin(); ask != pending_requests_.end();) {
    const auto next = std::next(ask);
    if (ask->second.peer == peer) {
      const double age = seconds_between(ask->second.asked, Clock::now());
      NetworkError error(str(why, "; it was asked for ", name_of(ask->second.kind), " ", in_seconds(age), " ago"));
      failures.push_back({remove(ask), std::make_exception_ptr(std::move(error))});
    }
    ask = next;
  }
  traffic_.erase(peer);
  return failures;
}

std::vector<PendingRequests::Failure> PendingRequests::fail_all(const std::exception_ptr& error) {
  const Lock lock(mutex_);
  std::vector<Failure> failures;
  while (!pending_requests_.empty()) failures.push_back({remove(pending_requests_.begin()), error});
  return failures;
}

// ---- ReplyCache ----

namespace {

constexpr std::size_t kRecent = 64;             // answers that are kept for each sender
constexpr std::size_t kLargestKept = 16 << 10;  // bytes of the largest answer that is kept

}  // namespace

ReplyCache::Known ReplyCache::arrive(std::uint64_t sender, std::uint64_t request, Packet& answer) {
  const Known known = look(sender, request, answer);
  if (known == Known::kNew) {
    const Lock lock(mutex_);
    senders_[sender].open.insert(request);
  }
  return known;
}

ReplyCache::Known ReplyCache::look(std::uint64_t sender, std::uint64_t request, Packet& answer) const {
  const Lock lock(mutex_);
  const auto found = senders_.find(sender);
  if (found == senders_.end()) return Known::kNew;
  if (found->second.open.count(request) > 0) return Known::kOpen;
  for (const auto& [number, packet] : found->second.recent) {
    if (number != request) continue;
    answer = packet;
    return Known::kAnswered;
  }
  return Known::kNew;
}

void ReplyCache::answered(std::uint64_t sender, std::uint64_t request, const Packet& answer) {
  std::size_t bytes = 0;
  for (const Frame& frame : answer) bytes += frame.size;
  const Lock lock(mutex_);
  const auto found = senders_.find(sender);
  if (found == senders_.end()) return;
  found->second.open.erase(request);
  if (bytes > kLargestKept) return;
  found->second.recent.emplace_back(request, answer);
  if (found->second.recent.size() > kRecent) found->second.recent.pop_front();
}

void ReplyCache::forget(std::uint64_t sender) {
  const Lock lock(mutex_);
  senders_.erase(sender);
}

}  // namespace paceline

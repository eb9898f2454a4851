#include "reply_cache.h"

namespace paceline {
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

#include "speakers.h"

#include <utility>

namespace paceline {

Speakers::Speaks Speakers::may_speak(std::uint64_t sender, LinkId link) {
  const Lock lock(mutex_);
  if (closed_.count(link) > 0) return Speaks::kNo;
  const auto [known, is_new] = links_.try_emplace(sender, link);
  return is_new ? Speaks::kHereFromNow : known->second == link ? Speaks::kHere : Speaks::kNo;
}

Speakers::Speaks Speakers::bind(std::uint64_t sender, LinkId link) {
  const Lock lock(mutex_);
  return std::exchange(links_[sender], link) == link ? Speaks::kHere : Speaks::kHereFromNow;
}

std::optional<LinkId> Speakers::link_of(std::uint64_t sender) const {
  const Lock lock(mutex_);
  const auto found = links_.find(sender);
  return found == links_.end() ? std::nullopt : std::optional(found->second);
}

void Speakers::forget(std::uint64_t sender) {
  const Lock lock(mutex_);
  links_.erase(sender);
}

void Speakers::closed(LinkId link) {
  constexpr std::size_t kMostRemembered = 4096;
  const Lock lock(mutex_);
  closed_.insert(link);
  if (closed_.size() > kMostRemembered) closed_.erase(closed_.begin());
  std::erase_if(links_, [link](const auto& entry) { return entry.second == link; });
}

}  // namespace paceline

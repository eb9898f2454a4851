#include "allreduce/ring_hosts.h"

namespace paceline {

RingHosts::RingHosts(const std::map<int, std::string>& workers) {
  std::map<std::string, std::size_t> places;
  for (const auto& [rank, name] : workers) {
    const std::size_t place = places.try_emplace(name, hosts_.size()).first->second;
    if (place == hosts_.size()) hosts_.emplace_back();
    hosts_[place].push_back(rank);
  }
  if (hosts_.size() < 2) {
    hosts_.clear();
    for (const auto& [rank, name] : workers) hosts_.push_back({rank});
  }
  for (std::size_t place = 0; place < hosts_.size(); ++place)
    for (const int rank : hosts_[place]) host_of_[rank] = place;
}

int RingHosts::delegate(std::size_t host, int group) const {
  const std::vector<int>& ranks = hosts_[host];
  return ranks[static_cast<std::size_t>(group) / hosts_.size() % ranks.size()];
}

int RingHosts::above(int rank, int group) const {
  const int speaker = delegate(host(rank), group);
  if (rank != speaker) return speaker;
  return rank == root(group) ? -1 : root(group);
}

std::vector<int> RingHosts::below(int rank, int group) const {
  std::vector<int> result;
  for (const auto& [other, host] : host_of_)
    if (other != rank && above(other, group) == rank) result.push_back(other);
  return result;
}

}  // namespace paceline

#pragma once
// Who sums what in mode ring. Pieces come in groups. About each group a host is spoken for by one of its workers, its
// *delegate*: it adds up what the workers of the host give and sends the sum to the *root*, one of the delegates, which
// adds up those sums. Results go the same way back. Delegates and roots take turns from group to group, roots host by
// host. Where there are fewer than two hosts, or one worker on each, every worker counts as a host of its own.

#include <map>
#include <string>
#include <vector>

namespace paceline {

class RingHosts {
 public:
  RingHosts() = default;
  // The host of each live worker, by rank.
  explicit RingHosts(const std::map<int, std::string>& workers);

  bool together(int a, int b) const { return host(a) == host(b); }
  bool alone(int rank) const { return hosts_[host(rank)].size() == 1; }
  // The place of a worker's host among all, which are in the order of their lowest ranks.
  std::size_t host(int rank) const { return host_of_.at(rank); }
  int delegate(std::size_t host, int group) const;
  int root(int group) const { return delegate(static_cast<std::size_t>(group) % hosts_.size(), group); }
  // To whom a worker gives its part of a group's sum; -1 for the root.
  int above(int rank, int group) const;
  // From whom it gets such parts.
  std::vector<int> below(int rank, int group) const;

 private:
  std::vector<std::vector<int>> hosts_;  // ranks
  std::map<int, std::size_t> host_of_;
};

}  // namespace paceline

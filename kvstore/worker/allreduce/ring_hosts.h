#pragma once
// Says which worker sums which pieces in mode ring. Neighbouring pieces (ring_peer.h) form groups. For each group, one
// worker of each host is the *delegate*. It adds up the gradients of the host's workers, and sends the sum to the
// *root*. The root is one of the delegates, and adds up these sums. Results go the same way back. From group to group,
// the workers of a host take turns as delegate, and the hosts take turns in having the root. If there is only one host,
// or one worker on each host, every worker counts as a host of its own.

#include <map>
#include <string>
#include <vector>

namespace paceline {

class RingHosts {
 public:
  RingHosts() = default;
  // `workers`: the host of each live worker, by rank.
  explicit RingHosts(const std::map<int, std::string>& workers);

  bool together(int a, int b) const { return host(a) == host(b); }
  bool alone(int rank) const { return hosts_[host(rank)].size() == 1; }
  // The number of a worker's host. Hosts are numbered in the order of their lowest ranks.
  std::size_t host(int rank) const { return host_of_.at(rank); }
  int delegate(std::size_t host, int group) const;
  int root(int group) const { return delegate(static_cast<std::size_t>(group) % hosts_.size(), group); }
  // The worker that `rank` sends its part of a group's sum to; -1 for the root.
  int above(int rank, int group) const;
  // The workers that send `rank` their parts of a group's sum.
  std::vector<int> below(int rank, int group) const;

 private:
  std::vector<std::vector<int>> hosts_;  // the ranks of each host
  std::map<int, std::size_t> host_of_;
};

}  // namespace paceline

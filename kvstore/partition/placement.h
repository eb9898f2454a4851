#pragma once
// The placement: which server holds which partition. The scheduler decides the placement when keys and tables are
// declared (scheduler/placement_policy.h). Workers get the placement with the reply to their declaration, and pass it
// on to the servers.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace paceline {

namespace wire {
class Placement;
}

// A group of partitions, which are numbered from 0: all dense keys, or one table. The group of a table is hash_key() of
// its name.
using PartitionGroup = std::uint64_t;
constexpr PartitionGroup kDenseKeys = 0;

class Placement {
 public:
  // `servers`: how many the job has.
  explicit Placement(int servers) : servers_(servers) {}

  // Places the partitions `first`, `first` + 1 and so on of a group. Throws InvalidArgument if the job has no such
  // server, or if a partition is already on another server. Throws Corrupt if a partition before `first` has no place
  // yet. Changes nothing if it throws.
  void add(PartitionGroup group, int first, std::span<const int> servers);
  // Throws InvalidArgument where the partition has no place.
  int server_of(PartitionGroup group, int partition) const;
  std::optional<int> find(PartitionGroup group, int partition) const;
  // The number of partitions of a group that have a place.
  int partitions(PartitionGroup group) const { return static_cast<int>(places_of(group).size()); }
  // The server that keeps a worker's own state while a checkpoint is saved or loaded.
  int keeper_of(int worker) const { return worker % servers_; }
  int servers() const { return servers_; }

  // Convert to and from messages. This add() throws as the other add() does, and Corrupt for a number that is too
  // large.
  void write(PartitionGroup group, int first, int count, wire::Placement* message) const;
  void add(const wire::Placement& message);

 private:
  const std::vector<int>& places_of(PartitionGroup group) const;

  int servers_;
  std::vector<int> keys_;  // the server of each partition of dense keys
  std::map<PartitionGroup, std::vector<int>> tables_;
};

}  // namespace paceline

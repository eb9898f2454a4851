#pragma once
// Where partitions are: the only answer to "which server". The scheduler decides it when keys and tables are declared
// (scheduler/placement_policy.h). Workers get it with the answer to the declaration, and pass it on to the servers.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace paceline {

namespace wire {
class Placement;
}

// Partitions are numbered from 0 in a group: that of all dense keys, or that of a table, named by hash_key(its name).
using PartitionGroup = std::uint64_t;
constexpr PartitionGroup kDenseKeys = 0;

class Placement {
 public:
  // `servers`: of the job.
  explicit Placement(int servers) : servers_(servers) {}

  // Places the partitions `first`, `first` + 1 and so on of a group. Throws, and changes nothing, where the job has no
  // such server or a partition is on another one (InvalidArgument), or where partitions before `first` have no place
  // yet (Corrupt).
  void add(PartitionGroup group, int first, std::span<const int> servers);
  // Throws InvalidArgument where the partition has no place.
  int server_of(PartitionGroup group, int partition) const;
  std::optional<int> find(PartitionGroup group, int partition) const;
  // How many of a group have a place.
  int partitions(PartitionGroup group) const { return static_cast<int>(places_of(group).size()); }
  // The server that keeps a worker's own state while a checkpoint is saved or loaded.
  int keeper_of(int worker) const { return worker % servers_; }
  int servers() const { return servers_; }

  // To and from messages. The second throws as the other add() does, and Corrupt on numbers that are none.
  void write(PartitionGroup group, int first, int count, wire::Placement* message) const;
  void add(const wire::Placement& message);

 private:
  const std::vector<int>& places_of(PartitionGroup group) const;

  int servers_;
  std::vector<int> keys_;  // the server of each partition
  std::map<PartitionGroup, std::vector<int>> tables_;
};

}  // namespace paceline

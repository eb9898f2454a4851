#pragma once
// The requests to a server about initial values, rules, reports and checkpoints, and all requests about tables.
// server.cc handles the other requests.

#include <paceline/mutex.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "node.h"
#include "parse_body.h"
#include "partition_log.h"
#include "replies.h"
#include "served_partition.h"
#include "shard.h"
#include "table_control.h"

namespace paceline {

class ServerControl {
 public:
  // `servers`: how many the job has. `own`: the user's modes, policies and codecs that workers may name. `log` may be
  // null.
  ServerControl(int servers, PartitionTable& table, std::vector<std::unique_ptr<ServerShard>>& shards,
                const WaitStats& waits, Extensions own, PartitionLog* log);

  // False if this class does not handle this kind of request. Otherwise the request is answered at once, or later by a
  // shard. Throws the error to refuse the request with. `rank`: this server's rank.
  bool on_request(const Request& request, int rank);
  void set_live_workers(int live);
  // Logs how much memory the staleness policy takes. Does nothing if no dense partition was added and no rules were set
  // since the last call. Called when a step ends.
  void tell_cost();
  // Logs the figures of this server so far.
  void log_report() const;

 private:
  void init_values(const Request& request, int rank);
  void add_partition(const Request& request, ServerShard& shard);
  // `State`: DensePartition or RowPartition.
  template <class State>
  void begin_with_rules(State& partition);
  void set_mode(const std::string& text);
  void check(const RulesEntry& rules) const;
  // Throws InvalidArgument if the workers name objects that this server does not have.
  void require_objects(const wire::SetRules& message) const;
  void set_rules(const Request& request);
  void report(const Request& request) const;
  void save(const Request& request);
  void load(const Request& request);
  // Returns the shard of a partition. New partitions go to the shards in turn.
  ServerShard& shard_of(std::uint32_t partition);

  PartitionTable& table_;
  std::vector<std::unique_ptr<ServerShard>>& shards_;
  const WaitStats& waits_;
  const Extensions own_;
  PartitionLog* const log_;
  TableControl tables_;

  Mutex mutex_;
  std::map<std::uint32_t, std::size_t> shard_numbers_ PACELINE_GUARDED_BY(mutex_);  // by partition
  std::string mode_ PACELINE_GUARDED_BY(mutex_);
  std::uint32_t rules_call_ PACELINE_GUARDED_BY(mutex_) = 0;
  // The rules that a new partition begins with.
  std::optional<RulesEntry> rules_ PACELINE_GUARDED_BY(mutex_);
  std::optional<double> learning_rate_ PACELINE_GUARDED_BY(mutex_);
  std::shared_ptr<const Staleness> staleness_ PACELINE_GUARDED_BY(mutex_);  // null before the first rules
  std::atomic<bool> cost_is_told_ = false;
  std::map<std::uint64_t, std::uint64_t> rate_calls_ PACELINE_GUARDED_BY(mutex_);  // by incarnation: the last call
  int live_workers_ PACELINE_GUARDED_BY(mutex_) = 1;
  struct StoredBlob {
    std::string body;
    std::shared_ptr<const std::byte[]> data;
    std::size_t bytes = 0;
  };
  std::map<std::pair<std::uint32_t, std::string>, StoredBlob> blobs_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline

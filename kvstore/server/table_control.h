#pragma once
// What a server does about row-sparse tables: takes their messages apart, hands the parts to the shards, and keeps the
// rules that new tables start with.

#include <paceline/mutex.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shard.h"
#include "table_shard.h"

namespace paceline {

namespace wire {
class Report;
}

class TableControl {
 public:
  explicit TableControl(std::vector<std::unique_ptr<DenseShard>>& shards) : shards_(shards) {}

  // True if the request was about tables; it is answered now or by a shard. Throws what the request is refused with.
  // `set_mode` gets the mode that a worker declares.
  bool on_request(const Request& request, const std::function<void(const std::string&)>& set_mode);

  void set_rules(std::shared_ptr<const RowRules> rules);
  void set_learning_rate(double rate);
  void set_live_workers(int live);
  // Of the rows that this shard serves.
  void drop_worker(int worker, const DenseShard& shard);
  void write_figures(wire::Report* report) const;

 private:
  struct ServedTable {
    TableSpec spec;
    std::uint32_t servers = 0;
    int declared_by = 0;
    std::map<std::uint32_t, std::unique_ptr<ServedRows>> partitions;
  };

  void declare(const Request& request, const std::function<void(const std::string&)>& set_mode);
  void push_pull(const Request& request);
  void save(const Request& request);
  void load(const Request& request);
  // Throws Corrupt where there is none.
  ServedRows& find(std::uint64_t table, std::uint32_t partition) const;
  template <class Visitor>
  void for_each(Visitor visit) const;

  std::vector<std::unique_ptr<DenseShard>>& shards_;
  mutable Mutex mutex_;
  std::map<std::uint64_t, ServedTable> tables_ PACELINE_GUARDED_BY(mutex_);  // by hash of the name
  std::shared_ptr<const RowRules> rules_ PACELINE_GUARDED_BY(mutex_);
  int live_workers_ PACELINE_GUARDED_BY(mutex_) = 1;
};

}  // namespace paceline

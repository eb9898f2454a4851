#pragma once
// The requests to a server about row-sparse tables. TableControl gives each request, or each part of a push or pull, to
// the shard of its partition.

#include <paceline/mutex.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "placement.h"
#include "shard.h"
#include "table_shard.h"

namespace paceline {

namespace wire {
class Report;
}

class TableControl {
 public:
  // `servers`: how many the job has. `own`: the user's policies, which workers may name besides the library's.
  TableControl(int servers, std::vector<std::unique_ptr<ServerShard>>& shards, Extensions own)
      : shards_(shards), own_(std::move(own)), placement_(servers) {}

  // True if the request is about tables. The request is then answered now, or later by a shard. Throws the error to
  // refuse the request with. `set_mode` gets the mode that a worker declares. `begin` gives a new partition its log and
  // the present rules.
  struct OfServer {
    int rank;
    std::function<void(const std::string&)> set_mode;
    std::function<void(RowPartition&)> begin;
  };
  bool on_request(const Request& request, const OfServer& server);

  void write_figures(wire::Report* report) const;

 private:
  struct ServedTable {
    TableSpec spec;
    std::map<std::uint32_t, std::unique_ptr<ServedRows>> partitions;
  };

  void declare(const Request& request, const OfServer& server);
  void push_pull(const Request& request);
  void save(const Request& request);
  void load(const Request& request);
  // Throws Corrupt if there is no such partition.
  ServedRows& find(std::uint64_t table, std::uint32_t partition) const;
  template <class Visitor>
  void for_each(Visitor visit) const;

  std::vector<std::unique_ptr<ServerShard>>& shards_;
  const Extensions own_;
  mutable Mutex mutex_;
  std::map<std::uint64_t, ServedTable> tables_ PACELINE_GUARDED_BY(mutex_);  // by hash of the name
  Placement placement_ PACELINE_GUARDED_BY(mutex_);                          // of these tables
  std::size_t dealt_ PACELINE_GUARDED_BY(mutex_) = 0;                        // partitions given to shards, in turn
};

}  // namespace paceline

#pragma once
// A server of a job. It holds the weights of some partitions, applies pushes as the mode says, and answers pulls.

#include <paceline/cluster.h>

#include <memory>

namespace paceline {

class PartitionLog;

class Server {
 public:
  // `own`: the user's modes, policies and codecs that workers may name. `shards`: how many threads apply pushes; 0: as
  // the number of cores suggests. `log` keeps the logs of the partitions, and must outlive the server; null: no logs.
  explicit Server(const ClusterConfig& config, const Extensions& own = {}, int shards = 0, PartitionLog* log = nullptr);
  // To the other processes this looks like a crash, unless run() has returned.
  ~Server();

  // Joins the job and serves until every worker has left or was lost. Throws NetworkError or Timeout if the job fails.
  void run();
  // Makes run() return at once, or, if the job has not started yet, when it starts. Other processes see a crash.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace paceline

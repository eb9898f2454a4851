#pragma once
// A server of a job. It holds the weights of some partitions, applies pushes as the mode says, and answers pulls.

#include <paceline/cluster.h>
#include <paceline/staleness.h>

#include <memory>

namespace paceline {

class PartitionLog;

class Server {
 public:
  // `policy`: a staleness policy of the user's own, in place of the one that workers name (for servers in the user's
  // process). `shards`: number of threads that apply pushes; 0: from the number of cores. `log`: keeps the logs of the
  // partitions, and must outlive the server; null: no logs.
  explicit Server(const ClusterConfig& config, std::shared_ptr<const Staleness> policy = nullptr, int shards = 0,
                  PartitionLog* log = nullptr);
  // To other processes this looks like a crash unless run() has returned.
  ~Server();

  // Joins the job and serves until every worker has left or was lost. Throws NetworkError or Timeout if the job fails.
  void run();
  // Makes run() return at once. Other processes see a crash.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace paceline

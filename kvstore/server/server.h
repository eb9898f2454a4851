#pragma once
// A server of a job: holds the weights of some partitions, applies pushes by the mode's rule and answers pulls.

#include <paceline/cluster.h>
#include <paceline/staleness.h>

#include <memory>

namespace paceline {

class PartitionLog;

class Server {
 public:
  // `policy`: a staleness policy of the user's own instead of the one that workers name (servers in the user's
  // process). `shards`: threads that apply pushes; 0: by the cores. `log`: keeps the logs of the partitions, and must
  // outlive the server; null: nobody does.
  explicit Server(const ClusterConfig& config, std::shared_ptr<const Staleness> policy = nullptr, int shards = 0,
                  PartitionLog* log = nullptr);
  // To the others it looks like a crash unless run() has returned.
  ~Server();

  // Joins the job and serves until every worker has left or was lost. Throws NetworkError or Timeout where the job
  // fails.
  void run();
  // Makes run() return at once, and the others see a crash.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace paceline

#pragma once
// A server of a job. It holds the weights of some partitions, applies pushes as the mode says, and answers pulls.

#include <paceline/cluster.h>

#include <memory>

namespace paceline {

class PartitionLog;

class Server {
 public:
  // `own`: what workers may name besides the library's modes, policies and codecs. `shards`: threads that apply pushes;
  // 0: by the cores. `log`: keeps the logs of the partitions, and must outlive the server; null: nobody does.
  explicit Server(const ClusterConfig& config, const Extensions& own = {}, int shards = 0, PartitionLog* log = nullptr);
  // To the others it looks like a crash unless run() has returned.
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

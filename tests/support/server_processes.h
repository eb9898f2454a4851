#pragma once
// Whether a suite's servers are threads or real paceline_server processes is decided where it is linked:
// kvstore/server_threads.cc or cluster/server_processes.cc.

#include <paceline/cluster.h>

#include <memory>

namespace paceline::test {

class ServerProcesses {
 public:
  // Starts a scheduler and servers, over tcp or shm, whose job has the secret of `config`; null where the suite wants
  // threads.
  static std::unique_ptr<ServerProcesses> start(const ClusterConfig& config);

  // Waits until they have ended; a failure of the test where one did not end well.
  virtual ~ServerProcesses() = default;
  virtual int port() const = 0;
};

}  // namespace paceline::test

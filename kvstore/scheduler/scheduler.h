#pragma once
// The scheduler of a job. It assembles the job, watches the processes, and runs the services that all workers share. It
// ends when every worker and server has left, and fails when the job fails.

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "node.h"

namespace paceline {

// A part of the scheduler's work. Calls of on_request() and on_roster() come one at a time, from a thread of the Node
// or from the thread in Scheduler::run(). No function may block.
class SchedulerService {
 public:
  virtual ~SchedulerService() = default;
  // True if the service handles this kind of request. The service then answers the request now or later. If the
  // function throws, the request is refused with the error.
  virtual bool on_request(const Request& request) = 0;
  // The workers that wait for an answer which depends on what other workers do, and the number of their requests.
  virtual std::set<PeerId> waiting() const { return {}; }
  virtual std::size_t waits() const { return 0; }
  // Every live worker waits, `others` for the answer of another service. Refuses the requests that no worker can ever
  // answer.
  virtual void refuse_waiting(const std::set<PeerId>& /*others*/) {}
  // A process joined, left or was lost.
  virtual void on_roster(const Roster&) {}
  // Called about once a second, possibly at the same time as the other functions. A service that overrides it must
  // lock.
  virtual void on_tick() {}
};

// kBarrier: answers when every live worker has asked, and gives each worker the values of all.
std::unique_ptr<SchedulerService> make_barrier_service();
// kPutFact, kGetFacts: small values that workers share by name.
std::unique_ptr<SchedulerService> make_fact_service();
// kDataPart, kDataBegin, kDataCommit, kDataCommitted, kDataTakeOver: which worker delivers which positions of the data.
std::unique_ptr<SchedulerService> make_data_service();

class PlacementPolicy;

class Scheduler {
 public:
  // Listens, and writes the port file. Throws NetworkError if it cannot listen at the address. `placement` chooses the
  // servers of new partitions; null: make_balanced_placement().
  explicit Scheduler(const ClusterConfig& config, std::shared_ptr<PlacementPolicy> placement = nullptr);
  ~Scheduler();

  // The "host:port" that other processes connect to.
  const std::string& address() const;
  // Blocks until the job has ended. Throws the error with which the job failed.
  void run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace paceline

#pragma once
// The scheduler's program: brings the job together, watches over it, and runs services that need one place. It ends
// when every worker and server has left, or fails when the job does.

#include <memory>
#include <string>
#include <vector>

#include "node.h"

namespace paceline {

// A part of the scheduler's work. Calls come one at a time, from a thread of the Node or the one in Scheduler::run(),
// and must not block.
class SchedulerService {
 public:
  virtual ~SchedulerService() = default;
  // True: the request was of its kinds and is, or will be, answered. What it throws becomes the refusal.
  virtual bool on_request(const Request& request) = 0;
  // Somebody was lost, left or joined.
  virtual void on_roster(const Roster&) {}
  // About once a second; at the same time as the others, so that a service that uses it locks.
  virtual void on_tick() {}
};

// kBarrier: answers when every live worker has asked; a worker counts once. Hands out what the workers give there.
std::unique_ptr<SchedulerService> make_barrier_service();
// kPutFact, kGetFacts: small values that workers share by name.
std::unique_ptr<SchedulerService> make_fact_service();
// kDataPart, kDataBegin, kDataCommit, kDataTakeOver: who delivers which positions of the data set.
std::unique_ptr<SchedulerService> make_data_service();

class PlacementPolicy;

class Scheduler {
 public:
  // Listens, and writes the port file. Throws NetworkError where the address cannot be had. `placement`: decides where
  // partitions go; null: servers hold equal bytes.
  explicit Scheduler(const ClusterConfig& config, std::shared_ptr<PlacementPolicy> placement = nullptr);
  ~Scheduler();

  // "host:port" that the others connect to.
  const std::string& address() const;
  // Blocks until the job has ended; throws what it failed of.
  void run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace paceline

#pragma once
// The processes of a job as threads of one test.

#include <gtest/gtest.h>
#include <paceline/error.h>

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "node.h"
#include "scheduler.h"

namespace paceline::test {

// The silence deadline is so long that a starved thread does not reach it. With `faulty`, messages are lost.
inline ClusterConfig job_config(const std::string& transport, int servers, int workers, bool faulty = false) {
  static std::atomic<int> count = 0;
  ClusterConfig config;
  config.transport = transport;
  config.servers = servers;
  config.workers = workers;
  config.job = "job " + std::to_string(++count);
  if (transport == "inproc") config.scheduler_host = config.job;
  config.heartbeat_seconds = 0.05;
  config.silence_deadline_seconds = 20;
  config.start_deadline_seconds = 20;
  if (faulty) config.faults = "drop 0.2; duplicate 0.2; reorder 0.2; seed 7";
  return config;
}

// A scheduler in a thread of its own.
class SchedulerThread {
 public:
  explicit SchedulerThread(ClusterConfig config, std::shared_ptr<PlacementPolicy> placement = nullptr) {
    config.role = Role::kScheduler;
    scheduler_ = std::make_unique<Scheduler>(config, std::move(placement));
    if (config.transport != "inproc") {
      const std::string address = scheduler_->address();
      port_ = std::stoi(address.substr(address.rfind(':') + 1));
    }
    thread_ = std::thread([this] {
      try {
        scheduler_->run();
      } catch (const std::exception& error) {
        failure_ = error.what();
      }
      scheduler_.reset();
    });
  }
  ~SchedulerThread() {
    if (thread_.joinable()) thread_.join();
  }

  int port() const { return port_; }
  // Waits for the end: empty, or what it failed of.
  std::string result() {
    thread_.join();
    return failure_;
  }

 private:
  std::unique_ptr<Scheduler> scheduler_;
  int port_ = 0;
  std::string failure_;
  std::thread thread_;
};

inline ClusterConfig member(ClusterConfig config, Role role, int port, int task = -1) {
  config.role = role;
  config.scheduler_port = port;
  config.task = task;
  return config;
}

// The launcher's file that tells the scheduler of a job which of its processes have ended.
class EndedFile {
 public:
  explicit EndedFile(ClusterConfig* job) {
    static std::atomic<int> count = 0;
    path_ = testing::TempDir() + "ended-" + std::to_string(getpid()) + "-" + std::to_string(++count);
    job->ended_file = path_;
  }
  ~EndedFile() {
    std::error_code none;
    std::filesystem::remove(path_, none);
  }
  EndedFile(const EndedFile&) = delete;
  EndedFile& operator=(const EndedFile&) = delete;

  void add(const std::string& text) const { std::ofstream(path_, std::ios::app) << text; }
  void add_killed(int worker) const { add("worker " + std::to_string(worker) + " was ended by signal 9\n"); }

 private:
  std::string path_;
};

// What `action` throws, as text; empty where it does not.
template <class Action>
std::string error_of_call(Action action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace paceline::test

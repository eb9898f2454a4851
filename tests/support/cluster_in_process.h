#pragma once
// A whole job in one test, over any transport, with faults where wanted. Workers are threads; scheduler and servers are
// threads, too, or processes (server_processes.h).

#include <gtest/gtest.h>
#include <kvstore/cluster_in_process.h>
#include <paceline/kvstore.h>
#include <paceline/log.h>
#include <support/server_processes.h>

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server.h"

namespace paceline::test {

struct ClusterOptions {
  std::string mode = "dist_async:staleness=none";
  int workers = 2;
  int servers = 2;
  std::string transport = "inproc";
  bool faulty = false;
  std::string faults = {};  // a fault plan, instead of `faulty`
  bool serial = true;  // each worker with a serial engine of its own: fast, and what it calls is done when it returns
  Engine* engine = nullptr;  // of every worker, where arrays outlive the cluster
  Extensions own = {};
  std::optional<Extensions> own_of_servers = {};  // where they are others
  bool tells = true;  // the scheduler of workers that are killed, as a launcher does; else their silence does
  double silence_seconds = 30;
  PartitionLog* log = nullptr;          // of servers that are threads
  std::vector<std::string> hosts = {};  // that the workers say they are on, over inproc or shm; empty: this one
  bool hosts_share_memory = false;      // over shm, `hosts` are addresses of this machine
  std::string secret = {};              // of the job, whose servers are threads
  std::shared_ptr<PlacementPolicy> placement = nullptr;  // of a scheduler that is a thread
};

class ClusterInProcess {
 public:
  explicit ClusterInProcess(const ClusterOptions& options) : options_(options) {
    base_ = job_config(options.transport, options.servers, options.workers, options.faulty);
    base_.silence_deadline_seconds = options.silence_seconds;
    if (!options.faults.empty()) base_.faults = options.faults;
    if (options.tells) ended_.emplace(&base_);
    base_.secret = options.secret;
    ClusterConfig between_processes = base_;
    if (options.transport == "inproc") between_processes.transport = "tcp";
    between_processes.scheduler_host = ClusterConfig().scheduler_host;
    between_processes.secret.assign(32, 's');
    processes_ = ServerProcesses::start(between_processes);
    engines_.resize(static_cast<std::size_t>(options.workers));
    stores_.resize(static_cast<std::size_t>(options.workers));
    server_errors_.resize(static_cast<std::size_t>(options.servers));
    if (processes_)
      base_ = between_processes;
    else
      start_threads();
    port_ = processes_ ? processes_->port() : scheduler_->port();
    each([this](int index) {
      if (!options_.engine)
        engines_[static_cast<std::size_t>(index)] = options_.serial ? make_serial_engine() : make_threaded_engine();
      join_worker(index);
    });
  }

  ~ClusterInProcess() {
    try {
      finish();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "the job did not end well: " << error.what();
    }
    stores_.clear();
  }

  KVStore& worker(int index) { return *stores_[static_cast<std::size_t>(index)]; }
  Engine& engine(int index) { return options_.engine ? *options_.engine : *engines_[static_cast<std::size_t>(index)]; }
  int workers() const { return options_.workers; }
  bool has_processes() const { return processes_ != nullptr; }  // as servers, instead of threads

  // Calls `work(worker, store)` on a thread per worker that was not killed; throws the first failure.
  void run(const std::function<void(int, KVStore&)>& work) {
    each([&](int index) {
      if (stores_[static_cast<std::size_t>(index)]) work(index, worker(index));
    });
  }

  // What the servers failed of, after they ended; empty where they did not.
  const std::string& server_error(int index) {
    std::jthread& thread = server_threads_[static_cast<std::size_t>(index)];
    if (thread.joinable()) thread.join();
    return server_errors_[static_cast<std::size_t>(index)];
  }

  // A job that is meant to fail ends without finish().
  void abandon() { stores_.clear(); }

  void finish() {
    if (stores_.empty()) return;
    run([](int, KVStore& store) { store.finish(); });
  }

  // Ends a process without a word, as SIGKILL does. Nobody tells of one that had taken the place of another.
  void kill_worker(int index) {
    struct Unwound {
      std::shared_ptr<KVStore>& store;
      ~Unwound() { store.reset(); }
    };
    try {
      const Unwound worker{stores_[static_cast<std::size_t>(index)]};
      throw std::exception();
    } catch (const std::exception&) {
      // Only a store that an exception destroys does not take its leave.
    }
    if (ended_) ended_->add_killed(index);
  }
  // Takes the place of a worker that was killed, as its process started again would; blocks until that one is lost.
  void join_worker(int index) {
    StoreOptions store;
    store.engine = &engine(index);
    store.own = options_.own;
    ClusterConfig own = member(base_, Role::kWorker, port_, index);
    if (!options_.hosts.empty()) {
      const std::string& host = options_.hosts[static_cast<std::size_t>(index)];
      if (own.transport == "shm" && !options_.hosts_share_memory)
        own.transport = "shm:host=" + host;
      else
        own.node_host = host;
    }
    stores_[static_cast<std::size_t>(index)] = KVStore::join(own, options_.mode, store);
  }
  void kill_server(int index) {
    servers_[static_cast<std::size_t>(index)]->stop();
    server_threads_[static_cast<std::size_t>(index)].join();
  }

 private:
  void start_threads() {
    scheduler_ = std::make_unique<SchedulerThread>(base_, options_.placement);
    servers_.reserve(static_cast<std::size_t>(options_.servers));  // threads look into it while it grows
    for (int s = 0; s < options_.servers; ++s) {
      servers_.push_back(std::make_unique<Server>(member(base_, Role::kServer, scheduler_->port(), s),
                                                  options_.own_of_servers.value_or(options_.own), 2, options_.log));
      Server& server = *servers_.back();
      std::string& failure = server_errors_[static_cast<std::size_t>(s)];
      server_threads_.emplace_back([&server, &failure] {
        try {
          server.run();
        } catch (const std::exception& error) {
          failure = error.what();
        }
      });
    }
  }

  void each(const std::function<void(int)>& work) {
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(options_.workers));
    std::vector<std::jthread> threads;
    for (int i = 0; i < options_.workers; ++i) {
      threads.emplace_back([&, i] {
        try {
          work(i);
        } catch (const std::exception& error) {
          // At once: the others may wait for this one.
          LOG(INFO) << "worker " << i << " of the test ended by: " << error.what();
          errors[static_cast<std::size_t>(i)] = std::current_exception();
        }
      });
    }
    threads.clear();  // joins
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
  }

  const ClusterOptions options_;
  ClusterConfig base_;
  std::optional<EndedFile> ended_;
  int port_ = 0;
  std::unique_ptr<ServerProcesses> processes_;
  std::unique_ptr<SchedulerThread> scheduler_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::string> server_errors_;
  std::vector<std::jthread> server_threads_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::shared_ptr<KVStore>> stores_;
};

}  // namespace paceline::test

#include "scheduler.h"

#include <paceline/error.h>
#include <paceline/log.h>
#include <paceline/mutex.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "store_service.h"
#include "transport/address.h"

namespace paceline {
namespace {

// Readers see the whole line or no file.
void write_port_file(const std::string& path, const std::string& address) {
  const HostPort at = parse_host_port(address);
  const std::string draft = path + ".new";
  std::ofstream file(draft);
  file << at.host << ' ' << at.port << '\n';
  file.close();
  if (!file || std::rename(draft.c_str(), path.c_str()) != 0)
    throw IoError("[scheduler] cannot write the port file '" + path + "'; check the folder (PACELINE_PORT_FILE)");
}

}  // namespace

struct Scheduler::Impl {
  explicit Impl(const ClusterConfig& c)
      : config(c),
        node(c, {[this](const Request& request) { on_request(request); },
                 [this](const Roster& roster) { on_roster(roster); }}) {
    if (!config.port_file.empty()) write_port_file(config.port_file, node.scheduler_address());
  }

  void on_request(const Request& request) {
    for (const auto& service : services)
      if (service->on_request(request)) return;
    throw InvalidArgument(std::string("the scheduler does not answer ") + name_of(request.message().header.kind));
  }

  void on_roster(const Roster& roster) {
    for (const auto& service : services) service->on_roster(roster);
    const Lock lock(mutex);
    over = roster.over;
    changed.notify_all();
  }

  void run() {
    node.join();
    {
      const Lock lock(mutex);
      while (!changed.wait_for(mutex, std::chrono::seconds(1), [this] { return over || node.failure(); }))
        for (const auto& service : services) service->on_tick();
    }
    // The others leave on their own; those that do not are lost after a silence.
    const auto begin = std::chrono::steady_clock::now();
    const auto within = [&](double seconds) {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds;
    };
    const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
    if (const std::exception_ptr failure = node.failure()) {
      while (!node.everybody_knows() && within(1 + 3 * config.heartbeat_seconds)) pause();
      std::rethrow_exception(failure);
    }
    while (!node.everybody_left() && within(config.silence_deadline_seconds)) pause();
    // An answer to the last good-bye may have been lost.
    if (!config.faults.empty()) std::this_thread::sleep_for(std::chrono::duration<double>(5 * config.heartbeat_seconds));
    LOG(INFO) << "the job is over";
    for (const auto& service : services)
      if (const std::string line = service->summary(); !line.empty()) LOG(INFO) << line;
  }

  static std::vector<std::unique_ptr<SchedulerService>> every_service(const ClusterConfig& config) {
    std::vector<std::unique_ptr<SchedulerService>> services;
    services.push_back(make_barrier_service());
    services.push_back(make_data_service());
    services.push_back(make_store_service(config.servers, config.silence_deadline_seconds));
    return services;
  }

  const ClusterConfig config;
  const std::vector<std::unique_ptr<SchedulerService>> services = every_service(config);
  Mutex mutex;
  CondVar changed;
  bool over GUARDED_BY(mutex) = false;
  Node node;  // last: its threads use the others
};

Scheduler::Scheduler(const ClusterConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Scheduler::~Scheduler() = default;

const std::string& Scheduler::address() const { return impl_->node.scheduler_address(); }
void Scheduler::run() { impl_->run(); }

}  // namespace paceline

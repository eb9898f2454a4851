#include "scheduler.h"

#include <paceline/error.h>
#include <paceline/log.h>
#include <paceline/mutex.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

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

// Reads a file to which the launcher appends a line for each server or worker that has ended.
class EndedFile {
 public:
  explicit EndedFile(std::string path) : path_(std::move(path)) {}

  // Calls tell(role, task, how) for every new line.
  template <class Tell>
  void read(const Tell& tell) {
    if (path_.empty()) return;
    if (!file_.is_open()) file_.open(path_);
    file_.clear();  // clears the end-of-file state of the last call
    for (char c; file_.get(c);) {
      if (c != '\n') {
        line_ += c;
        continue;
      }
      std::istringstream words(std::exchange(line_, {}));
      std::string role, how;
      int task = -1;
      if (!(words >> role >> task >> std::ws) || !std::getline(words, how)) continue;
      for (const Role known : {Role::kServer, Role::kWorker})
        if (role == name_of(known)) tell(known, task, how);
    }
  }

 private:
  const std::string path_;
  std::ifstream file_;
  std::string line_;  // an incomplete last line, as far as it was read
};

}  // namespace

struct Scheduler::Impl {
  Impl(const ClusterConfig& c, std::shared_ptr<PlacementPolicy> placement)
      : config(c),
        services(every_service(c, std::move(placement))),
        node(c, {[this](const Request& request) { on_request(request); },
                 [this](const Roster& roster) { on_roster(roster); }}) {
    ended_file.read([](Role, int, const std::string&) {});  // skips the lines of an earlier job
    if (!config.port_file.empty()) write_port_file(config.port_file, node.scheduler_address());
  }

  void on_request(const Request& request) {
    const auto answers = [&](const auto& service) { return service->on_request(request); };
    if (std::none_of(services.begin(), services.end(), answers))
      throw InvalidArgument(std::string("the scheduler does not answer ") + name_of(request.message().header.kind));
    refuse_what_waits_for_ever();
  }

  // Workers that wait at a barrier and workers that wait for the end of an epoch would wait for each other.
  void refuse_what_waits_for_ever() {
    std::size_t waits = 0;
    for (const auto& service : services) waits += service->waits();
    if (waits != live_workers) return;
    std::vector<std::set<PeerId>> waiting;
    std::set<PeerId> all;
    for (const auto& service : services) all.merge(std::set<PeerId>(waiting.emplace_back(service->waiting())));
    if (all.size() != live_workers) return;
    for (std::size_t i = 0; i < services.size(); ++i) {
      std::set<PeerId> others = all;
      for (const PeerId& worker : waiting[i]) others.erase(worker);
      if (!waiting[i].empty() && !others.empty()) services[i]->refuse_waiting(others);
    }
  }

  void on_roster(const Roster& roster) {
    write_lost_file(roster);
    for (const auto& service : services) service->on_roster(roster);
    live_workers = roster.live(Role::kWorker).size();
    refuse_what_waits_for_ever();
    const Lock lock(mutex);
    over = roster.over;
    changed.notify_all();
  }

  // Needs no lock, because calls of on_roster() do not overlap.
  void write_lost_file(const Roster& roster) {
    if (config.lost_file.empty()) return;
    for (const Peer& peer : roster.peers) {
      const bool lost = peer.id.role == Role::kWorker && !peer.alive && !peer.finished;
      if (!lost || written_as_lost.contains(peer.incarnation)) continue;
      std::ofstream file(config.lost_file, std::ios::app);
      file << name_of(peer.id.role) << ' ' << peer.id.rank << '\n' << std::flush;
      if (file)
        written_as_lost.insert(peer.incarnation);
      else  // the next roster is another try
        LOG(WARNING) << "[scheduler] cannot write '" << config.lost_file
                     << "' (PACELINE_LOST_FILE); the launcher may not count worker " << peer.id.rank << " as lost";
    }
  }

  void run() {
    const auto hear_of_ends = [this] {
      ended_file.read([this](Role role, int task, const std::string& how) { node.ended(role, task, how); });
    };
    try {
      node.join(hear_of_ends);
    } catch (const std::exception&) {
      answer_for_a_moment();
      throw;
    }
    for (int looks = 1; !ended_within(std::chrono::milliseconds(100)); ++looks) {
      hear_of_ends();
      if (looks % 10 == 0)
        for (const auto& service : services) service->on_tick();
    }
    // The other processes end on their own. The scheduler waits for them, but only for a limited time.
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
    if (!config.faults.empty()) answer_for_a_moment();
    LOG(INFO) << "the job is over";
  }

  // Gives the node's threads time to answer. Processes whose request or answer was lost ask again.
  void answer_for_a_moment() const {
    std::this_thread::sleep_for(std::chrono::duration<double>(std::max(1.0, 5 * config.heartbeat_seconds)));
  }

  bool ended_within(std::chrono::milliseconds time) {
    const Lock lock(mutex);
    return changed.wait_for(mutex, time,
                            [this]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return over || node.failure(); });
  }

  static std::vector<std::unique_ptr<SchedulerService>> every_service(const ClusterConfig& config,
                                                                      std::shared_ptr<PlacementPolicy> placement) {
    std::vector<std::unique_ptr<SchedulerService>> services;
    services.push_back(make_barrier_service());
    services.push_back(make_fact_service());
    services.push_back(make_data_service());
    services.push_back(make_store_service(config.servers, config.silence_deadline_seconds, std::move(placement)));
    return services;
  }

  const ClusterConfig config;
  const std::vector<std::unique_ptr<SchedulerService>> services;
  EndedFile ended_file{config.ended_file};
  std::set<std::uint64_t> written_as_lost;  // incarnations
  std::size_t live_workers = 0;
  Mutex mutex;
  CondVar changed;
  bool over PACELINE_GUARDED_BY(mutex) = false;
  Node node;  // last: its threads use the other members
};

Scheduler::Scheduler(const ClusterConfig& config, std::shared_ptr<PlacementPolicy> placement)
    : impl_(std::make_unique<Impl>(config, std::move(placement))) {}
Scheduler::~Scheduler() = default;

const std::string& Scheduler::address() const { return impl_->node.scheduler_address(); }
void Scheduler::run() { impl_->run(); }

}  // namespace paceline

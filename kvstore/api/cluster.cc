#include <malloc.h>
#include <paceline/cluster.h>
#include <paceline/detail/descriptor.h>
#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <set>

#include "faults/fault_plan.h"
#include "scheduler.h"
#include "secrets/job_secret.h"
#include "server.h"
#include "transport/address.h"
#include "transport/transport_setting.h"

namespace paceline {

const char* name_of(Role role) {
  switch (role) {
    case Role::kScheduler: return "scheduler";
    case Role::kServer: return "server";
    case Role::kWorker: return "worker";
  }
  return "unknown";
}

namespace {

std::string text_of(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): no thread sets variables
  return value ? value : "";
}

std::string needed(const char* name, const char* meaning) {
  std::string text = text_of(name);
  require(!text.empty(), "[cluster] ", name, " is not set (", meaning,
          "); start the job with tools/launch.py, or set DMLC_ROLE, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, "
          "DMLC_NUM_SERVER and DMLC_NUM_WORKER in every process");
  return text;
}

int whole_number(const char* name, const std::string& text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc() && end == text.data() + text.size() && value >= least && value <= most, "[cluster] ",
          name, "='", text, "' is not a whole number from ", least, " to ", most);
  return value;
}

int whole_number(const char* name, int otherwise, int least, int most) {
  const std::string text = text_of(name);
  return text.empty() ? otherwise : whole_number(name, text, least, most);
}

double seconds(const char* name, double otherwise) {
  const std::string text = text_of(name);
  if (text.empty()) return otherwise;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc() && end == text.data() + text.size() && value > 0 && value < 1e9, "[cluster] ", name,
          "='", text, "' is not a number of seconds");
  return value;
}

Role role_of(const std::string& text) {
  for (const Role role : {Role::kScheduler, Role::kServer, Role::kWorker})
    if (text == name_of(role)) return role;
  throw InvalidArgument("[cluster] DMLC_ROLE='" + text + "' is unknown; known: scheduler server worker");
}

// Refuses numbers such as "116", which the C library would read as the address 0.0.0.116.
void check_host(const char* name, const std::string& host) {
  const bool number = host.find_first_not_of("0123456789.") == std::string::npos;
  require(
      host.find_first_of(" \t/") == std::string::npos && (!number || std::count(host.begin(), host.end(), '.') == 3),
      "[cluster] ", name, "='", host, "' is neither a host name nor an address");
}

// The address of the network interface whose name begins with `prefix`.
std::string address_of_interface(const std::string& prefix) {
  std::set<std::string> known;
  for (const Interface& interface : network_interfaces()) {
    if (interface.name.rfind(prefix, 0) == 0) return interface.number;
    known.insert(interface.name);
  }
  std::string names;
  for (const std::string& name : known) names += " " + name;
  throw InvalidArgument("[cluster] DMLC_INTERFACE='" + prefix +
                        "' is no network interface with an address; known:" + names);
}

// Names the variable in an InvalidArgument that `check` throws.
template <class Check>
void in_variable(const char* name, const Check& check) {
  try {
    check();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(str("[cluster] ", name, ": ", error.what()));
  }
}

bool is_set(const char* name) {
  const std::string text = text_of(name);
  require(text.empty() || text == "0" || text == "1", "[cluster] ", name, "='", text, "' is neither 0 nor 1");
  return text == "1";
}

std::string secret_of_job() {
  if (is_set("PACELINE_INSECURE")) {
    LOG(WARNING)
        << "PACELINE_INSECURE=1: nothing is encrypted and nobody is checked; who reaches the ports of this job "
           "can read and change its weights";
    return "";
  }
  const std::string descriptor = text_of("PACELINE_KEY_FD"), file = text_of("PACELINE_KEY_FILE");
  require(!descriptor.empty() || !file.empty(),
          "[cluster] this process has no key of its job; start the job with tools/launch.py, or name a file with the "
          "key in PACELINE_KEY_FILE, or set PACELINE_INSECURE=1 to do without encryption");
  if (!is_set("PACELINE_CORE_DUMPS")) forbid_core_dumps();
  if (!file.empty()) return secret_in_file(file);  // takes precedence, for a worker that was started again by hand
  return inherited_secret(whole_number("PACELINE_KEY_FD", descriptor, 3, 1 << 20));
}

}  // namespace

ClusterConfig ClusterConfig::from_environment() {
  ClusterConfig config;
  config.role = role_of(needed("DMLC_ROLE", "scheduler, server or worker"));
  config.scheduler_host = needed("DMLC_PS_ROOT_URI", "the scheduler's host");
  check_host("DMLC_PS_ROOT_URI", config.scheduler_host);
  const bool may_choose = config.role == Role::kScheduler;
  config.scheduler_port =
      whole_number("DMLC_PS_ROOT_PORT", needed("DMLC_PS_ROOT_PORT", "the scheduler's port"), may_choose ? 0 : 1, 65535);
  config.servers = whole_number("DMLC_NUM_SERVER", needed("DMLC_NUM_SERVER", "how many servers"), 0, 100000);
  config.workers = whole_number("DMLC_NUM_WORKER", needed("DMLC_NUM_WORKER", "how many workers"), 1, 100000);

  config.node_host = text_of("DMLC_NODE_HOST");
  if (!config.node_host.empty())
    check_host("DMLC_NODE_HOST", config.node_host);
  else if (const std::string interface = text_of("DMLC_INTERFACE"); !interface.empty())
    config.node_host = address_of_interface(interface);
  config.node_port = whole_number("PACELINE_NODE_PORT", 0, 0, 65535);
  config.task = whole_number("DMLC_TASK_ID", -1, 0, 1 << 30);

  config.job = text_of("PACELINE_JOB_ID");
  config.port_file = text_of("PACELINE_PORT_FILE");
  config.ended_file = text_of("PACELINE_ENDED_FILE");
  config.faults = text_of("PACELINE_FAULTS");
  in_variable("PACELINE_FAULTS", [&] { check_faults(config.faults, config.workers, config.servers); });
  config.lost_file = text_of("PACELINE_LOST_FILE");
  config.message_bytes = whole_number("PACELINE_MESSAGE_BYTES", 0, 0, 1 << 30);
  if (const std::string transport = text_of("PACELINE_TRANSPORT"); !transport.empty()) config.transport = transport;
  config.start_deadline_seconds = seconds("PACELINE_START_DEADLINE", config.start_deadline_seconds);
  config.silence_deadline_seconds = seconds("PACELINE_SILENCE_DEADLINE", config.silence_deadline_seconds);
  config.progress_deadline_seconds = text_of("PACELINE_PROGRESS_DEADLINE") == "0"
                                         ? 0
                                         : seconds("PACELINE_PROGRESS_DEADLINE", config.progress_deadline_seconds);
  config.heartbeat_seconds =
      seconds("PACELINE_HEARTBEAT", std::min(config.heartbeat_seconds, config.silence_deadline_seconds / 4));
  const std::string loss = text_of("PACELINE_ON_WORKER_LOSS");
  require(loss.empty() || loss == "continue" || loss == "stop", "[cluster] PACELINE_ON_WORKER_LOSS='", loss,
          "' is unknown; known: continue stop");
  config.stop_on_worker_loss = loss == "stop";
  config.names_log = true;
  bool in_process = false;
  in_variable("PACELINE_TRANSPORT", [&] { in_process = TransportSetting::parse(config.transport).in_process(); });
  if (!in_process) {
    config.secret = secret_of_job();
    // Each connection takes a descriptor. A process has several connections to each peer, and others may hold some too.
    detail::raise_descriptor_limit();
  }
  return config;
}

void check_faults(const std::string& plan, int workers, int servers) {
  FaultPlan::parse(plan).check_ranks(workers, servers);
}

void serve(const ClusterConfig& config, const Extensions& own) {
  require(config.role != Role::kWorker, "[cluster] a worker does not serve; DMLC_ROLE must be scheduler or server");
  if (config.role == Role::kScheduler)
    Scheduler(config).run();
  else
    Server(config, own).run();
}

void keep_freed_memory(bool one_heap) {
  constexpr int kLarge = 1 << 30;
  // NOLINTBEGIN(concurrency-mt-unsafe): a program calls it before it has a second thread
  mallopt(M_MMAP_THRESHOLD, kLarge);
  mallopt(M_TRIM_THRESHOLD, kLarge);
  if (one_heap) mallopt(M_ARENA_MAX, 1);
  // NOLINTEND(concurrency-mt-unsafe)
}

}  // namespace paceline

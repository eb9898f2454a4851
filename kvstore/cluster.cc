#include <paceline/cluster.h>
#include <paceline/error.h>

#include <charconv>
#include <cstdlib>

#include "scheduler.h"
#include "server.h"

namespace paceline {
namespace {

std::string text(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string needed(const char* name) {
  const std::string value = text(name);
  require(!value.empty(), "environment variable ", name, " is missing; start the program with tools/launch.py, or set "
          "DMLC_ROLE, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, DMLC_NUM_SERVER and DMLC_NUM_WORKER");
  return value;
}

int number(const char* name, const std::string& value, int least, int most) {
  int parsed = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
  require(error == std::errc() && end == value.data() + value.size() && parsed >= least && parsed <= most,
          "environment variable ", name, " is '", value, "', expected a whole number from ", least, " to ", most);
  return parsed;
}

Role parse_role(const std::string& value) {
  for (const Role role : {Role::kScheduler, Role::kServer, Role::kWorker})
    if (value == name_of(role)) return role;
  throw InvalidArgument("environment variable DMLC_ROLE is '" + value + "'; known: scheduler server worker");
}

}  // namespace

const char* name_of(Role role) {
  switch (role) {
    case Role::kScheduler:
      return "scheduler";
    case Role::kServer:
      return "server";
    case Role::kWorker:
      return "worker";
  }
  return "unknown";
}

ClusterConfig ClusterConfig::from_environment() {
  ClusterConfig config;
  config.names_log = true;
  config.role = parse_role(needed("DMLC_ROLE"));
  config.scheduler_host = needed("DMLC_PS_ROOT_URI");
  config.scheduler_port = number("DMLC_PS_ROOT_PORT", needed("DMLC_PS_ROOT_PORT"), 0, 65535);
  config.servers = number("DMLC_NUM_SERVER", needed("DMLC_NUM_SERVER"), 1, 65536);
  config.workers = number("DMLC_NUM_WORKER", needed("DMLC_NUM_WORKER"), 1, 65536);
  config.node_host = text("DMLC_NODE_HOST");
  if (const std::string port = text("PORT"); !port.empty()) config.node_port = number("PORT", port, 0, 65535);
  if (const std::string task = text("DMLC_TASK_ID"); !task.empty())
    config.task = number("DMLC_TASK_ID", task, 0, 65536);
  config.job = text("PACELINE_JOB_ID");
  config.port_file = text("PACELINE_PORT_FILE");
  config.faults = Options::parse(text("PACELINE_FAULTS"));
  return config;
}

void serve(const ClusterConfig& config) {
  require(config.role != Role::kWorker, "a worker does not serve");
  if (config.role == Role::kScheduler)
    Scheduler(config).run();
  else
    Server(config).run();
}

}  // namespace paceline

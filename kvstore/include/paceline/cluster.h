#pragma once
// A job's processes: roles, addresses, deadlines. The environment contract is MXNet's (DMLC_ROLE, DMLC_PS_ROOT_URI,
// DMLC_PS_ROOT_PORT, DMLC_NUM_SERVER, DMLC_NUM_WORKER, DMLC_NODE_HOST, DMLC_INTERFACE); extras are PACELINE_*.

#include <paceline/options.h>

#include <memory>
#include <string>

namespace paceline {

class Staleness;

enum class Role : std::uint8_t { kScheduler, kServer, kWorker };
const char* name_of(Role role);

struct ClusterConfig {
  Role role = Role::kWorker;
  std::string scheduler_host = "127.0.0.1";
  int scheduler_port = 0;
  int servers = 0;
  int workers = 0;
  std::string node_host;  // own address as peers reach it; empty: the one that routes to the scheduler
  int node_port = 0;      // PACELINE_NODE_PORT: where a server listens, 0: any
  int task = -1;          // DMLC_TASK_ID: ranks follow it where it is given, else the order of arrival
  std::string job;        // PACELINE_JOB_ID; processes of another job are refused
  std::string port_file;  // PACELINE_PORT_FILE: the scheduler writes "host port" there once bound
  // PACELINE_ENDED_FILE: where the launcher tells the scheduler of processes that have failed, a line for each ("worker
  // 3 was ended by signal 9"); such a one is lost at once, without waiting for its silence.
  std::string ended_file;
  // PACELINE_TRANSPORT: "shm" (memory between peers of one host, tcp to others), "tcp", or "inproc" (scheduler_host is
  // then the name of the job).
  std::string transport = "shm";
  Options faults;                        // PACELINE_FAULTS: loss, duplicate, reorder, delay_ms, seed; tests only
  int message_bytes = 0;                 // PACELINE_MESSAGE_BYTES: a worker's messages; 0: what its link is best at
  double start_deadline_seconds = 60;    // PACELINE_START_DEADLINE: until every process has joined
  double silence_deadline_seconds = 15;  // PACELINE_SILENCE_DEADLINE: until a process not heard of is lost
  double heartbeat_seconds = 1;          // PACELINE_HEARTBEAT
  bool stop_on_worker_loss = false;      // PACELINE_ON_WORKER_LOSS=stop: the loss of one worker fails the job
  bool names_log = false;                // put role and rank into this process's log lines: one role per process only

  // The only function that reads the environment. DMLC_INTERFACE names a network interface whose address is used where
  // DMLC_NODE_HOST is not set. Throws InvalidArgument naming the variable that is missing or wrong.
  static ClusterConfig from_environment();
};

// Runs a scheduler or a server until the job ends (returns) or fails (throws). Several may run in one process.
// `policy`: a staleness policy of the user's own, which a server uses instead of the one that workers name.
void serve(const ClusterConfig& config, std::shared_ptr<const Staleness> policy = nullptr);

// For main() of programs that move large arrays: lets malloc keep freed blocks of any size instead of giving them back
// to the system, which would cost page faults for every message of megabytes. `one_heap`: threads that begin later
// share one heap, all of which a server gives back at rest; for programs that only serve.
void keep_freed_memory(bool one_heap = false);

}  // namespace paceline

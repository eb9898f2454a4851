#pragma once
// The processes of a job: roles, addresses, deadlines. The environment says them, by MXNet's names (DMLC_...) and some
// of our own (PACELINE_...).

#include <paceline/options.h>

#include <memory>
#include <string>

namespace paceline {

class Staleness;

// What a process does in a job: the scheduler knows who is there, servers hold weights, workers train.
enum class Role : std::uint8_t { kScheduler, kServer, kWorker };
const char* name_of(Role role);  // "scheduler", "server" or "worker"

// A process's place in a job. Each member names the environment variable that from_environment() takes it from.
struct ClusterConfig {
  Role role = Role::kWorker;                 // DMLC_ROLE: scheduler, server or worker
  std::string scheduler_host = "127.0.0.1";  // DMLC_PS_ROOT_URI: where the scheduler listens
  int scheduler_port = 0;                    // DMLC_PS_ROOT_PORT; 0, for the scheduler only: any
  int servers = 0;                           // DMLC_NUM_SERVER: of the job
  int workers = 0;                           // DMLC_NUM_WORKER: of the job
  std::string node_host;  // DMLC_NODE_HOST: own address for peers; empty: the one that routes to the scheduler
  int node_port = 0;      // PACELINE_NODE_PORT: where a server listens; 0: any
  int task = -1;          // DMLC_TASK_ID: ranks follow it; -1: they follow the order of arrival
  std::string job;        // PACELINE_JOB_ID: processes of another job are refused
  std::string port_file;  // PACELINE_PORT_FILE: the scheduler writes "host port" there once it listens
  // PACELINE_ENDED_FILE: where the launcher writes a line for each process that has failed ("worker 3 was ended by
  // signal 9"). The scheduler takes such a process for lost at once, without waiting for the silence deadline.
  std::string ended_file;
  // PACELINE_TRANSPORT: "shm" (shared memory between peers of one host, tcp to others), "tcp", or "inproc", for which
  // scheduler_host is the name of the job.
  std::string transport = "shm";
  Options faults;                        // PACELINE_FAULTS: loss, duplicate, reorder, delay_ms, seed; for tests
  int message_bytes = 0;                 // PACELINE_MESSAGE_BYTES: size of a worker's messages; 0: best for its link
  double start_deadline_seconds = 60;    // PACELINE_START_DEADLINE: until every process has joined
  double silence_deadline_seconds = 15;  // PACELINE_SILENCE_DEADLINE: until a process that is not heard of is lost
  double heartbeat_seconds = 1;          // PACELINE_HEARTBEAT: between two signs of life
  bool stop_on_worker_loss = false;      // PACELINE_ON_WORKER_LOSS=stop: the loss of one worker fails the job
  bool names_log = false;                // puts role and rank into this process's log lines; for one role per process

  // Reads the environment. Where DMLC_NODE_HOST is not set, DMLC_INTERFACE names a network interface whose address is
  // used. Throws InvalidArgument naming the variable that is missing or wrong.
  static ClusterConfig from_environment();
};

// Runs a scheduler or a server. Blocks until the job ends; throws where it fails. Several may run in one process. A
// server uses `policy`, a staleness policy of the user's own, instead of the one that workers name.
void serve(const ClusterConfig& config, std::shared_ptr<const Staleness> policy = nullptr);

// For main() of programs that move large arrays. malloc then keeps freed blocks of any size: giving them back to the
// system would cost page faults for every message of megabytes. With `one_heap` threads that begin later share one
// heap, which a server can give back when it rests; for programs that only serve.
void keep_freed_memory(bool one_heap = false);

}  // namespace paceline

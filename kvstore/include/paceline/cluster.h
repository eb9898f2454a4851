#pragma once
// The processes of a job: roles, addresses, deadlines. They come from environment variables, which have MXNet's names
// (DMLC_...) or names of our own (PACELINE_...).

#include <paceline/extensions.h>
#include <paceline/options.h>

#include <string>

namespace paceline {

// What a process does in a job: the scheduler knows who is there, servers hold weights, workers train.
enum class Role : std::uint8_t { kScheduler, kServer, kWorker };
const char* name_of(Role role);  // "scheduler", "server" or "worker"

// A process's place in a job. Each member names the environment variable that from_environment() takes it from.
struct ClusterConfig {
  Role role = Role::kWorker;                 // DMLC_ROLE: scheduler, server or worker
  std::string scheduler_host = "127.0.0.1";  // DMLC_PS_ROOT_URI: where the scheduler listens
  int scheduler_port = 0;                    // DMLC_PS_ROOT_PORT; 0 (scheduler only): a free one
  int servers = 0;                           // DMLC_NUM_SERVER: number of servers in the job
  int workers = 0;                           // DMLC_NUM_WORKER: number of workers in the job
  std::string node_host;  // DMLC_NODE_HOST: address for peers; empty: that of the interface facing the scheduler
  int node_port = 0;      // PACELINE_NODE_PORT: where a server listens, or a worker without servers; 0: a free one
  int task = -1;          // DMLC_TASK_ID: ranks follow it; -1: they follow the order of arrival
  std::string job;        // PACELINE_JOB_ID: processes of another job are refused
  std::string port_file;  // PACELINE_PORT_FILE: the scheduler writes "host port" there once it listens
  // PACELINE_ENDED_FILE: the launcher writes a line to it for each worker that has ended ("worker 3 was ended by
  // signal 9"). The scheduler counts a worker that has not left the job as lost at once, before the silence deadline.
  std::string ended_file;
  // PACELINE_LOST_FILE: the scheduler writes a line to it for each worker that was lost ("worker 3").
  std::string lost_file;
  // PACELINE_KEY_FD or PACELINE_KEY_FILE: 32 bytes that every process of the job knows, and nobody else. Empty
  // (PACELINE_INSECURE=1): who reaches the ports can read and change everything. Transport inproc needs none.
  std::string secret;
  // PACELINE_TRANSPORT: "shm" (shared memory between peers of one host, tcp to other hosts), "tcp" or "inproc". With
  // "inproc", scheduler_host is the name of the job.
  std::string transport = "shm";
  std::string faults;                    // PACELINE_FAULTS: a fault plan (docs/faults.md), for tests
  int message_bytes = 0;                 // PACELINE_MESSAGE_BYTES: size of a worker's messages; 0: measured
  double start_deadline_seconds = 60;    // PACELINE_START_DEADLINE: until every process has joined
  double silence_deadline_seconds = 15;  // PACELINE_SILENCE_DEADLINE: until a silent process is lost
  // PACELINE_PROGRESS_DEADLINE: until a worker is lost that others wait for, and that ends no step and asks nothing
  // though it lives; 0: never
  double progress_deadline_seconds = 600;
  double heartbeat_seconds = 1;      // PACELINE_HEARTBEAT: between two heartbeats
  bool stop_on_worker_loss = false;  // PACELINE_ON_WORKER_LOSS=stop: the loss of one worker fails the job
  bool names_log = false;            // puts role and rank into this process's log lines; for one role per process

  // Reads the environment. If DMLC_NODE_HOST is not set, DMLC_INTERFACE may name the network interface whose address is
  // used. Turns core dumps off where there is a secret, unless PACELINE_CORE_DUMPS=1. Throws InvalidArgument naming the
  // variable that is missing or wrong.
  static ClusterConfig from_environment();
};

// Throws InvalidArgument, quoting the statement, if the text is no fault plan (docs/faults.md).
void check_faults(const std::string& plan);

// Runs a scheduler or a server. Blocks until the job ends; throws where it fails. Several may run in one process.
// Raises this process's limit of open files to the hard limit. `own`: modes, policies and codecs of the user's own that
// workers may name.
void serve(const ClusterConfig& config, const Extensions& own = {});

// For main() of programs that move large arrays. Makes malloc keep freed blocks of any size. Giving them back to the
// system would cost page faults for every message of megabytes. With `one_heap`, threads that begin later share one
// heap, which an idle server can give back to the system. Only programs that do nothing but serve should use it.
void keep_freed_memory(bool one_heap = false);

}  // namespace paceline

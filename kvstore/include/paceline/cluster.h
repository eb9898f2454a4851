#pragma once
// The processes of a job: roles, addresses, deadlines. These values come from environment variables. The variables have
// MXNet's names (DMLC_...) or names of our own (PACELINE_...).

#include <paceline/extensions.h>
#include <paceline/options.h>

#include <string>

namespace paceline {

// What a process does in a job: the scheduler knows the members, servers hold weights, workers train.
enum class Role : std::uint8_t { kScheduler, kServer, kWorker };
const char* name_of(Role role);  // "scheduler", "server" or "worker"

// A process's place in a job. The comments name the environment variables that from_environment() reads.
struct ClusterConfig {
  Role role = Role::kWorker;                 // DMLC_ROLE: scheduler, server or worker
  std::string scheduler_host = "127.0.0.1";  // DMLC_PS_ROOT_URI: where the scheduler listens
  int scheduler_port = 0;                    // DMLC_PS_ROOT_PORT; 0, for the scheduler only: any free port
  int servers = 0;                           // DMLC_NUM_SERVER: number of servers in the job
  int workers = 0;                           // DMLC_NUM_WORKER: number of workers in the job
  std::string node_host;  // DMLC_NODE_HOST: address for peers; empty: that of the interface facing the scheduler
  int node_port = 0;      // PACELINE_NODE_PORT: port of a server, or of a worker if `servers` is 0; 0: any free port
  int task = -1;          // DMLC_TASK_ID: task number, which ranks follow; -1: ranks follow the order of arrival
  std::string job;        // PACELINE_JOB_ID: name of the job; processes of other jobs are refused
  std::string port_file;  // PACELINE_PORT_FILE: the scheduler writes "host port" there once it listens
  // PACELINE_ENDED_FILE: the scheduler reads from this file which servers and workers have ended, in lines such as
  // "worker 3 was ended by signal 9". The launcher appends such a line for each worker that it sees end. If the process
  // that a line names has not left the job, the scheduler counts it as lost at once, before the silence deadline.
  std::string ended_file;
  // PACELINE_LOST_FILE: the scheduler appends a line to this file for each worker that was lost, such as "worker 3".
  std::string lost_file;
  // Read from the pipe PACELINE_KEY_FD or the file PACELINE_KEY_FILE: 32 secret bytes that only the processes of the
  // job know. Empty with PACELINE_INSECURE=1: anyone who reaches the ports can then read and change everything.
  // Transport inproc needs no secret.
  std::string secret;
  // PACELINE_TRANSPORT: "shm" (shared memory between peers of one host, tcp to other hosts), "tcp" or "inproc". With
  // "inproc", scheduler_host is no address, but any text that only the members of this job have.
  std::string transport = "shm";
  std::string faults;                    // PACELINE_FAULTS: a fault plan (docs/faults.md), for tests
  int message_bytes = 0;                 // PACELINE_MESSAGE_BYTES: size of messages to servers; 0: set by measurements
  double start_deadline_seconds = 60;    // PACELINE_START_DEADLINE: time for every process to join
  double silence_deadline_seconds = 15;  // PACELINE_SILENCE_DEADLINE: time until a silent process counts as lost
  // PACELINE_PROGRESS_DEADLINE: time until a live worker counts as lost if other workers wait for it, and it ends no
  // step and sends no request. 0: never.
  double progress_deadline_seconds = 600;
  double heartbeat_seconds = 1;      // PACELINE_HEARTBEAT: time between two heartbeats
  bool stop_on_worker_loss = false;  // PACELINE_ON_WORKER_LOSS=stop: the loss of one worker fails the job
  bool names_log = false;            // log lines name role and rank; keep false if this process runs several roles

  // Reads the environment. If DMLC_NODE_HOST is not set, DMLC_INTERFACE may give the name of a network interface, or
  // its first letters; node_host is then the address of that interface. If the job has a secret, turns core dumps off,
  // unless PACELINE_CORE_DUMPS=1. Raises this process's limit of open files to the hard limit, unless the transport is
  // inproc. Throws InvalidArgument naming the variable that is missing or wrong.
  static ClusterConfig from_environment();
};

// Throws InvalidArgument if `plan` is no fault plan (docs/faults.md), or names a process that a job of so many workers
// and servers does not have. The error quotes the wrong statement.
void check_faults(const std::string& plan, int workers, int servers);

// Runs a scheduler or a server. Blocks until the job ends. Throws InvalidArgument for the role of a worker, and
// NetworkError or Timeout if the job fails. Several may run in one process, each in a thread. `own`: the user's modes,
// policies and codecs, which workers may name.
void serve(const ClusterConfig& config, const Extensions& own = {});

// For main() of programs that move large arrays. Call it before other threads start. Makes malloc keep large freed
// blocks, because returning them to the system would cost page faults for every large message. malloc keeps blocks of
// up to 1 GiB in the heap of the main thread. It keeps blocks of up to about 64 MiB in the heaps of other threads. With
// `one_heap`, threads that begin later share the heap of the main thread, which an idle server can return to the
// system. Only programs that do nothing but serve should set `one_heap`.
void keep_freed_memory(bool one_heap = false);

}  // namespace paceline

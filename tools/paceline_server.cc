// The program of a job's scheduler and servers: no user code runs there. tools/launch.py starts it.

#include <paceline/cluster.h>
#include <paceline/kvstore.h>
#include <paceline/log.h>
#include <pthread.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <thread>

#include "flags.h"

DEFINE_string(check_mode, "", "serve nothing, say whether this is a mode: dist_sync:backup=1");
DEFINE_string(check_faults, "", "serve nothing, say whether this is a fault plan: drop 0.1 worker*->server0");

namespace {

constexpr char kUsage[] =
    "paceline_server\n\n"
    "Serves a job as its scheduler or as one of its servers until the job ends. It is told which by the environment:\n"
    "  DMLC_ROLE                   scheduler or server\n"
    "  DMLC_PS_ROOT_URI, _PORT     where the scheduler listens (port 0, scheduler only: any)\n"
    "  DMLC_NUM_SERVER, _WORKER    how many of each the job has\n"
    "  DMLC_NODE_HOST              this host's address as the others reach it; by default the one that faces the\n"
    "  DMLC_INTERFACE              scheduler, or that of the interface named\n"
    "  DMLC_TASK_ID                ranks follow it\n"
    "  PACELINE_JOB_ID             processes of another job are refused\n"
    "  PACELINE_KEY_FILE           file with the key of the job, 64 hexadecimal digits; or PACELINE_KEY_FD, a pipe "
    "that\n"
    "                              holds it; or PACELINE_INSECURE=1, to do without\n"
    "  PACELINE_PORT_FILE          the scheduler writes `host port` there\n"
    "  PACELINE_ENDED_FILE         the scheduler reads there which processes have ended: `worker 3 was killed`\n"
    "  PACELINE_LOST_FILE          the scheduler writes there which workers were lost: `worker 3`\n"
    "  PACELINE_TRANSPORT          shm (shared memory between peers of one host, tcp to others; the default), or tcp\n"
    "  PACELINE_NODE_PORT          where a server listens; by default any port\n"
    "  PACELINE_START_DEADLINE     seconds until every process must have joined (60)\n"
    "  PACELINE_SILENCE_DEADLINE   seconds until a process that is not heard of is lost (15)\n"
    "  PACELINE_PROGRESS_DEADLINE  seconds until a worker that all others wait for is lost (600; 0: never)\n"
    "  PACELINE_HEARTBEAT          seconds between signs of life (1)\n"
    "  PACELINE_ON_WORKER_LOSS     continue, or stop: the loss of a worker fails the job\n"
    "  PACELINE_FAULTS             a plan of faults, for tests of a job: docs/faults.md\n"
    "  PACELINE_CORE_DUMPS         1: the memory of this process, keys too, may go into core dumps\n"
    "  PACELINE_NUM_THREADS        cores that this process may use\n\n"
    "Exit code: 0 when the job has ended, 1 when it failed, 2 for a mistake in the command line or the\n"
    "environment.";

// Signals end the process from a thread, never in the middle of a library.
void end_on_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals] {
    int signal = 0;
    sigwait(&signals, &signal);
    std::_Exit(128 + signal);
  }).detach();
}

// Also where its value is ''.
bool is_given(const char* flag) { return !gflags::GetCommandLineFlagInfoOrDie(flag).is_default; }

// What the environment says about the job's size. Where it says nothing, there is no limit.
int count_of(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : std::numeric_limits<int>::max();
}

}  // namespace

int main(int argc, char** argv) {
  paceline::tools::parse_flags(kUsage, __FILE__, &argc, &argv);
  if (is_given("check_mode"))
    return paceline::tools::run_main("paceline_server", [] {
      paceline::KVStore::check(FLAGS_check_mode);
      return 0;
    });
  if (is_given("check_faults"))
    return paceline::tools::run_main("paceline_server", [] {
      paceline::check_faults(FLAGS_check_faults, count_of("DMLC_NUM_WORKER"), count_of("DMLC_NUM_SERVER"));
      return 0;
    });
  end_on_signals();
  paceline::keep_freed_memory(true);
  return paceline::tools::run_main("paceline_server", [] {
    const paceline::ClusterConfig config = paceline::ClusterConfig::from_environment();
    paceline::set_log_identity(paceline::name_of(config.role));
    paceline::serve(config);
    return 0;
  });
}

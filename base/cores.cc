#include <paceline/cores.h>

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace paceline {
namespace {

int read_budget() {
  if (const char* wanted = std::getenv("PACELINE_NUM_THREADS")) {
    const int threads = std::atoi(wanted);
    if (threads > 0) return threads;
  }
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) return std::max(1, CPU_COUNT(&allowed));
  return std::max(1L, sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace

int core_budget() {
  static const int budget = read_budget();
  return budget;
}

void set_team_size(int threads) { omp_set_num_threads(std::max(1, threads)); }

int team_size() { return omp_get_max_threads(); }

void use_passive_waiting(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY")) return;
  setenv("OMP_WAIT_POLICY", "PASSIVE", 1);
  execv("/proc/self/exe", argv);
}

void name_thread(const char* name) {
  char shortened[16] = {};
  std::strncpy(shortened, name, sizeof(shortened) - 1);
  pthread_setname_np(pthread_self(), shortened);
}

}  // namespace paceline

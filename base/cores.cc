#include <paceline/cores.h>
#include <paceline/error.h>

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace paceline {
namespace {

int read_budget() {
  const char* wanted = std::getenv("PACELINE_NUM_THREADS");
  if (wanted && *wanted) {
    const char* end = wanted + std::strlen(wanted);
    int threads = 0;
    const auto [stopped, error] = std::from_chars(wanted, end, threads);
    require(error == std::errc() && stopped == end && threads > 0, "PACELINE_NUM_THREADS=", wanted,
            " is not a whole number above 0");
    return threads;
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

// OMP_THREAD_LIMIT bounds the number, because OpenBLAS splits its work over as many threads as were asked for. Where
// fewer threads could start, they would wait for the others for ever.
void set_team_size(int threads) { omp_set_num_threads(std::clamp(threads, 1, std::max(1, omp_get_thread_limit()))); }

int team_size() { return omp_get_max_threads(); }

void use_passive_waiting(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY")) return;
  // NOLINTBEGIN(concurrency-mt-unsafe): the process has only one thread here, and execv() starts the program again
  setenv("OMP_WAIT_POLICY", "PASSIVE", 1);
  setenv("GOMP_SPINCOUNT", "10000", 0);
  // NOLINTEND(concurrency-mt-unsafe)
  execv("/proc/self/exe", argv);
}

void name_thread(const char* name) {
  char shortened[16] = {};
  std::strncpy(shortened, name, sizeof(shortened) - 1);
  pthread_setname_np(pthread_self(), shortened);
}

}  // namespace paceline

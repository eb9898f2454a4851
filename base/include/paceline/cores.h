#pragma once
// Who owns the cores. A process has one budget, from its CPU affinity and PACELINE_NUM_THREADS. The numbers of compute
// threads, decode threads and server threads follow from it. Their sum may exceed it. A thread of a CPU device's
// compute lane uses an OpenMP team of core_budget() / cpu_lanes threads (EngineOptions). oneDNN, OpenBLAS and our own
// loops share one OpenMP runtime. Decode threads, server shards, ring peers and callback threads call
// become_single_threaded() first, so they start no second team. All functions but use_passive_waiting() are
// thread-safe.

namespace paceline {

// The number of cores for this process, at least 1: PACELINE_NUM_THREADS, else the number of CPUs that it may run on.
// The variable is read once. Throws InvalidArgument for anything but a number above 0.
int core_budget();

// Sets the number of threads in the calling thread's OpenMP team: at least 1, at most OMP_THREAD_LIMIT.
void set_team_size(int threads);
int team_size();  // the number of threads in the calling thread's OpenMP team
// From now on the calling thread computes alone.
inline void become_single_threaded() { set_team_size(1); }

// Gives the calling thread another team while the scope lives, for work that is too small to wake the usual team.
class TeamScope {
 public:
  // A team of `threads` until the destructor, on the same thread.
  explicit TeamScope(int threads) : previous_(team_size()) {
    if (threads != previous_) set_team_size(threads);
  }
  ~TeamScope() {
    if (team_size() != previous_) set_team_size(previous_);
  }
  TeamScope(const TeamScope&) = delete;
  TeamScope& operator=(const TeamScope&) = delete;

 private:
  int previous_;
};

// Lets idle threads of an OpenMP team sleep, so that they do not occupy cores that others need. Executes the program
// anew, once, with OMP_WAIT_POLICY=PASSIVE where that is not set, because libgomp reads it before main(). It also sets
// GOMP_SPINCOUNT=10000 unless that is set. Idle threads then spin for about half a millisecond first, which is longer
// than most pauses of a training step. In a job of the launcher the policy is set already, and they sleep at once. Call
// it first in main().
void use_passive_waiting(char** argv);

// Names the calling thread for debuggers and traces (15 characters are kept).
void name_thread(const char* name);

}  // namespace paceline

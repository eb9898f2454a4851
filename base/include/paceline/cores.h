#pragma once
// Who owns the cores. A process has one budget, from its CPU affinity and PACELINE_NUM_THREADS. Engine lanes, decode
// threads and server threads are cut from it. A CPU device has one compute lane, whose operators use a team of `budget`
// OpenMP threads; oneDNN, OpenBLAS and our own loops share the one OpenMP runtime. Every other thread calls
// become_single_threaded() first, so that two threads never start two teams. All functions are thread-safe.

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

// Lets idle team members sleep instead of burning a shared core. Executes the program anew, once, with
// OMP_WAIT_POLICY=PASSIVE where that is not set, because libgomp reads it before main(). Call it first in main().
// Members look for work for half a millisecond before they sleep, which is longer than most pauses of a training step.
// In a job of the launcher the policy is set already, and they sleep at once.
void use_passive_waiting(char** argv);

// Names the calling thread for debuggers and traces (15 characters are kept).
void name_thread(const char* name);

}  // namespace paceline

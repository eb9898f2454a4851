#pragma once
// Who owns the cores. One budget for the process, from its CPU affinity and PACELINE_NUM_THREADS; engine lanes, decode
// threads and server threads are cut from it. A CPU device has one compute lane whose operators use a team of
// `budget` OpenMP threads (oneDNN, OpenBLAS and our own loops share the one OpenMP runtime); every other thread calls
// become_single_threaded() first, so that two threads never start two teams.

namespace paceline {

// At least 1. Read once from PACELINE_NUM_THREADS (anything but a number above 0 throws InvalidArgument), else the
// number of CPUs this process may run on.
int core_budget();

// Sets the OpenMP team of the calling thread, at least 1 and at most OMP_THREAD_LIMIT. The compute lane of a CPU device
// uses its share of the budget.
void set_team_size(int threads);
int team_size();
inline void become_single_threaded() { set_team_size(1); }

// Another team for the calling thread while alive, for work that is too small to wake the team for.
class TeamScope {
 public:
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

// Re-executes the program once with OMP_WAIT_POLICY=PASSIVE where that is not set (libgomp reads it before main), so
// that idle team members sleep instead of burning a shared core. They look for work for half a millisecond first,
// longer than a training step mostly leaves them without; in jobs of the launcher, which sets the policy, not at all.
// Call first in main(). Returns where nothing is to do.
void use_passive_waiting(char** argv);

// Names the calling thread for debuggers and traces (15 characters are kept).
void name_thread(const char* name);

}  // namespace paceline

// How far a thread may run ahead of the tasks that it has pushed.
#include <gtest/gtest.h>
#include <paceline/detail/run_ahead.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace paceline::detail {
namespace {

using namespace std::chrono_literals;

// Whether a thread of this process is asleep.
bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string stat;
  std::getline(file, stat);
  return stat.find(") S ") != std::string::npos;
}

// How long a thread waits that finds no room, until half is free.
std::chrono::steady_clock::duration time_until_half_is_free() {
  constexpr std::int64_t kPart = RunAhead::kMost / 4;
  std::vector<RunAhead> held;
  std::atomic<pid_t> full = 0;  // then the pusher's number
  std::atomic<bool> went_on = false;
  std::chrono::steady_clock::duration waited{};
  const auto begin = std::chrono::steady_clock::now();
  std::thread pusher([&] {
    for (int i = 0; i < 5; ++i) held.emplace_back(kPart);
    const auto full_at = std::chrono::steady_clock::now();
    full = gettid();
    const RunAhead next(kPart);
    waited = std::chrono::steady_clock::now() - full_at;
    went_on = true;
  });
  // Only a thread that has begun to wait needs half: before, it looks whether there is any room.
  while (full == 0 || !(sleeps(full) || went_on)) std::this_thread::yield();
  while (held.size() > 3) held.pop_back();
  std::this_thread::sleep_for(20ms);
  const bool too_early = went_on;
  // When nothing becomes free for a second, it may go on without room.
  EXPECT_TRUE(!too_early || std::chrono::steady_clock::now() - begin > 900ms);
  held.pop_back();
  pusher.join();
  return waited;
}

TEST(RunAhead, AThreadWaitsUntilHalfIsFree) {
  std::chrono::steady_clock::duration shortest = 1h;  // a busy machine may hold one of them up
  for (int round = 0; round < 5 && shortest >= 800ms; ++round) shortest = std::min(shortest, time_until_half_is_free());
  EXPECT_LT(shortest, 800ms) << "it noticed the room by looking again";
}

}  // namespace
}  // namespace paceline::detail

#pragma once
// What the threads of a transport sleep on: numbered file descriptors and a bell. An event of these wakes one thread,
// once. The thread that is woken must therefore handle everything that has arrived there. Of several sleeping threads,
// the kernel wakes the one that began to sleep last.

#include <cstdint>
#include <vector>

namespace paceline {

class WakeUps {
 public:
  static constexpr std::uint64_t kBell = 0;

  // Throws NetworkError.
  WakeUps();
  ~WakeUps();
  WakeUps(const WakeUps&) = delete;
  WakeUps& operator=(const WakeUps&) = delete;

  // Watches the descriptor until it is closed.
  void add(int descriptor, std::uint64_t number);
  // Wakes one thread, now or when it next waits.
  void ring() const;
  // Sleeps. Returns the numbers of the descriptors that woke this thread; kBell is the bell's.
  std::vector<std::uint64_t> wait() const;

 private:
  const int bell_, set_;
};

}  // namespace paceline

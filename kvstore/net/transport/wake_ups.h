#pragma once
// Lets the threads of a transport sleep until something arrives at a numbered file descriptor, or the bell rings. Each
// event wakes one thread, once. The woken thread must therefore handle everything that has arrived at the descriptor.
// Of several sleeping threads, the kernel wakes the one that began to sleep last.

#include <cstdint>
#include <vector>

namespace paceline {

class WakeUps {
 public:
  static constexpr std::uint64_t kBell = 0;

  // Throws NetworkError if no file descriptor is left.
  WakeUps();
  ~WakeUps();
  WakeUps(const WakeUps&) = delete;
  WakeUps& operator=(const WakeUps&) = delete;

  // Watches the descriptor until it is closed. Throws NetworkError if the system watches no more descriptors.
  void add(int descriptor, std::uint64_t number);
  // Wakes one sleeping thread. If none sleeps, the next call of wait() returns at once.
  void ring() const;
  // Sleeps until an event. Returns the numbers of the descriptors that woke this thread. kBell is the number of the
  // bell.
  std::vector<std::uint64_t> wait() const;

 private:
  const int bell_, set_;
};

}  // namespace paceline

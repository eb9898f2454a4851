#pragma once
// What a transport's threads sleep on: file descriptors by number, and a bell. Each wakes one thread, and once: whoever
// is woken looks at all that may have arrived there. Of several threads that sleep the kernel wakes the last to come.

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

  // Until it is closed.
  void add(int descriptor, std::uint64_t number);
  void ring() const;
  // Sleeps. The numbers of what woke this thread, kBell among them.
  std::vector<std::uint64_t> wait() const;

 private:
  const int bell_, set_;
};

}  // namespace paceline

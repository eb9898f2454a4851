#pragma once
// Other legal orders than the usual one, drawn from a seed, for tests that look for what depends on luck.

#include <paceline/detail/spin_lock.h>
#include <paceline/detail/split_mix.h>

#include <cstdint>

#include <sched.h>
#include <unistd.h>

namespace paceline::detail {

class Schedule {
 public:
  // 0: the usual order.
  explicit Schedule(std::uint64_t seed) : seed_(seed) {}

  bool is_shuffled() const { return seed_ != 0; }

  // Which of the tasks that may run goes first.
  int priority(std::uint64_t task) const { return static_cast<int>(draw(2 * task) >> 33) - (1 << 30); }

  // Lets others go first: mostly not, sometimes for as long as small tasks take, now and then for long.
  void delay(std::uint64_t task) const {
    const std::uint64_t drawn = draw(2 * task + 1);
    switch (drawn % 16) {
      case 0: usleep(1); break;
      case 1:
      case 2:
      case 3: sched_yield(); break;
      case 4:
      case 5:
      case 6:
      case 7:
        for (std::uint64_t i = drawn >> 54; i > 0; --i) pause_briefly();
        break;
      default: break;
    }
  }

 private:
  std::uint64_t draw(std::uint64_t position) const { return finalised(seed_ + position * kSplitMixStep); }

  const std::uint64_t seed_;
};

}  // namespace paceline::detail

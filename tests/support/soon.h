#pragma once
// Waiting for what happens on other threads.

#include <chrono>
#include <thread>

namespace paceline::test {

// Waits for the condition, far longer than it takes: repetitions of what a bad network lost are seconds apart. Returns
// whether it holds.
template <class Condition>
bool soon(Condition condition) {
  for (int i = 0; i < 60000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

}  // namespace paceline::test

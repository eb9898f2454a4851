#pragma once
// Independent pieces of work on several threads.

#include <paceline/detail/start_thread.h>
#include <paceline/mutex.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace paceline::detail {

// Calls body(0) to body(count - 1), up to `threads` at a time. After an error no further call begins; the first error
// is thrown when all have ended.
template <class Body>
void in_parallel(std::size_t count, int threads, const Body& body) {
  Mutex mutex;
  std::size_t next = 0;
  std::exception_ptr failure;
  const auto work = [&] {
    for (;;) {
      std::size_t mine = 0;
      {
        Lock lock(mutex);
        if (next >= count) return;
        mine = next++;
      }
      try {
        body(mine);
      } catch (...) {
        Lock lock(mutex);
        if (!failure) failure = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::thread> others;
  const std::size_t wanted = std::min(count, static_cast<std::size_t>(std::max(threads, 1)));
  try {
    while (others.size() + 1 < wanted) others.push_back(start_thread("files", work));
  } catch (const OutOfMemory&) {
    // Fewer do.
  }
  work();
  for (std::thread& thread : others) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace paceline::detail

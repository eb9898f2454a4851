#pragma once
// Threads that a caller can do without: where the system makes no more, it says so in a sentence.

#include <paceline/error.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace paceline::detail {

// Throws OutOfMemory where the system makes no more threads; `of` says whose it is, and how many there are already.
template <class Body>
std::thread start_thread(const std::string& of, Body body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw OutOfMemory(str("the system makes no more threads, for ", of, ": ", error.what(),
                          "; use fewer (PACELINE_NUM_THREADS), or raise its limits"));
  }
}

}  // namespace paceline::detail

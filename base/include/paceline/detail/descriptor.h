#pragma once
// File descriptors: one that is closed on every way out, and how many a process may have.

#include <sys/resource.h>
#include <unistd.h>

#include <utility>

namespace paceline::detail {

class Descriptor {
 public:
  // Takes over an open descriptor; a negative number is none.
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  int number() const { return number_; }
  // Gives it away, open.
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

// Lets the process open as many files and connections as the system allows, instead of 1,024 as a rule.
inline void raise_descriptor_limit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace paceline::detail

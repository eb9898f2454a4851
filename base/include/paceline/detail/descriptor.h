#pragma once
// A file descriptor that is closed on every way out.

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

}  // namespace paceline::detail

#include "transport/wake_ups.h"

#include <paceline/error.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

namespace paceline {

WakeUps::WakeUps() : bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), set_(epoll_create1(EPOLL_CLOEXEC)) {
  if (bell_ < 0 || set_ < 0) {
    if (bell_ >= 0) ::close(bell_);
    throw NetworkError("[tcp] no file descriptor is left; raise the limit (ulimit -n)");
  }
  add(bell_, kBell);
}

WakeUps::~WakeUps() {
  ::close(set_);
  ::close(bell_);
}

void WakeUps::add(int descriptor, std::uint64_t number) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = number;
  if (epoll_ctl(set_, EPOLL_CTL_ADD, descriptor, &event) != 0)
    throw NetworkError("[tcp] the system watches no more file descriptors (/proc/sys/fs/epoll/max_user_watches)");
}

void WakeUps::ring() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(bell_, &one, sizeof(one));
}

std::vector<std::uint64_t> WakeUps::wait() const {
  constexpr int kMost = 16;  // the next call returns further events
  epoll_event events[kMost];
  int count = 0;
  while ((count = epoll_wait(set_, events, kMost, -1)) < 0 && errno == EINTR) {
  }
  std::vector<std::uint64_t> numbers;
  // Copies the number: epoll_event is packed, so the number inside may not be aligned.
  for (int i = 0; i < count; ++i) numbers.push_back(std::uint64_t{events[i].data.u64});
  return numbers;
}

}  // namespace paceline

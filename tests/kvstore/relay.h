#pragma once
// Stands on the path between two transports of a test: passes bytes on, keeps a copy, changes them, or cuts.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace paceline::test {

// The TCP ports at which this process listens.
inline std::vector<int> listening_ports() {
  std::vector<int> ports;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int number = std::stoi(entry.path().filename());
    int listens = 0;
    socklen_t size = sizeof(listens);
    if (getsockopt(number, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    sockaddr_storage at = {};
    size = sizeof(at);
    if (getsockname(number, reinterpret_cast<sockaddr*>(&at), &size) != 0) continue;
    if (at.ss_family == AF_INET) ports.push_back(ntohs(reinterpret_cast<sockaddr_in*>(&at)->sin_port));
    if (at.ss_family == AF_INET6) ports.push_back(ntohs(reinterpret_cast<sockaddr_in6*>(&at)->sin6_port));
  }
  return ports;
}

inline sockaddr_in address_of(const char* host, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  inet_pton(AF_INET, host, &address.sin_addr);
  return address;
}

// From 127.0.0.2 to 127.0.0.1, at one port.
class Relay {
 public:
  explicit Relay(int port) : port_(port), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    const sockaddr_in at = address_of("127.0.0.2", port);
    if (bind(listener_, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0 || listen(listener_, 16) != 0)
      throw std::runtime_error("the relay cannot listen");
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() {
    stop_ = true;
    thread_.join();
    for (const Pair& pair : pairs_) close_both(pair);
    close(listener_);
  }
  Relay(const Relay&) = delete;

  void cut() { cut_ = true; }
  // Until the next cut, what the connecting side sends does not arrive.
  void swallow() { swallowing_ = true; }
  std::size_t swallowed() const { return swallowed_; }
  // Until the next cut, bytes arrive this much later.
  void delay(std::chrono::milliseconds by) { delay_ = by.count(); }
  // Flips a bit in a byte of the next large piece of what the connecting side sends.
  void damage_next() { damage_ = true; }
  int connections() const { return connections_; }
  // What travelled from who connected, and back; one text for each connection.
  std::vector<std::string> forth() const { return copy(&Streams::forth); }
  std::vector<std::string> back() const { return copy(&Streams::back); }

 private:
  struct Streams {
    std::string forth, back;
  };
  struct Late {
    std::chrono::steady_clock::time_point due;
    bool forth = false;
    std::string bytes;
  };
  struct Pair {
    int in = -1, out = -1;
    std::size_t number = 0;
    std::deque<Late> late = {};
  };

  std::vector<std::string> copy(std::string Streams::*which) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> texts;
    for (const Streams& streams : streams_) texts.push_back(streams.*which);
    return texts;
  }

  static void close_both(const Pair& pair) {
    close(pair.in);
    close(pair.out);
  }

  void run() {
    while (!stop_) {
      std::vector<pollfd> ready{{listener_, POLLIN, 0}};
      for (const Pair& pair : pairs_)
        for (const int end : {pair.in, pair.out}) ready.push_back({end, POLLIN, 0});
      poll(ready.data(), ready.size(), 5);
      if (cut_.exchange(false)) {
        for (const Pair& pair : pairs_) close_both(pair);
        pairs_.clear();
        swallowing_ = false;
        delay_ = 0;
        continue;
      }
      for (std::size_t i = pairs_.size(); i-- > 0;) {
        Pair& pair = pairs_[i];
        if ((ready[1 + 2 * i].revents == 0 || pass_on(pair, true)) &&
            (ready[2 + 2 * i].revents == 0 || pass_on(pair, false)) && write_late(pair))
          continue;
        close_both(pair);
        pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (ready[0].revents != 0) take();
    }
  }

  void take() {
    const int in = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (in < 0) return;
    const int out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in to = address_of("127.0.0.1", port_);
    if (connect(out, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
      close(in);
      close(out);
      return;
    }
    const std::lock_guard lock(mutex_);
    streams_.emplace_back();
    pairs_.push_back({in, out, streams_.size() - 1, {}});
    ++connections_;
  }

  bool pass_on(Pair& pair, bool forth) {
    char part[65536];
    const ssize_t count = read(forth ? pair.in : pair.out, part, sizeof(part));
    if (count <= 0) return false;
    if (forth && swallowing_) {
      swallowed_ += static_cast<std::size_t>(count);
      return true;
    }
    if (forth && count >= 4096 && damage_.exchange(false)) part[count / 2] ^= 4;
    {
      const std::lock_guard lock(mutex_);
      (forth ? streams_[pair.number].forth : streams_[pair.number].back).append(part, static_cast<std::size_t>(count));
    }
    pair.late.push_back(
        {std::chrono::steady_clock::now() + std::chrono::milliseconds(delay_), forth, {part, part + count}});
    return true;
  }

  static bool write_late(Pair& pair) {
    for (; !pair.late.empty() && pair.late.front().due <= std::chrono::steady_clock::now(); pair.late.pop_front()) {
      const Late& late = pair.late.front();
      const int to = late.forth ? pair.out : pair.in;
      for (std::size_t sent = 0; sent < late.bytes.size();) {
        const ssize_t now = send(to, late.bytes.data() + sent, late.bytes.size() - sent, MSG_NOSIGNAL);
        if (now <= 0) return false;
        sent += static_cast<std::size_t>(now);
      }
    }
    return true;
  }

  const int port_, listener_;
  std::atomic<bool> stop_ = false, cut_ = false, damage_ = false, swallowing_ = false;
  std::atomic<std::size_t> swallowed_ = 0;
  std::atomic<std::int64_t> delay_ = 0;  // ms
  std::atomic<int> connections_ = 0;
  mutable std::mutex mutex_;
  std::vector<Streams> streams_;
  std::vector<Pair> pairs_;  // of the thread
  std::thread thread_;
};

}  // namespace paceline::test

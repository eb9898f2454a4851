#include "tcp_sockets.h"

#include <fcntl.h>
#include <netdb.h>
#include <paceline/error.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include "random.h"

namespace paceline {
namespace {

constexpr std::size_t kCopyBelow = 1024;  // bytes; holding an owner costs more than copying fewer bytes

void release(void*, void* owner) { delete static_cast<std::shared_ptr<const void>*>(owner); }

zmq::message_t message_of(const Frame& frame) {
  if (frame.size < kCopyBelow) return zmq::message_t(frame.data, frame.size);
  auto owner = std::make_unique<std::shared_ptr<const void>>(frame.owner);
  zmq::message_t message(const_cast<std::byte*>(frame.data), frame.size, release, owner.get());
  [[maybe_unused]] const auto* const given_away = owner.release();
  return message;
}

std::string peer_number(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  char text[NI_MAXHOST];
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0)
    return "";
  return text;
}

zmq_msg_t* last_message(const Packet& packet) {
  if (packet.empty()) return nullptr;
  return const_cast<zmq::message_t*>(static_cast<const zmq::message_t*>(packet.back().owner.get()))->handle();
}

}  // namespace

Socket open_socket(zmq::context_t& context, zmq::socket_type type, std::int64_t max_message_bytes) {
  constexpr int kLingerMilliseconds = 300;
  try {
    Socket socket(context, type);
    socket.set(zmq::sockopt::ipv6, true);
    socket.set(zmq::sockopt::linger, kLingerMilliseconds);
    socket.set(zmq::sockopt::sndhwm, 0);
    socket.set(zmq::sockopt::rcvhwm, 0);
    socket.set(zmq::sockopt::maxmsgsize, max_message_bytes);
    socket.set(zmq::sockopt::handshake_ivl, 10000);
    // ZeroMQ gives up a connection that has silently died, and makes a new one.
    socket.set(zmq::sockopt::tcp_maxrt, 30000);  // ms
    socket.set(zmq::sockopt::tcp_keepalive, 1);
    socket.set(zmq::sockopt::tcp_keepalive_idle, 30);
    socket.set(zmq::sockopt::tcp_keepalive_intvl, 10);
    socket.set(zmq::sockopt::tcp_keepalive_cnt, 3);
    return socket;
  } catch (const zmq::error_t& error) {
    throw NetworkError(std::string("[tcp] cannot open a socket: ") + error.what());
  }
}

std::string endpoint_of(const HostPort& peer) {
  // If a name has IPv4 and IPv6 addresses, ZeroMQ would try only IPv6. A name that cannot be resolved yet is left to
  // ZeroMQ, which tries again.
  const std::string number = resolve_host(peer.host);
  return "tcp://" + join_host_port(number.empty() ? peer.host : number, peer.port);
}

std::string new_routing_id() {
  constexpr std::size_t kBytes = 16;
  return "P" + random_bytes(kBytes);  // ZeroMQ reserves ids that begin with a zero byte
}

Socket monitor_of(zmq::context_t& context, Socket& socket, int events) {
  static std::atomic<int> count = 0;
  const std::string reports = "inproc://monitor-" + std::to_string(++count);
  uninterrupted([&] {
    if (zmq_socket_monitor(socket.handle(), reports.c_str(), events) != 0) throw zmq::error_t();
  });
  Socket monitor(context, zmq::socket_type::pair);
  monitor.set(zmq::sockopt::linger, 0);
  uninterrupted([&] { monitor.connect(reports); });
  return monitor;
}

bool read_event(Socket& monitor) {
  zmq::message_t event, address;
  if (!receive_frame(monitor, event)) return false;
  return !event.more() || receive_frame(monitor, address);
}

Socket bind_router(zmq::context_t& context, Socket& router, HostPort& at) {
  const std::string asked = join_host_port(at.host, at.port);
  const bool any = at.host == "*" || at.host == "0.0.0.0" || at.host == "::";
  const std::string host = any ? "*" : resolve_host(at.host);
  if (host.empty())
    throw NetworkError("[tcp] cannot listen at " + asked + ": the host name is unknown; give an address of this host");
  try {
    Socket monitor = monitor_of(context, router, kFailedHandshake | ZMQ_EVENT_LISTENING | ZMQ_EVENT_ACCEPT_FAILED);
    uninterrupted([&] { router.bind("tcp://" + join_host_port(host, at.port)); });
    const std::string endpoint = router.get(zmq::sockopt::last_endpoint);
    at.port = parse_host_port(endpoint.substr(endpoint.find("//") + 2)).port;
    return monitor;
  } catch (const zmq::error_t& error) {
    std::string advice;
    if (error.num() == EADDRINUSE)
      advice = "; choose another port, or end the process that holds it (`ss -ltnp` shows it)";
    else if (error.num() == EADDRNOTAVAIL || error.num() == ENODEV)
      advice = "; it is no address of this host (`ip address` lists them)";
    throw NetworkError("[tcp] cannot listen at " + asked + ": " + error.what() + advice);
  }
}

bool read_report(Socket& monitor, Report& report) {
  zmq::message_t event, endpoint;
  if (!receive_frame(monitor, event)) return false;
  if (event.more() && !receive_frame(monitor, endpoint)) return false;
  std::uint16_t number = 0;
  std::int32_t value = 0;
  if (event.size() >= sizeof(number) + sizeof(value)) {
    std::memcpy(&number, event.data(), sizeof(number));
    std::memcpy(&value, event.data<char>() + sizeof(number), sizeof(value));
  }
  report = {number, value, endpoint.to_string()};
  return true;
}

std::string rejection_of(const Report& report, bool keyed) {
  const char* const why = report.event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH ? "whose key is not that of a member"
                          : keyed ? "who does not speak our protocol or does not have the key of this job"
                                  : "who does not speak our protocol";
  return "turned away somebody at " + report.endpoint + ' ' + why;
}

// ZeroMQ's thread would at once take any descriptor that this process closes. So a child does the work, because it has
// a descriptor table of its own. The child shares the memory, so it makes only system calls. Its end sends no signal,
// and an ordinary wait of the program does not see it.
bool turn_away(int listener) {
  constexpr int kMost = 1000;  // connections in one call, so that the caller can do its other work
  constexpr std::size_t kStack = 65536;
  static const auto hang_up_on_all = [](void* argument) {
    const int listening = *static_cast<const int*>(argument);
    syscall(SYS_close, listening == STDIN_FILENO ? STDOUT_FILENO : STDIN_FILENO);
    for (int count = 0; count < kMost; ++count) {
      const auto waiting = syscall(SYS_accept4, listening, nullptr, nullptr, SOCK_CLOEXEC);
      if (waiting < 0) return errno == EMFILE || errno == ENFILE ? 1 : 0;
      syscall(SYS_close, waiting);
    }
    return 0;
  };
  fcntl(listener, F_SETFL, fcntl(listener, F_GETFL) | O_NONBLOCK);
  std::vector<std::byte> stack(kStack);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t child = clone(hang_up_on_all, stack.data() + stack.size(), CLONE_VM | CLONE_VFORK, &listener);
  int status = -1;
  if (child > 0) waitpid(child, &status, __WCLONE);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (status == 0) return true;
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return false;
}

bool receive_frame(Socket& socket, zmq::message_t& message) {
  return uninterrupted([&] { return socket.recv(message, zmq::recv_flags::dontwait).has_value(); });
}

void send_frame(Socket& socket, zmq::message_t message, bool more) {
  const auto flags = zmq::send_flags::dontwait | (more ? zmq::send_flags::sndmore : zmq::send_flags::none);
  uninterrupted([&] { return socket.send(message, flags); });
}

void send_frames(Socket& socket, const Packet& packet) {
  for (std::size_t i = 0; i < packet.size(); ++i) send_frame(socket, message_of(packet[i]), i + 1 < packet.size());
}

bool receive_frames(Socket& socket, std::string* routing_id, Packet& packet) {
  zmq::message_t first;
  if (!receive_frame(socket, first)) return false;
  bool more = first.more();
  if (routing_id) {
    *routing_id = first.to_string();
  } else {
    const auto owner = std::make_shared<zmq::message_t>(std::move(first));
    packet.push_back({owner, owner->data<std::byte>(), owner->size()});
  }
  while (more) {
    const auto owner = std::make_shared<zmq::message_t>();
    if (!receive_frame(socket, *owner)) return false;
    more = owner->more();
    packet.push_back({owner, owner->data<std::byte>(), owner->size()});
  }
  return true;
}

Connection connection_of(const Packet& packet) {
  zmq_msg_t* last = last_message(packet);
  if (!last) return {};
  const char* host = zmq_msg_gets(last, "Peer-Address");
  return {descriptor_of(packet), host ? host : "an unknown host"};
}

int descriptor_of(const Packet& packet) {
  zmq_msg_t* last = last_message(packet);
  return last ? zmq_msg_get(last, ZMQ_SRCFD) : -1;
}

std::string identity_of(const Packet& packet) {
  zmq_msg_t* last = last_message(packet);
  const char* identity = last ? zmq_msg_gets(last, "User-Id") : nullptr;
  return identity ? identity : "";
}

void hang_up(const Connection& connection) {
  if (connection.fd >= 0 && peer_number(connection.fd) == connection.host) shutdown(connection.fd, SHUT_RDWR);
}

}  // namespace paceline

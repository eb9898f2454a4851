#pragma once
// What the tcp transport does with one ZeroMQ socket.

#include <paceline/transport.h>
#include <zmq.hpp>

#include <cerrno>
#include <cstdint>
#include <string>

#include "transport/address.h"

namespace paceline {

using Socket = zmq::socket_t;

// The TCP connection that a frame came from.
struct Connection {
  int fd = -1;
  std::string host;  // numeric address
};

// Repeats a call that a signal has interrupted. ZeroMQ reports EINTR even from calls that do not wait.
template <class Call>
auto uninterrupted(Call call) {
  for (;;) {
    try {
      return call();
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) throw;
    }
  }
}

// Throws NetworkError where the system gives no more sockets. Messages above `max_message_bytes` break a connection.
Socket open_socket(zmq::context_t& context, zmq::socket_type type, std::int64_t max_message_bytes);

std::string endpoint_of(const HostPort& peer);
// A name for a connecting socket, which nobody can guess. It names the same link after a reconnection.
std::string new_routing_id();

// A socket that reports these events of another one.
Socket monitor_of(zmq::context_t& context, Socket& socket, int events);
constexpr int kFailedHandshake =
    ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
constexpr int kBroken = kFailedHandshake | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED;
// Reads one event. False when there is none.
bool read_event(Socket& monitor);

// Binds `router` to `at`, sets the port in `at` to the bound one, and returns a socket that reports where it listens,
// what it could not accept, and failed handshakes.
Socket bind_router(zmq::context_t& context, Socket& router, HostPort& at);
struct Report {
  int event = 0;  // ZMQ_EVENT_LISTENING, ZMQ_EVENT_ACCEPT_FAILED, or of kFailedHandshake
  int value = 0;  // the descriptor that listens; the error
  std::string endpoint;
};
// Reads the next such report. False when there is none.
bool read_report(Socket& monitor, Report& report);
// A failed handshake as a sentence. `keyed`: peers must have keys.
std::string rejection_of(const Report& report, bool keyed);

// Hangs up on those who wait at a listening socket, for a process that has no descriptor left. ZeroMQ could not accept
// them, and would try again without end. False: that failed, after a short pause.
bool turn_away(int listener);

// Never wait. receive_frame() returns false when nothing has arrived.
bool receive_frame(Socket& socket, zmq::message_t& message);
void send_frame(Socket& socket, zmq::message_t message, bool more);

void send_frames(Socket& socket, const Packet& packet);
// False when nothing has arrived. `routing_id` is null for a socket that has none.
bool receive_frames(Socket& socket, std::string* routing_id, Packet& packet);
// Of the connection that a received packet came by: where it leads, and who has proved to be there.
Connection connection_of(const Packet& packet);
int descriptor_of(const Packet& packet);
std::string identity_of(const Packet& packet);
// Shuts the connection down, unless the descriptor now leads to another host. ZeroMQ then drops the connection.
void hang_up(const Connection& connection);

}  // namespace paceline

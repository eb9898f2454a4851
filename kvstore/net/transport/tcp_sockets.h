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

// Throws NetworkError where the system gives no more sockets. A received frame of more than `max_message_bytes` bytes
// breaks its connection.
Socket open_socket(zmq::context_t& context, zmq::socket_type type, std::int64_t max_message_bytes);

// The endpoint that ZeroMQ connects to. Resolves the host name, which may block.
std::string endpoint_of(const HostPort& peer);
// Returns a routing id that nobody can guess. After a reconnection, the id still identifies the same link.
std::string new_routing_id();

// Returns a socket that reports these events of `socket`.
Socket monitor_of(zmq::context_t& context, Socket& socket, int events);
constexpr int kFailedHandshake =
    ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
constexpr int kBroken = kFailedHandshake | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED;
// Reads one event. False when there is none.
bool read_event(Socket& monitor);

// Binds `router` to `at`, and sets the port in `at` to the bound port. Returns a socket that reports the listening
// descriptor, failed accepts and failed handshakes. Throws NetworkError if the address cannot be bound.
Socket bind_router(zmq::context_t& context, Socket& router, HostPort& at);
struct Report {
  int event = 0;  // ZMQ_EVENT_LISTENING, ZMQ_EVENT_ACCEPT_FAILED, or one of kFailedHandshake
  int value = 0;  // of LISTENING: the descriptor; of ACCEPT_FAILED: the error number
  std::string endpoint;
};
// Reads the next such report. False when there is none.
bool read_report(Socket& monitor, Report& report);
// Describes a failed handshake for the log. `keyed`: peers must have keys.
std::string rejection_of(const Report& report, bool keyed);

// Accepts and closes the connections that wait at a listening socket, for a process that has no descriptor left. ZeroMQ
// could not accept them, and would try again without end. Returns false after a short pause if this failed.
bool turn_away(int listener);

// These functions never wait. receive_frame() returns false when nothing has arrived.
bool receive_frame(Socket& socket, zmq::message_t& message);
void send_frame(Socket& socket, zmq::message_t message, bool more);

void send_frames(Socket& socket, const Packet& packet);
// Receives a packet. False when nothing has arrived. `routing_id` is null for a socket that has none.
bool receive_frames(Socket& socket, std::string* routing_id, Packet& packet);
// Describe the connection that a received packet came from: its descriptor, the host, and the identity that the peer
// has proved.
Connection connection_of(const Packet& packet);
int descriptor_of(const Packet& packet);
std::string identity_of(const Packet& packet);
// Shuts the connection down, unless the descriptor now leads to another host. ZeroMQ then drops the connection.
void hang_up(const Connection& connection);

}  // namespace paceline

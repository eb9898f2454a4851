#pragma once
// Moves packets between processes (tcp; shm, which shares memory with peers of the same host) or inside one (inproc).
// Packets of one link arrive in order if they arrive; a packet may be lost when a connection breaks. What must arrive
// is asked again by the layer above.

#include <paceline/options.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace paceline {

namespace detail {
class WaitingWork;
}

// Bytes that travel; shared so that a payload is not copied on its way. They must not change while anybody holds
// `owner`, which may be let go on any thread.
struct Frame {
  std::shared_ptr<const void> owner;
  const std::byte* data = nullptr;
  std::size_t size = 0;

  static Frame copy_of(const void* data, std::size_t size);
  static Frame of(std::string text);
};
using Packet = std::vector<Frame>;

// One direction of talk with a peer: an outgoing connection, or the way back to whoever sent a packet.
using LinkId = std::uint64_t;

// Sees every packet: on the thread that sends it or on one of the transport's, several at a time. Must not call back.
class TransportObserver {
 public:
  virtual ~TransportObserver() = default;
  virtual void on_send(LinkId link, const Packet& packet) = 0;
  virtual void on_receive(LinkId link, const Packet& packet) = 0;
  // Somebody who does not speak the transport's protocol was turned away; `what` says who and why, as far as known.
  virtual void on_reject(const std::string& /*what*/) {}
};

class Transport {
 public:
  using Handler = std::function<void(LinkId from, Packet packet)>;

  // Stops receiving, drops what was not sent within a short linger; no handler runs after the destructor.
  virtual ~Transport() = default;

  // Receives at `address` ("127.0.0.1:9091", port 0: any; inproc: any name). Returns the address peers connect to.
  // Throws NetworkError naming the address where it is in use or not ours.
  virtual std::string bind(const std::string& address) = 0;
  // Opens a link to a bound address; returns at once, connects and reconnects in the background.
  virtual LinkId connect(const std::string& address) = 0;
  // Sends without blocking; queued while the peer is away. Thread-safe. Unknown links are ignored. The owner of a frame
  // may send in its turn when it goes.
  virtual void send(LinkId link, Packet packet) = 0;
  // Forgets a link and what is queued for it, and hangs up: a peer that connected may connect again.
  virtual void close(LinkId link) = 0;
  // Where the link leads, for logs: an address, as far as known.
  virtual std::string describe(LinkId link) = 0;
  // Called for each packet, one at a time, on the transport's thread or one that does its waiting_work(); set before
  // bind and connect. Replies to `from`.
  virtual void on_receive(Handler handler) = 0;
  // Receiving, for threads that wait for what they are to receive; null where only the transport's own thread can.
  virtual std::shared_ptr<detail::WaitingWork> waiting_work() { return nullptr; }
  virtual void add_observer(std::shared_ptr<TransportObserver> observer) = 0;
  // The peer would read this as a frame where it lies: sending it costs nothing, however little of it is used.
  virtual bool reads_in_place(LinkId /*link*/, const void* /*data*/, std::size_t /*bytes*/) { return false; }
};

// `inproc`, `tcp[:io_threads=N,max_frame_bytes=N]`, `shm` with tcp's options and `host=NAME`, which shares memory only
// with peers of the same name (by default those that can); throws InvalidArgument listing the known ones.
std::unique_ptr<Transport> make_transport(const Spec& spec);

// Wraps a transport and loses, duplicates, delays and reorders packets with the given probabilities, from `seed`:
// loss, duplicate, reorder (0..1), delay_ms (mean). For tests.
std::unique_ptr<Transport> make_faulty_transport(std::unique_ptr<Transport> inner, const Options& options);

}  // namespace paceline

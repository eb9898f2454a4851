#pragma once
// Transports move packets between processes, by tcp or by shm, which shares memory with peers of the same host, or
// inside one process (inproc).

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

// Bytes that travel. They are shared, so that a payload is not copied on its way, and must not change while anybody
// holds `owner`. The last reference may be released on any thread.
struct Frame {
  std::shared_ptr<const void> owner;  // keeps the bytes alive
  const std::byte* data = nullptr;    // the first byte
  std::size_t size = 0;               // in bytes

  // A frame that owns a copy of the bytes, or the text.
  static Frame copy_of(const void* data, std::size_t size);
  static Frame of(std::string text);
};
// What is sent at once: it arrives whole or not at all.
using Packet = std::vector<Frame>;

// A way to a peer: an outgoing connection, or the way back to the sender of a packet.
using LinkId = std::uint64_t;

// Sees every packet. The thread that sends it, or one of the transport's, calls it; several may at a time. It must not
// call the transport.
class TransportObserver {
 public:
  virtual ~TransportObserver() = default;
  // Before a packet is sent, and before a handler gets it.
  virtual void on_send(LinkId link, const Packet& packet) = 0;
  virtual void on_receive(LinkId link, const Packet& packet) = 0;
  // A peer that does not speak the transport's protocol was turned away. `what` says who and why, as far as known.
  virtual void on_reject(const std::string& /*what*/) {}
};

// Packets of one link arrive in order. A packet may be lost when a connection breaks; the layer above asks again for
// what must arrive. All functions are thread-safe once the handler is set.
class Transport {
 public:
  // Takes a packet that was received from a link.
  using Handler = std::function<void(LinkId from, Packet packet)>;

  // Stops receiving, and drops what is not sent within a short time. No handler runs after the destructor.
  virtual ~Transport() = default;

  // Receives at `address`: "127.0.0.1:9091", with port 0 for any port; for inproc any name. Returns the address that
  // peers connect to. Throws NetworkError naming the address where it is in use or not this host's.
  virtual std::string bind(const std::string& address) = 0;
  // Opens a link to a bound address. Returns at once; connects and reconnects in the background.
  virtual LinkId connect(const std::string& address) = 0;
  // Sends without blocking. The packet is queued while the peer is away. Unknown links are ignored. The owner of a
  // frame may send, too, when its last reference is released. Thread-safe.
  virtual void send(LinkId link, Packet packet) = 0;
  // Forgets a link and what is queued for it, and hangs up. A peer that had connected may connect again.
  virtual void close(LinkId link) = 0;
  // Where the link leads, for logs: an address as far as known.
  virtual std::string describe(LinkId link) = 0;
  // Sets the handler, before bind() and connect(). It gets one packet at a time, on the transport's thread or on one
  // that does its waiting_work(), and answers to the link that it is given.
  virtual void on_receive(Handler handler) = 0;
  // Lets a thread that waits for packets receive them itself; null where only the transport's thread can.
  virtual std::shared_ptr<detail::WaitingWork> waiting_work() { return nullptr; }
  // From then on the observer sees every packet. Thread-safe.
  virtual void add_observer(std::shared_ptr<TransportObserver> observer) = 0;
  // True: the peer would read these bytes, as a frame, where they are. Sending them costs nothing, however few it uses.
  virtual bool reads_in_place(LinkId /*link*/, const void* /*data*/, std::size_t /*bytes*/) { return false; }
};

// The transport of a spec: `inproc`, `tcp[:io_threads=N,max_frame_bytes=N]`, or `shm` with tcp's options and
// `host=NAME`. With a name, shm shares memory only with peers of the same name, else with those that can. Throws
// InvalidArgument listing the known ones.
std::unique_ptr<Transport> make_transport(const Spec& spec);

// Wraps a transport and loses, duplicates, reorders and delays packets; for tests. The options are the probabilities
// loss, duplicate and reorder, the mean delay_ms, and seed.
std::unique_ptr<Transport> make_faulty_transport(std::unique_ptr<Transport> inner, const Options& options);

}  // namespace paceline

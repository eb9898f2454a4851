#pragma once
// Transports move packets between processes, or inside one process. `tcp` uses ZeroMQ, `shm` shares memory with peers
// of the same host, and `inproc` connects threads of one process.

#include <paceline/options.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace paceline {

class Keyring;
namespace detail {
class WaitingWork;
}

// Bytes that travel. A frame shares its bytes, so that a payload is not copied on its way. The bytes must not change
// while anybody holds `owner`. Any thread may release the last reference.
struct Frame {
  std::shared_ptr<const void> owner;  // keeps the bytes alive
  const std::byte* data = nullptr;    // the first byte
  std::size_t size = 0;               // in bytes

  // Make a frame that owns a copy of the bytes, or the text.
  static Frame copy_of(const void* data, std::size_t size);
  static Frame of(std::string text);
};
// The frames of one message. They arrive together or not at all.
using Packet = std::vector<Frame>;

// A way to a peer: an outgoing connection, or the way back to the sender of a packet. A link outlives the connection:
// a peer that connects anew after its connection broke keeps it. It ends by close().
using LinkId = std::uint64_t;

// Sees every packet. The sending thread or a thread of the transport calls the observer. Several threads may call it at
// a time. It must not call the transport.
class TransportObserver {
 public:
  virtual ~TransportObserver() = default;
  // Before a packet is sent, and before a handler gets it.
  virtual void on_send(LinkId link, const Packet& packet) = 0;
  virtual void on_receive(LinkId link, const Packet& packet) = 0;
  // The transport has refused a peer that does not speak its protocol. `what` says who and why, as far as known.
  virtual void on_reject(const std::string& /*what*/) {}
};

// Moves packets over links. Packets of one link arrive in order. A packet may be lost when a connection breaks; the
// layer above repeats what must arrive. All functions are thread-safe once the handler is set.
class Transport {
 public:
  // Handles a packet that was received from a link.
  using Handler = std::function<void(LinkId from, Packet packet)>;

  // Stops receiving. Drops packets that are not sent within a short time. No handler runs after the destructor.
  virtual ~Transport() = default;

  // Encrypts every connection, and admits only peers whose keys `keyring` admits. Call it before bind() and connect().
  // inproc needs no keys, and ignores them.
  virtual void use_keys(const std::shared_ptr<Keyring>& /*keyring*/) {}
  // Receives at `address`, such as "127.0.0.1:9091". Port 0 means a free port. For inproc the address is any name.
  // Returns the address that peers connect to. Throws NetworkError if the address is in use or not this host's.
  virtual std::string bind(const std::string& address) = 0;
  // Opens a link to a bound address. Returns at once; connects and reconnects in the background. With keys, the peer
  // must prove that it has the secret to the public key `key`.
  virtual LinkId connect(const std::string& address, const std::string& key) = 0;
  LinkId connect(const std::string& address) { return connect(address, {}); }
  // Sends without blocking. The packet is queued while the peer is away. Packets for unknown links are dropped. The
  // destructor of a frame's owner may call send() itself. Thread-safe.
  virtual void send(LinkId link, Packet packet) = 0;
  // Closes the connection of a link and drops what is queued for it. A peer that had connected may connect again.
  virtual void close(LinkId link) = 0;
  // The public key that the peer of a link has proved to hold. Empty without keys, and for unknown links.
  virtual std::string identity_of(LinkId /*link*/) { return {}; }
  // Closes the links of peers that the keyring no longer admits.
  virtual void close_unadmitted() {}
  // Says that the link is a member's. Where too many peers have connected, links of others are given up first.
  virtual void keep(LinkId /*link*/) {}
  // The address that the link leads to, as far as known; for logs.
  virtual std::string describe(LinkId link) = 0;
  // Sets the handler, before bind() and connect(). The handler gets one packet at a time, on the transport's thread or
  // on a thread that does its waiting_work(). It may answer to the link that it is given.
  virtual void on_receive(Handler handler) = 0;
  // The work by which a waiting thread receives packets itself. Null if only the transport's thread can receive.
  virtual std::shared_ptr<detail::WaitingWork> waiting_work() { return nullptr; }
  // The observer sees every later packet. Thread-safe.
  virtual void add_observer(std::shared_ptr<TransportObserver> observer) = 0;
  // True: the peer would read a frame of these bytes where they are, without a copy. Sending bytes that the peer does
  // not use then costs nothing.
  virtual bool reads_in_place(LinkId /*link*/, const void* /*data*/, std::size_t /*bytes*/) { return false; }
};

// Makes the transport of a spec: `inproc`, `tcp[:io_threads=N,max_frame_bytes=N]`, or `shm` with tcp's options and
// `host=NAME`. With a name, shm shares memory only with peers of the same name. Without, it shares with every peer that
// can. Throws InvalidArgument listing the known transports or options.
std::unique_ptr<Transport> make_transport(const Spec& spec);

}  // namespace paceline

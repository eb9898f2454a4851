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

// Bytes that travel. Frames share their bytes, so that sending does not copy a payload. The bytes must not change while
// anybody holds `owner`, except as `may_change` says. Any thread may release the last reference to `owner`.
struct Frame {
  std::shared_ptr<const void> owner;  // keeps the bytes alive
  const std::byte* data = nullptr;    // the first byte
  std::size_t size = 0;               // in bytes
  // The sender may write the bytes again when the packet has arrived, so the receiver never reads them in place.
  bool may_change = false;

  // Make a frame that owns a copy of the bytes, or the text.
  static Frame copy_of(const void* data, std::size_t size);
  static Frame of(std::string text);
};
// The frames of one message. They arrive together or not at all.
using Packet = std::vector<Frame>;

// A way to a peer: an outgoing connection, or the way back to the sender of a packet. A link outlives its connection:
// if the connection breaks and the peer connects anew, the link stays the same. close() ends a link.
using LinkId = std::uint64_t;

// Sees every packet. The thread that sends or receives a packet calls the observer. Several threads may call the
// observer at a time. It must not call the transport.
class TransportObserver {
 public:
  virtual ~TransportObserver() = default;
  // Called before a packet is sent, and before the handler gets a packet.
  virtual void on_send(LinkId link, const Packet& packet) = 0;
  virtual void on_receive(LinkId link, const Packet& packet) = 0;
  // Called when the transport has turned a peer away, or has dropped a packet that breaks its protocol. `what` names
  // the peer and the reason, as far as known.
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
  // Returns `address`, with the chosen port in place of port 0. Throws NetworkError if the address is in use or not
  // this host's.
  virtual std::string bind(const std::string& address) = 0;
  // Opens a link to an address that a peer binds, now or later. Connects and reconnects in the background. The call may
  // block only until the host's name is resolved. With keys, the peer must prove that it holds the private key of the
  // public key `key`.
  virtual LinkId connect(const std::string& address, const std::string& key) = 0;
  LinkId connect(const std::string& address) { return connect(address, {}); }
  // Sends without blocking. While the peer is away, packets for an outgoing link are queued, and packets for other
  // links are dropped. Packets for unknown links are dropped, too. The destructor of a frame's owner may call send()
  // itself. Thread-safe.
  virtual void send(LinkId link, Packet packet) = 0;
  // Closes the connection of a link and drops the packets that are queued for it. A peer that had connected to this
  // process may connect again.
  virtual void close(LinkId link) = 0;
  // The public key that the peer of a link has proved to hold. Empty without keys, and for unknown links.
  virtual std::string identity_of(LinkId /*link*/) { return {}; }
  // Closes the links of peers that the keyring no longer admits.
  virtual void close_unadmitted() {}
  // Marks the link as one to a member of the job. If too many peers have connected, links without this mark are given
  // up first.
  virtual void keep(LinkId /*link*/) {}
  // The address that the link leads to, as far as known; for logs.
  virtual std::string describe(LinkId link) = 0;
  // Sets the handler. Call it before bind() and connect(). The handler gets one packet at a time, on a thread of the
  // transport or on a thread that does the waiting_work(). The handler may send to the link that it is given.
  virtual void on_receive(Handler handler) = 0;
  // Work by which a waiting thread receives packets itself. Null if only threads of the transport can receive.
  virtual std::shared_ptr<detail::WaitingWork> waiting_work() { return nullptr; }
  // The observer sees every later packet. Thread-safe.
  virtual void add_observer(std::shared_ptr<TransportObserver> observer) = 0;
  // A hint, which may be wrong when the frame is sent. True: the peer would read a frame of these bytes where they are,
  // without a copy. Sending bytes that the peer does not use then costs nothing.
  virtual bool reads_in_place(LinkId /*link*/, const void* /*data*/, std::size_t /*bytes*/) { return false; }
};

// Makes the transport of a spec: `inproc`, `tcp[:io_threads=N,max_frame_bytes=N]`, or `shm` with tcp's options and
// `host=NAME`. With a name, shm shares memory only with peers that give the same name. Without a name, it shares memory
// with peers of the same host, container and user. Throws InvalidArgument listing the known transports or options.
std::unique_ptr<Transport> make_transport(const Spec& spec);

}  // namespace paceline

#pragma once
// The state of the links of the sealed transport (sealed.cc): the packets that wait for pieces, and the keys of the
// pieces.

#include <paceline/mutex.h>
#include <paceline/transport.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "secrets/seal.h"
#include "transport/sealed.pb.h"

namespace paceline::sealed {

constexpr char kMagic[8] = {'P', 'C', 'L', 's', 'e', 'a', 'l', '\x01'};
constexpr std::size_t kMagicBytes = sizeof(kMagic);
constexpr std::size_t kSmallestSealed = 16 << 10;    // bytes of a frame; smaller frames travel in CURVE
constexpr std::size_t kLeastSealed = 128 << 10;      // bytes of a packet's large frames; for fewer, CURVE is faster
constexpr std::size_t kHeadBytes = 16;               // session and number of the piece, each little-endian
constexpr std::size_t kPieceBytes = (1 << 20) - 64;  // plaintext of a piece; with head and tag less than 1 MiB
constexpr int kMostBreaks = 8;
constexpr std::size_t kMostEarlyBytes = std::size_t{64} << 20;  // of pieces that come before their announcement

inline bool is_control(const Packet& packet) {
  return !packet.empty() && packet[0].size >= kMagicBytes && std::memcmp(packet[0].data, kMagic, kMagicBytes) == 0;
}

// Do the packet's large frames together have enough bytes to travel over the second socket?
inline bool is_large(const Packet& packet) {
  std::size_t bytes = 0;
  for (const Frame& frame : packet)
    if (frame.size >= kSmallestSealed) bytes += frame.size;
  return bytes >= kLeastSealed;
}

// A packet in the queue of a session.
struct Arriving {
  LinkId from = 0;
  Packet packet;
  std::size_t missing = 0;  // pieces that have not come
};

// Where a piece belongs.
struct Place {
  std::shared_ptr<Arriving> in;
  std::byte* to = nullptr;
  std::size_t bytes = 0;
};

// The state of one link. The transport's mutex guards everything except the contents of the keys.
struct Session {
  std::uint64_t number = 0;
  std::uint32_t round = 0;
  LinkId link = 0, bulk = 0;                    // bulk: the connection over the second socket; 0: none
  std::string identity;                         // of the peer that connected; empty if this side connected
  std::string host;                             // the host that this side connected to
  bool connected = false;                       // true if this side connected
  bool open = false;                            // large frames may go by the second socket
  Frame word;                                   // HELLO or ANSWER that this side sent in this round
  std::chrono::steady_clock::time_point asked;  // start of the pause before ask_for_second_socket() sends again
  std::chrono::steady_clock::time_point first_break;
  int breaks = 0;  // of the connection to the second socket, within ten seconds after first_break
  // When this side first said HELLO in this round, and when it began to connect `bulk`.
  std::chrono::steady_clock::time_point said, dialled;

  std::shared_ptr<const SealingKey> out, in;
  std::uint64_t next_out = 1;  // never reset: the number of a piece is its nonce

  std::deque<std::shared_ptr<Arriving>> queue;  // in the order of delivery
  bool delivering = false;                      // a thread is delivering a packet from the queue
  std::map<std::uint64_t, Place> expected;      // pieces that were announced and have not come
  std::map<std::uint64_t, Frame> early;         // pieces that came before they were announced
  std::size_t early_bytes = 0;
  std::uint64_t next_in = 1;  // the first piece number that was not announced

  // Begins a round. Pieces of earlier rounds are no longer valid. Returns the connection over the second socket that
  // the caller must close, or 0.
  LinkId begin_round(std::uint32_t new_round) {
    round = new_round;
    open = false;
    word = {};
    // A sender that has made its session anew counts from 1 again. The new keys keep its nonces unique.
    next_in = 1;
    lose_what_is_missing();
    return std::exchange(bulk, 0);
  }
  // Keeps a piece that came before its announcement. False if the kept pieces now have too many bytes.
  bool keep_early(std::uint64_t piece, Frame frame) {
    early_bytes += frame.size;
    early.emplace(piece, std::move(frame));
    return early_bytes <= kMostEarlyBytes;
  }
  // Puts an announced packet into the queue. Its pieces have numbers from `first` on. Returns the pieces that have come
  // already.
  std::vector<std::pair<std::uint64_t, Frame>> expect(const std::shared_ptr<Arriving>& arriving, std::uint64_t first,
                                                      std::vector<Place> places) {
    queue.push_back(arriving);
    next_in = first + places.size();
    for (std::size_t i = 0; i < places.size(); ++i) expected.emplace(first + i, std::move(places[i]));
    return take_early(first);
  }
  // Returns the kept pieces that have been announced now. Drops kept pieces with lower numbers: their announcement was
  // lost.
  std::vector<std::pair<std::uint64_t, Frame>> take_early(std::uint64_t first_announced) {
    std::vector<std::pair<std::uint64_t, Frame>> taken;
    while (!early.empty() && early.begin()->first < next_in) {
      auto piece = early.extract(early.begin());
      early_bytes -= piece.mapped().size;
      if (piece.key() >= first_announced) taken.emplace_back(piece.key(), std::move(piece.mapped()));
    }
    return taken;
  }
  // Takes the first packet of the queue, if none of its pieces is missing and no other packet is being delivered.
  // Otherwise returns null.
  std::shared_ptr<Arriving> take_whole() {
    if (delivering || queue.empty() || queue.front()->missing > 0) return nullptr;
    const std::shared_ptr<Arriving> first = std::move(queue.front());
    queue.pop_front();
    delivering = true;
    return first;
  }
  // This side begins to connect to the second socket.
  void dial(LinkId connection) {
    bulk = connection;
    dialled = std::chrono::steady_clock::now();
  }
  // Call this when the peer repeats its answer. The connection had not reached the peer when the peer sent the answer.
  // True if that was long after this side began to connect, so that a new round must begin. The answer is taken to have
  // been on its way as long as the first answer, which may have waited behind a long queue. ZeroMQ does not report a
  // connection for which it has found no file descriptor.
  bool is_unreached(std::chrono::steady_clock::time_point now) const {
    return bulk != 0 && !open && now - dialled > std::chrono::seconds(10) + (dialled - said);
  }
  // Call this after the connection to the second socket broke. True if a new connection should be made at once.
  bool may_try_again(std::chrono::steady_clock::time_point now) {
    if (now - first_break > std::chrono::seconds(10)) {
      first_break = now;
      breaks = 0;
    }
    return open && ++breaks <= kMostBreaks;
  }
  // Gives up the packets that wait for pieces, and the pieces that wait for an announcement.
  void lose_what_is_missing() {
    std::erase_if(queue, [](const auto& arriving) { return arriving->missing > 0; });
    expected.clear();
    early.clear();
    early_bytes = 0;
  }
};

struct Sessions {
  std::unordered_map<LinkId, std::shared_ptr<Session>> by_link;
  std::unordered_map<std::uint64_t, std::shared_ptr<Session>> by_number;

  std::shared_ptr<Session> find(LinkId link) const {
    const auto found = by_link.find(link);
    return found == by_link.end() ? nullptr : found->second;
  }
  std::shared_ptr<Session> find_number(std::uint64_t number) const {
    const auto found = by_number.find(number);
    return found == by_number.end() ? nullptr : found->second;
  }
  // The session that made this connection to a second socket.
  std::shared_ptr<Session> find_bulk(LinkId bulk) const {
    for (const auto& [number, session] : by_number)
      if (session->connected && session->bulk == bulk) return session;
    return nullptr;
  }
  // Returns the sessions of incoming links whose identity `admits` refuses.
  template <class Admits>
  std::vector<std::shared_ptr<Session>> unwelcome(Admits admits) const {
    std::vector<std::shared_ptr<Session>> found;
    for (const auto& [number, session] : by_number)
      if (!session->connected && !admits(session->identity)) found.push_back(session);
    return found;
  }
  std::shared_ptr<Session> add_connected(std::uint64_t number, LinkId link, const std::string& host) {
    auto session = std::make_shared<Session>();
    session->number = number;
    session->link = link;
    session->connected = true;
    session->host = host;
    by_link[link] = session;
    return by_number[number] = session;
  }
  std::shared_ptr<Session> add_incoming(std::uint64_t number, const std::string& identity) {
    auto session = std::make_shared<Session>();
    session->number = number;
    session->identity = identity;
    return by_number[number] = session;
  }
  // Moves the session to the link on which its peer sends now.
  void move_to(const std::shared_ptr<Session>& session, LinkId link) {
    if (session->link == link) return;
    by_link.erase(session->link);
    session->link = link;
    by_link[link] = session;
  }
  void forget(const Session& session) {
    by_link.erase(session.link);
    by_number.erase(session.number);
  }
};

// Memory for sealed pieces. Memory of large pieces is used again, because fresh pages cost more than sealing a piece.
// This object lives as long as the memory of any large piece.
class Buffers : public std::enable_shared_from_this<Buffers> {
 public:
  // `bytes`: at most kLarge.
  std::shared_ptr<std::byte[]> take(std::size_t bytes) {
    if (bytes < kLarge / 4) return std::shared_ptr<std::byte[]>(new std::byte[bytes]);
    std::unique_ptr<std::byte[]> buffer;
    {
      const Lock lock(mutex_);
      if (!free_.empty()) {
        buffer = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (!buffer) buffer.reset(new std::byte[kLarge]);
    const auto give_back = [self = shared_from_this()](std::byte* used) { self->give_back(used); };
    return {buffer.release(), give_back};
  }

 private:
  static constexpr std::size_t kLarge = 1 << 20, kMostFree = 32;

  void give_back(std::byte* used) {
    std::unique_ptr<std::byte[]> buffer(used);
    const Lock lock(mutex_);
    if (free_.size() < kMostFree) free_.push_back(std::move(buffer));
  }

  Mutex mutex_;
  std::vector<std::unique_ptr<std::byte[]>> free_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline::sealed

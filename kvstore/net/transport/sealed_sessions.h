#pragma once
// The state of the links of the sealed transport: which packets wait for pieces, and by which keys these are sealed.

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
constexpr std::size_t kSmallestSealed = 16 << 10;    // bytes of a frame; smaller ones travel in CURVE
constexpr std::size_t kHeadBytes = 16;               // session and number of the piece, each little-endian
constexpr std::size_t kPieceBytes = (1 << 20) - 64;  // plaintext of a piece; with head and tag less than 1 MiB
constexpr int kMostBreaks = 8;
constexpr std::size_t kMostEarlyBytes = std::size_t{64} << 20;  // of pieces whose announcement has not come

inline bool is_control(const Packet& packet) {
  return !packet.empty() && packet[0].size >= kMagicBytes && std::memcmp(packet[0].data, kMagic, kMagicBytes) == 0;
}

inline bool any_large(const Packet& packet) {
  for (const Frame& frame : packet)
    if (frame.size >= kSmallestSealed) return true;
  return false;
}

// A packet that has been announced.
struct Arriving {
  LinkId from = 0;
  Packet packet;
  std::size_t missing = 0;  // pieces
};

// Where a piece belongs.
struct Place {
  std::shared_ptr<Arriving> in;
  std::byte* to = nullptr;
  std::size_t bytes = 0;
};

// One link. Guarded by the transport's mutex, but for the keys.
struct Session {
  std::uint64_t number = 0;
  std::uint32_t round = 0;
  LinkId link = 0, bulk = 0;                    // bulk: on the second socket; 0: not connected
  std::string identity;                         // of who connected; empty on that side
  std::string host;                             // to which this side connected
  bool connected = false;                       // by us
  bool open = false;                            // large frames may go by the second socket
  Frame word;                                   // HELLO or ANSWER of this round
  std::chrono::steady_clock::time_point asked;  // when the last HELLO or RENEW was sent, or a round began
  std::chrono::steady_clock::time_point first_break;
  int breaks = 0;  // of the second socket's connection, in the ten seconds after first_break

  std::shared_ptr<const SealingKey> out, in;
  std::uint64_t next_out = 1;  // never reset: the number of a piece is its nonce

  std::deque<std::shared_ptr<Arriving>> queue;  // in the order of the link
  bool delivering = false;                      // a thread takes packets from the queue
  std::map<std::uint64_t, Place> expected;      // pieces that were announced and have not come
  std::map<std::uint64_t, Frame> early;         // pieces that came before they were announced
  std::size_t early_bytes = 0;
  std::uint64_t next_in = 1;  // the first number that was not announced

  // Nothing of earlier rounds is valid from now on. Returns the connection that must be closed; 0: none.
  LinkId begin_round(std::uint32_t new_round) {
    round = new_round;
    open = false;
    word = {};
    next_in = 1;  // the sender may have forgotten its numbers; keys are new, so none is taken twice
    lose_what_is_missing();
    return std::exchange(bulk, 0);
  }
  // Keeps a piece that came before its announcement. False where there are too many of these.
  bool keep_early(std::uint64_t piece, Frame frame) {
    early_bytes += frame.size;
    early.emplace(piece, std::move(frame));
    return early_bytes <= kMostEarlyBytes;
  }
  // Puts an announced packet into the queue. Its pieces have numbers from `first` on. Returns those that came before.
  std::vector<std::pair<std::uint64_t, Frame>> expect(const std::shared_ptr<Arriving>& arriving, std::uint64_t first,
                                                      std::vector<Place> places) {
    queue.push_back(arriving);
    next_in = first + places.size();
    for (std::size_t i = 0; i < places.size(); ++i) expected.emplace(first + i, std::move(places[i]));
    return take_early(first);
  }
  // The kept pieces that have been announced now. Older ones are dropped: their announcement was lost.
  std::vector<std::pair<std::uint64_t, Frame>> take_early(std::uint64_t first_announced) {
    std::vector<std::pair<std::uint64_t, Frame>> taken;
    while (!early.empty() && early.begin()->first < next_in) {
      auto piece = early.extract(early.begin());
      early_bytes -= piece.mapped().size;
      if (piece.key() >= first_announced) taken.emplace_back(piece.key(), std::move(piece.mapped()));
    }
    return taken;
  }
  // The first packet, if no piece of it is missing and no other is being delivered.
  std::shared_ptr<Arriving> take_whole() {
    if (delivering || queue.empty() || queue.front()->missing > 0) return nullptr;
    const std::shared_ptr<Arriving> first = std::move(queue.front());
    queue.pop_front();
    delivering = true;
    return first;
  }
  // After the connection to the second socket broke: is it worth making another at once?
  bool may_try_again(std::chrono::steady_clock::time_point now) {
    if (now - first_break > std::chrono::seconds(10)) {
      first_break = now;
      breaks = 0;
    }
    return open && ++breaks <= kMostBreaks;
  }
  // Gives up what was announced and has not come.
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
  // The one that made this connection to a second socket.
  std::shared_ptr<Session> find_bulk(LinkId bulk) const {
    for (const auto& [number, session] : by_number)
      if (session->connected && session->bulk == bulk) return session;
    return nullptr;
  }
  // Of who connected and `admits` says no to its key.
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
  // Its peer speaks on this link now.
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

// Memory for sealed pieces. That of large ones is used again, because fresh pages cost more than sealing them. Lives as
// long as any piece.
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

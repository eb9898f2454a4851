#pragma once
// The state of the links of the shm transport: what both ends know of each other, and which frames they hold.

#include <paceline/detail/shared_heap.h>
#include <paceline/mutex.h>
#include <paceline/transport.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "transport/shm.pb.h"

namespace paceline::shm {

constexpr char kMagic[8] = {'P', 'C', 'L', 's', 'h', 'm', '\x01', '\xa7'};
constexpr std::size_t kMagicBytes = sizeof(kMagic);

inline bool is_control(const Packet& packet) {
  return !packet.empty() && packet[0].size >= kMagicBytes && std::memcmp(packet[0].data, kMagic, kMagicBytes) == 0;
}

inline Packet packet_of(const Control& control) {
  return {Frame::of(std::string(kMagic, kMagicBytes) + control.SerializeAsString())};
}

// The transport `shm` whose control messages, and frames that are not shared, travel over `inner`. The transport that
// users choose by name is over tcp.
std::unique_ptr<Transport> make_over(std::unique_ptr<Transport> inner, const Options& options);

// What this end of a link knows of the link and of the other end.
struct Session {
  std::uint64_t number = 0;
  std::uint32_t round = 0;
  LinkId link = 0;
  bool connected = false;  // true if this side connected
  bool shares = false;     // each side can read the other's memory
  std::shared_ptr<const detail::SharedView> theirs;
  std::uint64_t last_packet = 0;
  std::unordered_map<std::uint64_t, Packet> lent;  // our packets that the peer may be reading
  std::set<std::uint64_t> held;                    // the peer's packets that this process may be reading
};

// Orders the accesses of both ends to a frame. Accesses before a hand-over or a release happen before the later
// accesses of the other end. Between processes, the connection gives this order. Peers in one process, as in tests,
// also need an atomic for the memory model of C++.
inline std::atomic<std::uint64_t>& hand_overs() {
  static std::atomic<std::uint64_t> count = 0;
  return count;
}

// The sessions of one transport. Frames may outlive the transport, so their owners hold only a weak pointer to this
// object.
struct Sessions {
  Mutex mutex;
  Transport* inner PACELINE_GUARDED_BY(mutex) = nullptr;
  std::unordered_map<LinkId, std::shared_ptr<Session>> by_link PACELINE_GUARDED_BY(mutex);
  std::unordered_map<std::uint64_t, std::shared_ptr<Session>> by_number PACELINE_GUARDED_BY(mutex);

  std::shared_ptr<Session> find(LinkId link) PACELINE_REQUIRES(mutex) {
    const auto found = by_link.find(link);
    return found == by_link.end() ? nullptr : found->second;
  }
  void tell(const Session& session, Control& control) PACELINE_REQUIRES(mutex) {
    control.set_session(session.number);
    control.set_round(session.round);
    if (inner) inner->send(session.link, packet_of(control));
  }
  void release(std::uint64_t number, std::uint64_t packet) {
    const Lock lock(mutex);
    const auto found = by_number.find(number);
    if (found == by_number.end() || found->second->held.erase(packet) == 0) return;
    hand_overs().fetch_add(1, std::memory_order_release);
    Control control;
    control.set_kind(Control::RELEASE);
    control.add_packets(packet);
    tell(*found->second, control);
  }
};

// Owns those frames of a received packet that are in the peer's memory.
struct Borrowed {
  std::weak_ptr<Sessions> sessions;
  std::shared_ptr<const detail::SharedView> view;
  std::uint64_t session, packet;

  Borrowed(std::weak_ptr<Sessions> s, std::shared_ptr<const detail::SharedView> v, std::uint64_t n, std::uint64_t p)
      : sessions(std::move(s)), view(std::move(v)), session(n), packet(p) {}
  Borrowed(const Borrowed&) = delete;
  ~Borrowed() {
    if (const auto all = sessions.lock()) all->release(session, packet);
  }
};

}  // namespace paceline::shm

#pragma once
// The requests of one process that wait for an answer, and the times of their repetition. A small request is repeated
// whole. For a large request, or one that the peer has confirmed, a probe is sent first. The pause before the first
// repetition follows from the round trip (as in RFC 6298) and from the bytes in flight to the peer. Each repetition
// makes the pause longer by half, up to a bound.

#include <paceline/mutex.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "node.h"

namespace paceline {

class PendingRequests {
 public:
  using Clock = std::chrono::steady_clock;
  struct Failure {
    Node::ReplyHandler handler;
    std::exception_ptr error;
  };
  struct Repeat {
    PeerId peer;
    std::uint64_t number = 0;
    int probe = 0;  // its number, counted from 1
    Packet packet;  // empty: probe
  };
  struct Slow {
    PeerId peer;
    MessageKind kind;
    double seconds = 0;
    int others = 0;
  };

  // `first_pause`: seconds before the first repetition while the round trip is unknown.
  explicit PendingRequests(double first_pause) : first_pause_(first_pause) {}

  std::uint64_t next_number() PACELINE_EXCLUDES(mutex_);
  // The peer that the request was sent to; none if there is no such request.
  std::optional<PeerId> peer_of(std::uint64_t number) const;
  // Does this process get on? `calls` grows with each request that is added or removed. `waiting`: seconds since then,
  // if a request is unanswered; else 0.
  struct Activity {
    std::uint64_t calls = 0;
    double waiting = 0;
  };
  Activity activity() const;
  void add(std::uint64_t number, const PeerId& peer, MessageKind kind, Packet packet, Node::ReplyHandler handler);
  // Removes a request that was answered, and returns its handler; null if there is no such request.
  Node::ReplyHandler take(std::uint64_t number);
  // The same for a request without an answer. It gives no measurement of the round trip.
  Node::ReplyHandler cancel(std::uint64_t number);
  // The peer holds the request and will answer it.
  void received(std::uint64_t number);
  // The peer has answered a probe: it does not know the request. Returns the whole packet. None if the request no
  // longer waits, or was sent whole after that probe.
  std::optional<Repeat> repeat(std::uint64_t number, int probe);
  // Returns what to send now. `slow` gets the peers that have not answered for ten seconds, each at most every ten
  // seconds: the oldest request, and the number of other requests.
  std::vector<Repeat> due(std::vector<Slow>& slow);
  // Adds `seconds` to the time in which nothing was heard of each peer that was asked several times, but for the
  // scheduler. Returns a peer that has been silent for longer than `limit`. Where `self` and a worker of a higher rank
  // do not reach each other, the limit for `self` is twice as long, so that one of the two gives up.
  std::optional<PeerId> unheard(double seconds, double limit, const PeerId& self);
  // Removes the requests to a peer. `why` is for instance "server 1 at hostB was lost".
  std::vector<Failure> fail(const PeerId& peer, const std::string& why);
  std::vector<Failure> fail_all(const std::exception_ptr& error);

 private:
  struct Ask {
    PeerId peer;
    MessageKind kind;
    Packet packet;
    std::size_t bytes = 0;
    Node::ReplyHandler handler;
    Clock::time_point asked;
    Clock::time_point repeated;  // last
    Clock::time_point repeat_at;
    double pause = 0, longest_pause = 0;
    int repeats = 0, resent_after = 0;  // repeats before the packet was last sent whole because the peer asked
    bool held = false;                  // by the peer
  };
  struct Traffic {
    std::size_t bytes_in_flight = 0;
    double round_trip = 0, variation = 0;  // smoothed; 0: not known
    double unheard = 0;                    // seconds
    Clock::time_point next_report;

    void measured(double seconds);
  };

  // The peer has answered a repetition at once. This measures a round trip without the peer's work.
  void heard(const Ask& ask) PACELINE_REQUIRES(mutex_);
  void get_on() PACELINE_REQUIRES(mutex_);
  Node::ReplyHandler remove(std::map<std::uint64_t, Ask>::iterator ask) PACELINE_REQUIRES(mutex_);

  const double first_pause_;
  mutable Mutex mutex_;
  std::uint64_t last_number_ PACELINE_GUARDED_BY(mutex_) = 0;
  std::uint64_t calls_ PACELINE_GUARDED_BY(mutex_) = 0;
  Clock::time_point got_on_ PACELINE_GUARDED_BY(mutex_);  // when it last grew
  std::map<std::uint64_t, Ask> pending_requests_ PACELINE_GUARDED_BY(mutex_);
  std::map<PeerId, Traffic> traffic_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline

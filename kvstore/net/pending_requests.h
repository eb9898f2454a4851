#pragma once
// The requests of one process that wait for an answer, and when to repeat them. A small request is repeated whole; for
// a large one, or one that the peer said it holds, a probe asks first. The pause before the first repetition follows
// the round trip (as RFC 6298 does it) and what is in flight to the peer; it grows by half with each, up to a bound.

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

  // `first_pause`: seconds before a request is repeated, where nothing else is known.
  explicit PendingRequests(double first_pause) : first_pause_(first_pause) {}

  std::uint64_t next_number() PACELINE_EXCLUDES(mutex_);
  void add(std::uint64_t number, const PeerId& peer, MessageKind kind, Packet packet, Node::ReplyHandler handler);
  // The handler of an ask that is answered; null where there is none.
  Node::ReplyHandler take(std::uint64_t number);
  // The same for one that is not answered, which says nothing of the network.
  Node::ReplyHandler cancel(std::uint64_t number);
  // The peer holds the request and will answer it.
  void received(std::uint64_t number);
  // The whole packet again, because the peer, as it answers this probe, does not know the request; none where it is no
  // longer asked, or was sent whole since that probe.
  std::optional<Repeat> repeat(std::uint64_t number, int probe);
  // What to send now; `slow` gets, at most every ten seconds for each peer, the oldest request that it has not answered
  // for that long, and how many others it has not.
  std::vector<Repeat> due(std::vector<Slow>& slow);
  // Removes the asks to that peer; `why`: "server 1 at hostB was lost".
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
    Clock::time_point next_report;

    void measured(double seconds);
  };

  // The peer has said something of a repeated request, at once: that is a round trip without its work.
  void heard(const Ask& ask) PACELINE_REQUIRES(mutex_);
  Node::ReplyHandler remove(std::map<std::uint64_t, Ask>::iterator ask) PACELINE_REQUIRES(mutex_);

  const double first_pause_;
  mutable Mutex mutex_;
  std::uint64_t last_number_ PACELINE_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, Ask> pending_requests_ PACELINE_GUARDED_BY(mutex_);
  std::map<PeerId, Traffic> traffic_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline

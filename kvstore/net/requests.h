#pragma once
// Both ends of a request. The process that asks keeps PendingRequests, and repeats what was lost. The process that
// answers keeps a ReplyCache, and delivers a request only once.

#include <paceline/mutex.h>
#include <paceline/transport.h>

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "node.h"

namespace paceline {

// Holds the requests of one process that wait for an answer, and decides when the process asks again. The process then
// sends a probe, and sends the request again only if the peer asks for it. The reply to a probe arrives after an answer
// that the peer has already sent. So an answer that is only slow is not made twice. The pause before the first probe
// follows from the round trip (as in RFC 6298) and from the bytes in flight to the peer. Each probe makes the pause
// longer by half, up to a bound.
class PendingRequests {
 public:
  using Clock = std::chrono::steady_clock;
  struct Failure {
    Node::ReplyHandler handler;
    std::exception_ptr error;
  };
  struct Probe {
    PeerId peer;
    std::uint64_t request = 0;
    int number = 0;  // the probes about a request are numbered from 1
  };
  struct Again {
    PeerId peer;
    Packet packet;
  };
  struct Slow {
    PeerId peer;
    MessageKind kind;
    double seconds = 0;
    int others = 0;
  };

  // `first_pause`: the shortest pause before the first probe, in seconds. A long round trip makes the pause longer.
  explicit PendingRequests(double first_pause) : first_pause_(first_pause) {}

  std::uint64_t next_number() PACELINE_EXCLUDES(mutex_);
  // Returns the peer that the request was sent to, or nullopt if there is no such request.
  std::optional<PeerId> peer_of(std::uint64_t number) const;
  // Shows whether this process makes progress. `calls` grows with each request that is added or removed. `waiting`:
  // seconds since `calls` last grew if a request is unanswered, else 0.
  struct Activity {
    std::uint64_t calls = 0;
    double waiting = 0;
  };
  Activity activity() const;
  void add(std::uint64_t number, const PeerId& peer, MessageKind kind, Packet packet, Node::ReplyHandler handler);
  // Removes a request that was answered. Returns its handler, or null if there is no such request.
  Node::ReplyHandler take(std::uint64_t number);
  // Like take(), for a request that was not answered. The round trip is not measured.
  Node::ReplyHandler cancel(std::uint64_t number);
  // Records that the peer has the request and will answer it.
  void received(std::uint64_t number);
  // Call it when the peer has answered a probe with kResend, because the peer does not have the request. Returns the
  // request to send again. Returns nullopt if it no longer waits, or was sent again after that probe.
  std::optional<Again> send_again(std::uint64_t number, int probe);
  // Returns the probes to send now. Adds to `slow` each peer that has not answered a request for ten seconds, at most
  // once every ten seconds. The entry describes the oldest such request and counts the others.
  std::vector<Probe> due(std::vector<Slow>& slow);
  // Adds `seconds` to the silence of each peer that answers nothing though it was probed several times about one
  // request. Does not watch the scheduler. Returns a peer that has been silent for longer than `limit`. For a peer of
  // the role of `self` with a higher rank, the limit is twice as long. If two workers cannot reach each other, only one
  // of them then gives up.
  std::optional<PeerId> unheard(double seconds, double limit, const PeerId& self);
  // Removes the requests to a peer, and returns their handlers with the error. `why` is for instance "server 1 at hostB
  // was lost".
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
    Clock::time_point probed;  // time of the last probe
    Clock::time_point probe_at;
    double first_pause = 0, pause = 0, longest_pause = 0;
    int probes = 0, resent_after = 0;  // resent_after: `probes` when the request was last sent again
  };
  struct Traffic {
    std::size_t bytes_in_flight = 0;
    double round_trip = 0, variation = 0;  // smoothed; 0: not known
    double unheard = 0;                    // seconds of silence
    Clock::time_point next_report;

    void measured(double seconds);
  };

  // Records that the peer has answered a probe at once. This measures a round trip without the peer's work.
  void heard(const Ask& ask) PACELINE_REQUIRES(mutex_);
  void get_on() PACELINE_REQUIRES(mutex_);
  Node::ReplyHandler remove(std::map<std::uint64_t, Ask>::iterator ask) PACELINE_REQUIRES(mutex_);

  const double first_pause_;
  mutable Mutex mutex_;
  std::uint64_t last_number_ PACELINE_GUARDED_BY(mutex_) = 0;
  std::uint64_t calls_ PACELINE_GUARDED_BY(mutex_) = 0;
  Clock::time_point got_on_ PACELINE_GUARDED_BY(mutex_);  // when calls_ last grew
  std::map<std::uint64_t, Ask> pending_requests_ PACELINE_GUARDED_BY(mutex_);
  std::map<PeerId, Traffic> traffic_ PACELINE_GUARDED_BY(mutex_);
};

// What a process remembers of the requests that arrived, for each sender's incarnation. A repetition of an unanswered
// request is not delivered. The latest small answers are kept, so that a repetition after a lost answer costs no work.
class ReplyCache {
 public:
  enum class Known { kNew, kOpen, kAnswered };

  // Looks a request up. A new request becomes open, that is, unanswered. Sets `answer` if the result is kAnswered.
  Known arrive(std::uint64_t sender, std::uint64_t request, Packet& answer);
  // Like arrive(), but a new request does not become open.
  Known look(std::uint64_t sender, std::uint64_t request, Packet& answer) const;
  // Records the answer to a request. Keeps small answers.
  void answered(std::uint64_t sender, std::uint64_t request, const Packet& answer);
  // Drops all entries of a sender that was lost, or that was refused when it asked to join.
  void forget(std::uint64_t sender);

 private:
  struct Sender {
    std::unordered_set<std::uint64_t> open;
    std::deque<std::pair<std::uint64_t, Packet>> recent;
  };

  mutable Mutex mutex_;
  std::map<std::uint64_t, Sender> senders_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline

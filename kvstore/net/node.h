#pragma once
// One process of a job on the network: joins through the scheduler, knows who is there, sends heartbeats, asks peers
// and answers them. Server, worker and scheduler are built on it; it knows nothing of keys or weights.

#include <paceline/cluster.h>
#include <paceline/transport.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "message.h"

namespace paceline {

struct PeerId {
  Role role = Role::kWorker;
  int rank = 0;
  friend auto operator<=>(const PeerId&, const PeerId&) = default;
};
std::string name_of(const PeerId& peer);  // "server 1"

struct Peer {
  PeerId id;
  std::uint64_t incarnation = 0;  // given by the scheduler, grows; a returned process has a new one
  std::string address;            // where it is bound (servers)
  std::string host;
  bool alive = true;
  bool finished = false;  // left in good order
  bool entered = false;   // a worker that takes part in the rounds of mode ring: from the start, or since Node::enter()
};

// Who is in the job; `epoch` grows with every change.
struct Roster {
  std::uint64_t epoch = 0;
  bool over = false;  // no worker is left: each has finished or was lost
  std::vector<Peer> peers;

  const Peer* find(const PeerId& id) const;
  std::vector<int> live(Role role) const;  // ranks, ascending
};

class Node;

// A request that arrived. Answer it with exactly one reply() or refuse(), now or later, from any thread; copies share
// the answer. A request dropped unanswered is refused with "dropped".
class Request {
 public:
  const Message& message() const;
  PeerId from() const;
  std::uint64_t incarnation() const;
  void reply(Message answer) const;
  // The asker's callback gets an Error of the same kind and text.
  void refuse(const std::exception& reason) const;

 private:
  friend class Node;
  struct State;
  std::shared_ptr<State> state_;
};

class Node {
 public:
  struct Handlers {
    // A request from a peer of this job; must not block. Handlers run on threads of the Node, one at a time. Requests
    // of one peer come in the order sent, except that a repeated one (its first answer was lost) may come again later:
    // handlers must be idempotent or recognise repetition. A repetition of a request that is still unanswered is not
    // delivered.
    std::function<void(Request)> on_request;
    // The roster changed: somebody was lost, left or joined; or failure() is set.
    std::function<void(const Roster&)> on_roster;
  };
  // Exactly one of the two is set.
  using ReplyHandler = std::function<void(std::optional<Message> answer, std::exception_ptr error)>;

  // Binds (servers; the scheduler at its port), connects to the scheduler.
  Node(const ClusterConfig& config, Handlers handlers);
  // Leaves without a word; to peers it looks like a crash unless leave() was called. Requests that are still
  // open get a NetworkError; no handler runs after it.
  ~Node();

  // Blocks until every process of the job has joined and returns with rank() and the roster known. Throws Timeout
  // naming who is missing, NetworkError when refused (another job, too many workers).
  void join();
  // Threads that wait for an engine receive meanwhile, where the transport lets them: handlers may run on them.
  void receive_while_waiting();
  // Says good-bye: this process ends in good order. Blocks until the scheduler knows, at most `seconds`.
  void leave(double seconds = 5);

  // Has the roster say that this worker takes part in the rounds of mode ring, once more if it does already; returns an
  // epoch at which it does. Blocks and throws as ask_and_wait() does.
  std::uint64_t enter();

  int rank() const;
  std::uint64_t incarnation() const;
  Roster roster() const;

  // Asks a peer (PeerId{Role::kScheduler, 0} for the scheduler). Thread-safe, never blocks. The request is
  // repeated until answered; frames are shared, not copied. `on_reply` runs as handlers do: with the answer; or with
  // the refusal; or with NetworkError once the peer is lost (named, with what it was asked for and for how long) or
  // this process was declared lost itself. A peer that is alive but slow is only named in the log at intervals. Returns
  // a number for cancel().
  std::uint64_t ask(const PeerId& peer, Message request, ReplyHandler on_reply);
  void cancel(std::uint64_t ask);
  // The same, blocking; throws what the ReplyHandler would get. Not within a handler.
  Message ask_and_wait(const PeerId& peer, Message request);
  // The peer would read this frame of a request where it lies (Transport::reads_in_place).
  bool reads_in_place(const PeerId& peer, const void* data, std::size_t bytes) const;

  // The peer that a failed job is blamed on, once one was lost that the job cannot do without.
  std::exception_ptr failure() const;

  // Messages that were dropped because nothing of ours wrote them.
  std::int64_t malformed() const;

  // Of the scheduler: the process that the launcher started as this task has failed. Not within a handler.
  void ended(Role role, int task, const std::string& how);
  // Where the scheduler listens.
  const std::string& scheduler_address() const;
  // Of the scheduler: has every live process the newest roster; are all gone.
  bool everybody_knows() const;
  bool everybody_left() const;

 private:
  friend class Request;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace paceline

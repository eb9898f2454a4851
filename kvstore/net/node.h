#pragma once
// A Node is one process of a job on the network. It joins through the scheduler, knows the members of the job, sends
// heartbeats, sends requests to peers and answers theirs. Servers, workers and the scheduler use it. It knows nothing
// of keys or weights.

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
  std::uint64_t incarnation = 0;  // from the scheduler, ascending; a returned process has a new one
  std::string address;            // where it listens; empty for workers of modes with servers
  std::string host;
  std::string key;  // public, by which it is known to its peers; empty in a job without secrets
  bool alive = true;
  bool finished = false;  // left by leave()
  bool entered = false;   // a worker in the rounds of mode ring: there from the start, or since Node::enter()
};

// The members of the job. `epoch` grows with every change.
struct Roster {
  std::uint64_t epoch = 0;
  bool over = false;  // every worker has finished or was lost
  std::vector<Peer> peers;

  const Peer* find(const PeerId& id) const;
  std::vector<int> live(Role role) const;  // ranks, ascending
};

class Node;

// A request that arrived. Answer it with exactly one reply() or refuse(), now or later, from any thread. Copies are the
// same request. When the last copy goes without an answer, the request is refused as "dropped unanswered".
class Request {
 public:
  const Message& message() const;
  PeerId from() const;
  std::uint64_t incarnation() const;
  void reply(Message answer) const;
  // The sender's callback gets an Error of the same kind and text.
  void refuse(const std::exception& reason) const;

 private:
  friend class Node;
  struct State;
  std::shared_ptr<State> state_;
};

class Node {
 public:
  struct Handlers {
    // A request from a peer of this job arrived. Must not block. Handlers run one at a time, on threads of the Node or
    // on threads that wait for an engine (receive_while_waiting()). Requests of one peer come in the order sent. A
    // request may come again later if its answer was lost, so handlers must be idempotent or recognise repetitions. A
    // repetition of a request that is still unanswered is not delivered.
    std::function<void(Request)> on_request;
    // The roster changed, because a process joined, left or was lost, or failure() was set.
    std::function<void(const Roster&)> on_roster;
  };
  // Gets either an answer or an error.
  using ReplyHandler = std::function<void(std::optional<Message> answer, std::exception_ptr error)>;

  // The scheduler binds its port. Other processes connect to the scheduler. Servers, and workers in modes without
  // servers, also bind an address for their peers.
  Node(const ClusterConfig& config, Handlers handlers);
  // Disconnects. To peers this looks like a crash unless leave() was called. Requests that are still open get a
  // NetworkError. No handler runs after it.
  ~Node();

  // Blocks until every process of the job has joined. rank() and roster() are known afterwards. Throws Timeout naming
  // who is missing, or NetworkError if the scheduler refuses this process (another job, too many workers). Calls
  // `meanwhile` several times a second.
  void join(const std::function<void()>& meanwhile = {});
  // Lets threads that wait for an engine receive messages meanwhile, if the transport can do this. Handlers may then
  // run on these threads.
  void receive_while_waiting();
  // Tells the scheduler that this process leaves in good order. Blocks until it has answered, at most for the silence
  // deadline; the log says where it has not.
  void leave();

  // Makes the scheduler publish a roster in which this worker takes part in the rounds of mode ring. Does so again if
  // it takes part already. Returns an epoch of the roster in which it does. Blocks and throws as ask_and_wait() does.
  std::uint64_t enter();

  int rank() const;
  std::uint64_t incarnation() const;
  Roster roster() const;

  // Sends a request to a peer (the scheduler is PeerId{Role::kScheduler, 0}), without waiting for the answer. Returns a
  // number for cancel(). Thread-safe. The request is repeated until it is answered. Frames are shared, not copied.
  // `on_reply` runs as handlers do. It gets the answer or the refusal. It gets a NetworkError when the peer is lost, or
  // when this process was declared lost. A peer that is alive but slow is named in the log from time to time.
  std::uint64_t ask(const PeerId& peer, Message request, ReplyHandler on_reply);
  void cancel(std::uint64_t ask);
  // The same, but blocks for the answer, and throws the error that a ReplyHandler would get. Not within a handler.
  Message ask_and_wait(const PeerId& peer, Message request);
  // Would the peer read this frame of a request without a copy? See Transport::reads_in_place().
  bool reads_in_place(const PeerId& peer, const void* data, std::size_t bytes) const;

  // Why this process cannot go on: it names the process whose loss the job does not survive, or says that this process
  // was declared lost. Null until then.
  std::exception_ptr failure() const;

  // This process knows that training has come to `step`. Fault plans refer to it. The scheduler names the worker that
  // others wait for, and its step.
  void reached(std::uint64_t step);
  // Says for how many seconds this process has waited for others, or 0, where it does so without a request. Set it
  // once.
  void set_waiting(std::function<double()> seconds_waiting);

  // The number of malformed messages that were dropped.
  std::int64_t malformed() const;

  // For the scheduler. Reports that the process that the launcher started as `task` has failed. Not within a handler.
  void ended(Role role, int task, const std::string& how);
  // Where the scheduler listens.
  const std::string& scheduler_address() const;
  // For the scheduler. Has every live process the newest roster? Is no process left?
  bool everybody_knows() const;
  bool everybody_left() const;

 private:
  friend class Request;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace paceline

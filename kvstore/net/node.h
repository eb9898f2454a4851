#pragma once
// A Node is one process of a job on the network. It joins through the scheduler, knows the members of the job, sends
// heartbeats, sends requests to peers and answers theirs. Servers, workers and the scheduler each have a Node. A Node
// knows nothing of weights or of their keys.

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
  std::uint64_t incarnation = 0;  // given by the scheduler, ascending; a returned process has a new one
  std::string address;            // where the process listens; empty for workers in modes with servers
  std::string host;
  std::string key;  // public key; empty in a job without secrets
  bool alive = true;
  bool finished = false;  // left the job by leave()
  bool entered = false;   // a worker that takes part in rounds of mode ring, from the start or since Node::enter()
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

// A request that arrived. Answer it with exactly one reply() or refuse(), now or later, from any thread. Copies refer
// to the same request. If all copies are destroyed before an answer, the request is refused as "dropped unanswered".
class Request {
 public:
  const Message& message() const;
  PeerId from() const;
  std::uint64_t incarnation() const;
  void reply(Message answer) const;
  // The sender's callback gets an Error with the same text, and of the same class if refusal.cc knows the class.
  void refuse(const std::exception& reason) const;

 private:
  friend class Node;
  struct State;
  std::shared_ptr<State> state_;
};

class Node {
 public:
  struct Handlers {
    // Handles a request from a peer of this job. Must not block. Handlers run one at a time. They run on threads of the
    // Node, on threads that wait for an engine (receive_while_waiting()), or in a call of ended() or close(). Requests
    // of one peer come in the order sent, except for repetitions. A request may come again after it was answered, if
    // the answer was lost. Handlers must therefore be idempotent or recognise repetitions. A repetition of a request
    // that is still unanswered is not delivered.
    std::function<void(Request)> on_request;
    // Called when the roster has changed, or when failure() was set.
    std::function<void(const Roster&)> on_roster;
  };
  // Gets either an answer or an error.
  using ReplyHandler = std::function<void(std::optional<Message> answer, std::exception_ptr error)>;

  // The scheduler binds its port. Other processes connect to the scheduler. Servers, and workers in modes without
  // servers, also bind an address for their peers.
  Node(const ClusterConfig& config, Handlers handlers);
  // Calls close().
  ~Node();
  // Disconnects. To peers this looks like a crash unless leave() was called. Unanswered requests of this process fail
  // with NetworkError. No handler runs afterwards. Handlers that run meanwhile may use the Node. An owner whose
  // handlers use the Node must therefore call close() before it destroys the Node. A later call does nothing. Two
  // threads must not call close() at the same time.
  void close();

  // Blocks until every process of the job has joined. rank() and roster() are known afterwards. Throws Timeout if the
  // job does not start in time; the error names what is missing. Throws NetworkError if the scheduler refuses this
  // process, for instance because the job has all its workers. Calls `meanwhile` several times a second.
  void join(const std::function<void()>& meanwhile = {});
  // Lets threads that wait for an engine receive messages meanwhile, if the transport can do this. Handlers may then
  // run on these threads.
  void receive_while_waiting();
  // Tells the scheduler that this process leaves in good order. Blocks until the scheduler has answered, at most for
  // the silence deadline. Logs a warning if no answer came.
  void leave();

  // Makes the scheduler publish a new roster in which this worker takes part in the rounds of mode ring, even if it
  // takes part already. Returns the epoch of this roster. Blocks and throws as ask_and_wait() does.
  std::uint64_t enter();

  int rank() const;
  std::uint64_t incarnation() const;
  Roster roster() const;

  // Sends a request to a peer (the scheduler is PeerId{Role::kScheduler, 0}), without waiting for the answer. Returns a
  // number for cancel(). Thread-safe. If the request or its answer is lost, the Node asks again. Frames are shared, not
  // copied. `on_reply` runs as handlers do. It gets the answer, or an error if the peer refuses the request. It gets a
  // NetworkError if the peer is lost or has left, or if this process was declared lost. The log names a peer from time
  // to time that is alive but slow to answer.
  // After close() nothing is sent and `on_reply` is not called.
  std::uint64_t ask(const PeerId& peer, Message request, ReplyHandler on_reply);
  // Drops a request. Its `on_reply` will not be called, unless it already runs.
  void cancel(std::uint64_t ask);
  // Like ask(), but blocks until the answer, and throws the error that a ReplyHandler would get, or NetworkError after
  // close(). Do not call it within a handler.
  Message ask_and_wait(const PeerId& peer, Message request);
  // Would the peer read this frame of a request without a copy? See Transport::reads_in_place().
  bool reads_in_place(const PeerId& peer, const void* data, std::size_t bytes) const;

  // The error that says why this process cannot go on, for instance which process was lost or that this process was
  // declared lost. Null while this process can go on.
  std::exception_ptr failure() const;

  // Tells the Node that training has come to `step`. Fault plans refer to steps. The scheduler's log shows the step of
  // a worker that others wait for.
  void reached(std::uint64_t step);
  // Sets a function that reports waits which no unanswered request shows, such as those in mode ring. The function
  // returns for how many seconds this process has waited for others, or 0 if it does not wait. Call set_waiting() once.
  void set_waiting(std::function<double()> seconds_waiting);

  // The number of messages that were malformed, or must not come from their link.
  std::int64_t malformed() const;

  // For the scheduler. Reports that the process with the launcher's task number `task` has ended. Do not call it within
  // a handler.
  void ended(Role role, int task, const std::string& how);
  // Where the scheduler listens.
  const std::string& scheduler_address() const;
  // For the scheduler. everybody_knows(): does every live process have the newest roster? everybody_left(): is no live
  // process left?
  bool everybody_knows() const;
  bool everybody_left() const;

 private:
  friend class Request;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace paceline

#pragma once
// The implementation of Node. Threads of the transport deliver packets, and so do threads that wait for an engine. A
// timer thread probes unanswered requests and watches for silence. `turn_` makes handlers run one at a time. Heartbeats
// have a thread of their own, because a handler or a blocked log may hold the other threads up. Locks are taken in this
// order: turn_, connect_mutex_, the mutex of Membership, then mutex_ or send_mutex_, then the mutex of another part
// such as PendingRequests. Of these parts, only Membership calls the Node under its own mutex, to answer requests.

#include <paceline/mutex.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "faults/faulty_transport.h"
#include "membership.h"
#include "node.h"
#include "rejection_log.h"
#include "requests.h"
#include "roster.h"
#include "secrets/keyring.h"

namespace paceline {

struct Request::State {
  State(std::weak_ptr<Node::Impl> n, Message m, PeerId f, LinkId l)
      : node(std::move(n)), message(std::move(m)), from(f), link(l) {}
  ~State();

  std::weak_ptr<Node::Impl> node;
  Message message;
  PeerId from;
  LinkId link;  // the link that the request came on
  std::atomic<bool> answered = false;
};

// Records on which link each process speaks. The first message that a process sends binds the process to its link.
// may_speak() then refuses the process on every other link. Only bind(), forget() and closed() change a binding. Links
// outlive connections (transport.h), so a process that reconnects keeps its link. Thread-safe.
class Speakers {
 public:
  enum class Speaks { kNo, kHere, kHereFromNow };

  // Says whether `sender` speaks on `link`. Binds `sender` to `link` if it is bound to no link yet.
  Speaks may_speak(std::uint64_t sender, LinkId link);
  // Binds `sender` to `link`, even if it was bound to another link. Call it if `sender` has proved that it speaks on
  // `link`.
  Speaks bind(std::uint64_t sender, LinkId link);
  // The link that `sender` is bound to.
  std::optional<LinkId> link_of(std::uint64_t sender) const;
  // Removes the binding of the process `sender`, which was declared lost.
  void forget(std::uint64_t sender);
  // Records that the link was closed. The process that spoke on it may bind to another link. may_speak() refuses what
  // still arrives from the closed link.
  void closed(LinkId link);

 private:
  mutable Mutex mutex_;
  std::unordered_map<std::uint64_t, LinkId> links_ PACELINE_GUARDED_BY(mutex_);
  std::set<LinkId> closed_ PACELINE_GUARDED_BY(mutex_);  // the latest ones; numbers of links ascend
};

struct Node::Impl : std::enable_shared_from_this<Node::Impl> {
  Impl(const ClusterConfig& config, Handlers handlers);

  void start();
  void stop();
  void join(const std::function<void()>& meanwhile);
  void leave();
  void ended(Role role, int task, const std::string& how);
  void reached(std::uint64_t step);
  void receive_while_waiting();
  std::uint64_t ask(const PeerId& peer, Message request, ReplyHandler on_reply);
  Message ask_and_wait(const PeerId& peer, Message request);
  bool reads_in_place(const PeerId& peer, const void* data, std::size_t bytes) PACELINE_EXCLUDES(send_mutex_);
  // Sends the answer to a request that arrived.
  void answer(const Request::State& state, MessageKind kind, Message message);
  std::exception_ptr failure() const;
  // Makes the timer thread count a request whose body cannot be read.
  void count_malformed(const Request::State& state, const std::string& why);

  const ClusterConfig config_;
  const bool scheduler_;
  const std::string host_;                  // for logs
  std::string scheduler_address_;           // set by start()
  std::unique_ptr<Membership> membership_;  // null unless this process is the scheduler
  std::shared_ptr<Keyring> keyring_;        // null: a job without secrets

  mutable Mutex mutex_;
  CondVar changed_;
  Roster roster_ PACELINE_GUARDED_BY(mutex_);
  int rank_ PACELINE_GUARDED_BY(mutex_) = 0;
  std::uint64_t job_ PACELINE_GUARDED_BY(mutex_) = 0;
  std::uint64_t incarnation_ PACELINE_GUARDED_BY(mutex_) = 0;
  bool joined_ PACELINE_GUARDED_BY(mutex_) = false;
  bool leaving_ PACELINE_GUARDED_BY(mutex_) = false;
  bool given_up_ PACELINE_GUARDED_BY(mutex_) = false;  // the scheduler was silent for too long: send no more heartbeats
  std::exception_ptr failure_ PACELINE_GUARDED_BY(mutex_);
  // The last text from the scheduler. Before the start, it names the missing processes. Later, it names the worker that
  // others wait for.
  std::string waiting_ PACELINE_GUARDED_BY(mutex_);
  std::function<double()> seconds_waiting_ PACELINE_GUARDED_BY(mutex_);
  double scheduler_silent_ PACELINE_GUARDED_BY(mutex_) = 0;
  bool scheduler_heard_ PACELINE_GUARDED_BY(mutex_) = false;

  PendingRequests pending_requests_;
  std::atomic<std::int64_t> malformed_total_ = 0;
  std::atomic<std::uint64_t> step_ = 0;  // newest training step that this process knows of

 private:
  // ---- node.cc: start and threads
  void use_secrets(Transport& transport);
  void run_timer();
  void run_heart();
  void tick(double seconds);
  void give_up_unreachable(double seconds);
  void close_links_of_the_lost(double seconds) PACELINE_EXCLUDES(send_mutex_);
  void send_heartbeat();
  void post(std::function<void()> work);
  void run_posted();

  // ---- node_send.cc: requests, answers and links
  void send(LinkId link, Packet packet) PACELINE_EXCLUDES(send_mutex_);
  // Closes links without send_mutex_. Their packets are destroyed, and a frame may own the last reference to a Request,
  // whose destructor sends an answer.
  void close_links(const std::function<void(Transport&)>& close) PACELINE_EXCLUDES(send_mutex_);
  void send_control(LinkId link, MessageKind kind, std::uint64_t request, std::string body = {});
  MessageHeader header(MessageKind kind, std::uint64_t request) const;
  MessageHeader header_for(MessageKind kind, const Message& to) const;
  void name_link(LinkId link, const PeerId& peer);
  LinkId link_to(const PeerId& peer);
  // Returns the link to a peer, or 0 if there is none. Returns nullopt if this process must first connect to the peer,
  // and then copies the peer to `unconnected`.
  std::optional<LinkId> known_link(const PeerId& peer, Peer* unconnected) const;
  void send_probe(const PendingRequests::Probe& probe);

  // ---- node_receive.cc: packets in
  void on_packet(LinkId link, const Packet& packet);
  void on_malformed(LinkId link, const std::string& why);
  void on_other_format(LinkId link, const std::string& why);
  void refuse(LinkId link, const Message& message, const std::string& why);
  void send_refusal(LinkId link, const Message& message, const std::string& why);
  std::string foreign_job(const Message& message) const;
  bool is_from(LinkId link, const PeerId& peer) const;
  void on_stray(LinkId link, const Message& message, const std::string& why);
  void on_answer(LinkId link, Message message);
  void on_probe(LinkId link, const Message& message);
  void on_request(LinkId link, Message message);
  void deliver(LinkId link, Message message, const PeerId& from);
  void finish_asks(const std::vector<PendingRequests::Failure>& failures);

  // ---- node_receive.cc: who may send what
  // False if the peer of the link has not proved to be the sender of the message.
  bool is_from_its_sender(LinkId link, const Message& message) PACELINE_EXCLUDES(mutex_);
  std::string key_of(LinkId link) const;
  bool may_speak(std::uint64_t sender, LinkId link);
  bool is_of_another(std::uint64_t sender, LinkId link) const;

  // ---- node_member.cc: the place in the job
  void on_join(LinkId link, Message message);
  void on_heartbeat(LinkId link, const Message& message);
  void on_notice(LinkId link, const Message& message);
  void on_joined(const Message& answer);
  void send_notice(LinkId link, std::uint64_t known);
  void broadcast();
  void broadcast_soon();
  void broadcast_if_late();
  void apply(RosterNotice notice);
  void know_members(const Roster& roster) PACELINE_EXCLUDES(send_mutex_);
  void fail(const std::exception_ptr& error);
  void watch_scheduler(double seconds);
  std::string who_holds_up() const;
  void name_who_holds_up(double seconds);

  Handlers handlers_;
  ReplyCache answers_;
  Mutex turn_;
  std::string bound_address_;          // this process's address for peers; empty if it has none; set by start()
  LinkId scheduler_link_ = 0;          // set by start()
  FaultyTransport* faults_ = nullptr;  // set by start(): the transport, if it follows a fault plan

  Mutex connect_mutex_;  // taken before mutex_ and send_mutex_; held while connecting, which may wait for DNS
  Mutex send_mutex_;
  std::unique_ptr<Transport> transport_ PACELINE_GUARDED_BY(send_mutex_);
  double since_links_were_closed_ = 0;    // seconds; used by the timer thread only
  Transport* keyed_transport_ = nullptr;  // transport_, which handlers use without send_mutex_; null without secrets

  std::map<PeerId, LinkId> connections_ PACELINE_GUARDED_BY(mutex_);
  std::deque<std::pair<LinkId, Message>> early_ PACELINE_GUARDED_BY(mutex_);  // requests from members of a later roster
  std::size_t early_bytes_ PACELINE_GUARDED_BY(mutex_) = 0;
  Speakers speakers_;
  RejectionLog malformed_log_, refused_log_, stray_log_;
  double next_naming_ = 0;       // used by the timer thread only: seconds before name_who_holds_up() may log again
  bool broadcast_late_ = false;  // guarded by turn_: a change of the roster has not been sent yet
  std::chrono::steady_clock::time_point broadcast_at_;  // guarded by turn_: when broadcast() last ran

  CondVar timer_wake_, heart_wake_;
  std::vector<std::function<void()>> posted_ PACELINE_GUARDED_BY(mutex_);
  bool ready_ PACELINE_GUARDED_BY(mutex_) = false;
  bool stopping_ PACELINE_GUARDED_BY(mutex_) = false;
  std::atomic<bool> closed_ = false;  // stop() has failed the requests that waited, or is about to
  std::unordered_map<LinkId, int> malformed_ PACELINE_GUARDED_BY(mutex_);
  std::thread timer_, heart_;
};

}  // namespace paceline

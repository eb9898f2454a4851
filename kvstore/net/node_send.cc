// Requests and answers that a Node sends, and the links that lead to its peers.

#include <paceline/error.h>
#include <paceline/log.h>

#include <future>
#include <utility>

#include "node_impl.h"
#include "refusal.h"

namespace paceline {

// ---- links ----

void Node::Impl::send(LinkId link, Packet packet) {
  // A frame may own the last reference to a Request, whose destructor sends an answer. `kept` delays the destructor
  // until send_mutex_ is released.
  const Packet kept = packet;
  const Lock lock(send_mutex_);
  if (transport_) transport_->send(link, std::move(packet));
}

void Node::Impl::close_links(const std::function<void(Transport&)>& close) {
  Transport* transport = nullptr;  // outlives the threads that call this function
  {
    const Lock lock(send_mutex_);
    transport = transport_.get();
  }
  if (transport) close(*transport);
}

bool Node::Impl::reads_in_place(const PeerId& peer, const void* data, std::size_t bytes) {
  const LinkId link = link_to(peer);
  const Lock lock(send_mutex_);
  return transport_ && transport_->reads_in_place(link, data, bytes);
}

MessageHeader Node::Impl::header(MessageKind kind, std::uint64_t request) const {
  const Lock lock(mutex_);
  return {kind, job_, incarnation_, request, roster_.epoch};
}

// Returns the header of an answer to a process that is perhaps not in this job. Without keys, the header contains only
// what the process sent itself. With keys, it also contains the incarnation of this process, because receivers
// compare it with the key of the link, except on their link to the scheduler.
MessageHeader Node::Impl::header_for(MessageKind kind, const Message& to) const {
  MessageHeader result{kind, to.header.job, 0, to.header.request, 0};
  if (keyring_) result.incarnation = header(kind, to.header.request).incarnation;
  return result;
}

void Node::Impl::send_control(LinkId link, MessageKind kind, std::uint64_t request, std::string body) {
  Message message;
  message.header = header(kind, request);
  message.body = std::move(body);
  send(link, encode(message));
}

std::optional<LinkId> Node::Impl::known_link(const PeerId& peer, Peer* unconnected) const {
  const Lock lock(mutex_);
  const auto connected = connections_.find(peer);
  if (connected != connections_.end()) return connected->second;
  const Peer* known = roster_.find(peer);
  if (!known) return 0;
  if (known->address.empty()) return speakers_.link_of(known->incarnation).value_or(0);
  *unconnected = *known;
  return std::nullopt;
}

void Node::Impl::name_link(LinkId link, const PeerId& peer) {
  if (faults_) faults_->name_link(link, name_in_plan(peer));
}

// Returns the link to a peer, and connects if necessary. Returns 0 if there is none: packets for link 0 are dropped.
LinkId Node::Impl::link_to(const PeerId& peer) {
  if (!scheduler_ && peer.role == Role::kScheduler) return scheduler_link_;
  Peer unconnected;
  if (const auto link = known_link(peer, &unconnected)) return *link;
  const Lock connecting(connect_mutex_);
  if (const auto link = known_link(peer, &unconnected)) return *link;
  Transport* transport = nullptr;
  {
    const Lock lock(send_mutex_);
    transport = transport_.get();
  }
  if (!transport) return 0;
  const LinkId link = transport->connect(unconnected.address, unconnected.key);
  name_link(link, peer);
  {
    const Lock lock(mutex_);
    const Peer* known = roster_.find(peer);
    if (known && known->alive && known->incarnation == unconnected.incarnation)
      return connections_.emplace(peer, link).first->second;
  }
  transport->close(link);  // the peer was lost meanwhile
  return 0;
}

// ---- requests ----

std::uint64_t Node::ask(const PeerId& peer, Message request, ReplyHandler on_reply) {
  return impl_->ask(peer, std::move(request), std::move(on_reply));
}

std::uint64_t Node::Impl::ask(const PeerId& peer, Message request, ReplyHandler on_reply) {
  const std::uint64_t number = pending_requests_.next_number();
  const MessageKind kind = request.header.kind;
  request.header = header(kind, number);
  Packet packet = encode(request);
  pending_requests_.add(number, peer, kind, packet, std::move(on_reply));
  // Look at the roster only after add(). If the peer is lost in between, apply() then fails this request too.
  std::exception_ptr error;
  {
    const Lock lock(mutex_);
    const Peer* known = roster_.find(peer);
    if (failure_)
      error = failure_;
    else if (peer.role != Role::kScheduler && !known)
      error = std::make_exception_ptr(InvalidArgument(str("there is no ", name_of(peer), " in this job")));
    else if (known && !known->alive)
      error = std::make_exception_ptr(
          NetworkError(describe(*known) + (known->finished ? " has left the job" : " was lost")));
  }
  if (error) {
    post([this, number, error] {
      if (const ReplyHandler handler = pending_requests_.cancel(number)) handler(std::nullopt, error);
    });
    return number;
  }
  try {
    send(link_to(peer), std::move(packet));
  } catch (const NetworkError& failed) {
    LOG(WARNING) << failed.what();
  }
  return number;
}

Message Node::Impl::ask_and_wait(const PeerId& peer, Message request) {
  auto promise = std::make_shared<std::promise<Message>>();
  std::future<Message> future = promise->get_future();
  const auto on_reply = [promise](std::optional<Message> answer, const std::exception_ptr& error) {
    if (error)
      promise->set_exception(error);
    else
      promise->set_value(std::move(*answer));
  };
  const std::uint64_t number = ask(peer, std::move(request), on_reply);
  // stop() sets closed_ before it ends all pending requests with an error. If closed_ is still false here, stop() will
  // therefore end this request too, unless it is answered before.
  if (closed_ && pending_requests_.cancel(number)) throw NetworkError("this process has left the job");
  return future.get();
}

void Node::Impl::send_probe(const PendingRequests::Probe& probe) {
  try {
    send_control(link_to(probe.peer), MessageKind::kProbe, probe.request, std::to_string(probe.number));
  } catch (const std::exception& error) {  // the other peers must not wait for this one
    LOG_EVERY_N(WARNING, 100) << name_of(probe.peer) << " cannot be asked again: " << error.what();
  }
}

Message Node::ask_and_wait(const PeerId& peer, Message request) {
  return impl_->ask_and_wait(peer, std::move(request));
}

void Node::cancel(std::uint64_t ask) { impl_->pending_requests_.cancel(ask); }

bool Node::reads_in_place(const PeerId& peer, const void* data, std::size_t bytes) const {
  return impl_->reads_in_place(peer, data, bytes);
}

// ---- answers ----

Request::State::~State() {
  if (answered.exchange(true)) return;
  if (const auto owner = node.lock()) {
    Message refusal;
    refusal.body = refusal_of(NetworkError(std::string(name_of(message.header.kind)) + " was dropped unanswered"));
    owner->answer(*this, MessageKind::kRefusal, std::move(refusal));
  }
}

const Message& Request::message() const { return state_->message; }
PeerId Request::from() const { return state_->from; }
std::uint64_t Request::incarnation() const { return state_->message.header.incarnation; }

void Request::reply(Message answer) const {
  if (!state_ || state_->answered.exchange(true)) return;
  if (const auto node = state_->node.lock()) node->answer(*state_, MessageKind::kReply, std::move(answer));
}

void Request::refuse(const std::exception& reason) const {
  if (!state_ || state_->answered.exchange(true)) return;
  Message message;
  message.body = refusal_of(reason);
  const auto node = state_->node.lock();
  if (!node) return;
  node->answer(*state_, MessageKind::kRefusal, std::move(message));
  if (dynamic_cast<const Corrupt*>(&reason)) node->count_malformed(*state_, reason.what());
}

void Node::Impl::answer(const Request::State& state, MessageKind kind, Message message) {
  message.header = header(kind, state.message.header.request);
  const std::uint64_t sender = state.message.header.incarnation;
  // A process that was refused must not learn the job's number.
  const bool outsider = state.message.header.kind == MessageKind::kJoin && kind == MessageKind::kRefusal;
  if (outsider) message.header = header_for(kind, state.message);
  const LinkId link = speakers_.link_of(sender).value_or(state.link);
  Packet packet;
  try {
    packet = encode(message);
  } catch (const Error& error) {
    message.header.kind = MessageKind::kRefusal;
    message.body = refusal_of(error);
    message.payload.clear();
    packet = encode(message);
  }
  // The request stays open until the answer is in the link's queue. If the answer is too large to be kept, the kResend
  // to a later probe therefore arrives after the answer.
  try {
    send(link, packet);
  } catch (...) {
    answers_.answered(sender, state.message.header.request, packet);  // else a probe would be told to wait
    throw;
  }
  answers_.answered(sender, state.message.header.request, packet);
}

void Node::Impl::count_malformed(const Request::State& state, const std::string& why) {
  // Posted, because close_links() may run only on threads that stop() waits for.
  const LinkId link = speakers_.link_of(state.message.header.incarnation).value_or(state.link);
  post([this, link, why] { on_malformed(link, why); });
}

}  // namespace paceline

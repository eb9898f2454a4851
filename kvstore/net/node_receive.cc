// Handles the packets that arrive at a Node. Checks that the sender of each message may send it on its link, drops
// repetitions, and passes the other messages to their handlers. In a job with secrets, the key of a link decides for
// which process the link speaks.

#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "node_impl.h"
#include "refusal.h"

namespace paceline {
namespace {

constexpr int kMalformedBeforeHangUp = 8;
constexpr std::size_t kMostLinksWatched = 4096;
// Limits of early_. Requests beyond them are dropped, and their senders send them again.
constexpr std::size_t kMostEarly = 1024, kMostEarlyBytes = std::size_t{32} << 20;

bool wants_answer(MessageKind kind) {
  return kind == MessageKind::kJoin || kind == MessageKind::kHeartbeat || kind == MessageKind::kLeave ||
         kind == MessageKind::kEnter || kind == MessageKind::kProbe ||
         static_cast<int>(kind) >= static_cast<int>(MessageKind::kInit);
}

// May a process of role `from` send a request of this kind to a process of role `to`?
bool may_ask(Role from, Role to, MessageKind kind) {
  const int number = static_cast<int>(kind);
  if (kind == MessageKind::kLeave) return to == Role::kScheduler;
  if (number >= static_cast<int>(MessageKind::kRingPush)) return from == Role::kWorker && to == Role::kWorker;
  if (number >= static_cast<int>(MessageKind::kInitValues)) return from == Role::kWorker && to == Role::kServer;
  return from == Role::kWorker && to == Role::kScheduler;
}

// The approximate size of a message in memory. Every frame counts, because a message may have many empty frames.
std::size_t bytes_of(const Message& message) {
  constexpr std::size_t kOfAFrame = 256;
  std::size_t bytes = sizeof(Message) + message.body.size();
  for (const Frame& frame : message.payload) bytes += kOfAFrame + frame.size;
  return bytes;
}

// Returns the number of a probe, from a kProbe or from the kResend that answers it. Throws Corrupt if there is none.
int probe_of(const Message& message) {
  int probe = 0;
  const auto [end, error] = std::from_chars(message.body.data(), message.body.data() + message.body.size(), probe);
  if (error != std::errc() || end != message.body.data() + message.body.size())
    throw Corrupt("a probe, or an answer to one, that does not tell which");
  return probe;
}

}  // namespace

void Node::Impl::on_packet(LinkId link, const Packet& packet) {
  Message message;
  try {
    message = decode(packet);
  } catch (const OtherFormat& other) {
    on_other_format(link, other.what());
    return;
  } catch (const Corrupt& corrupt) {
    on_malformed(link, corrupt.what());
    return;
  }
  const Lock turn(turn_);
  std::uint64_t job = 0;
  {
    const Lock lock(mutex_);
    if (!ready_ || stopping_) return;
    job = job_;
  }
  const MessageKind kind = message.header.kind;
  try {
    if (!is_from_its_sender(link, message)) return;
    // A process that has not joined yet sends 0 if its job has no id. Membership then compares the names of the jobs.
    const bool newcomer =
        scheduler_ && (kind == MessageKind::kJoin || kind == MessageKind::kHeartbeat || kind == MessageKind::kProbe);
    const bool joining = !scheduler_ && job == 0;
    if (message.header.job != job && !joining && !(newcomer && message.header.job == 0)) {
      // A probe is not refused, because the refusal of the request that it asks about says more.
      if (kind == MessageKind::kProbe) return on_probe(link, message);
      refuse(link, message, scheduler_ ? foreign_job(message) : "the process asked belongs to another job");
      return;
    }
    switch (kind) {
      case MessageKind::kReply:
      case MessageKind::kRefusal:
      case MessageKind::kReceived:
      case MessageKind::kResend: on_answer(link, std::move(message)); return;
      case MessageKind::kRoster: on_notice(link, message); return;
      case MessageKind::kProbe: on_probe(link, message); return;
      case MessageKind::kJoin: on_join(link, std::move(message)); return;
      case MessageKind::kHeartbeat: on_heartbeat(link, message); return;
      default: on_request(link, std::move(message)); return;
    }
  } catch (const Corrupt& corrupt) {
    on_malformed(link, corrupt.what());
  } catch (const std::exception& error) {
    LOG(ERROR) << "handling a " << name_of(kind) << ": " << error.what();
  }
}

// A process of another release cannot read messages of this one, but it sees that the format is not its own.
void Node::Impl::on_other_format(LinkId link, const std::string& why) {
  bool first = false, joining = false;
  {
    const Lock lock(mutex_);
    first = malformed_.count(link) == 0;
    joining = !joined_;
  }
  on_malformed(link, why);
  if (!scheduler_ && joining && link == scheduler_link_) {
    fail(std::make_exception_ptr(
        NetworkError("the scheduler at " + scheduler_address_ + " is of another release: " + why)));
  } else if (scheduler_ && first) {
    Message refusal;
    refusal.header.kind = MessageKind::kRefusal;
    refusal.body = refusal_of(NetworkError("this scheduler is of another release"));
    send(link, encode(refusal));
  }
}

void Node::Impl::on_malformed(LinkId link, const std::string& why) {
  ++malformed_total_;
  int count = 0;
  bool hangs_up = false;
  {
    const Lock lock(mutex_);
    if (malformed_.size() > kMostLinksWatched) malformed_.clear();
    count = ++malformed_[link];
    hangs_up = count % kMalformedBeforeHangUp == 0 && link != scheduler_link_;
    // The next request to this peer connects anew.
    if (hangs_up) std::erase_if(connections_, [link](const auto& entry) { return entry.second == link; });
  }
  std::string from;
  {
    const Lock lock(send_mutex_);
    if (!transport_) return;
    from = transport_->describe(link);
  }
  if (hangs_up) close_links([link](Transport& transport) { transport.close(link); });
  if (hangs_up) speakers_.closed(link);
  if (count == 1)
    malformed_log_.add(
        str("dropped a malformed message from ", from, " (", malformed_total_.load(), " so far): ", why));
}

// Drops a message that must not come from this link. Counts the message as malformed.
void Node::Impl::on_stray(LinkId link, const Message& message, const std::string& why) {
  ++malformed_total_;
  std::string from;
  {
    const Lock lock(send_mutex_);
    if (!transport_) return;
    from = transport_->describe(link);
  }
  stray_log_.add(str("dropped a ", name_of(message.header.kind), " from ", from, ": ", why));
}

void Node::Impl::refuse(LinkId link, const Message& message, const std::string& why) {
  refused_log_.add(str("refused a ", name_of(message.header.kind), ": ", why));
  send_refusal(link, message, why);
}

void Node::Impl::send_refusal(LinkId link, const Message& message, const std::string& why) {
  if (!wants_answer(message.header.kind)) return;
  Message refusal;
  refusal.header = header_for(MessageKind::kRefusal, message);
  refusal.body = refusal_of(NetworkError(why));
  send(link, encode(refusal));
}

std::string Node::Impl::foreign_job(const Message& message) const {
  proto::Join join;
  if (message.header.kind != MessageKind::kJoin || !join.ParseFromString(message.body))
    return "the scheduler at " + scheduler_address_ + " serves another job or another start of it";
  return str("the scheduler at ", scheduler_address_, " serves another job than '", join.job(), "' of the ",
             name_of(static_cast<Role>(join.role())), " at ", join.host(), "; give each job its own address");
}

// Does the peer speak on this link?
bool Node::Impl::is_from(LinkId link, const PeerId& peer) const {
  if (!scheduler_ && peer.role == Role::kScheduler) return link == scheduler_link_;
  const Lock lock(mutex_);
  if (const auto own = connections_.find(peer); own != connections_.end() && own->second == link) return true;
  const Peer* known = roster_.find(peer);
  if (!known) return false;
  if (keyring_) return key_of(link) == known->key;
  return known->address.empty() && speakers_.link_of(known->incarnation) == link;
}

void Node::Impl::on_answer(LinkId link, Message message) {
  const std::uint64_t number = message.header.request;
  if (number == 0) {  // not the answer to a request: the scheduler refuses this process
    if (message.header.kind == MessageKind::kRefusal && !scheduler_ && link == scheduler_link_)
      fail(error_of(message.body));
    else
      on_stray(link, message, "it answers no request");
    return;
  }
  const std::optional<PeerId> peer = pending_requests_.peer_of(number);
  if (!peer) return;  // a repeated or late answer
  if (!is_from(link, *peer)) {
    on_stray(link, message, "it answers a request to " + name_of(*peer) + ", which speaks on another link");
    return;
  }
  if (message.header.kind == MessageKind::kReceived) {
    pending_requests_.received(number);
  } else if (message.header.kind == MessageKind::kResend) {
    // Send to the request's peer: this message may lack the incarnation of its sender.
    if (std::optional<PendingRequests::Again> again = pending_requests_.send_again(number, probe_of(message)))
      send(link_to(again->peer), std::move(again->packet));
  } else if (message.header.kind == MessageKind::kRefusal) {
    const std::exception_ptr error = error_of(message.body);
    if (const ReplyHandler handler = pending_requests_.take(number)) handler(std::nullopt, error);
  } else if (const ReplyHandler handler = pending_requests_.take(number)) {
    handler(std::move(message), nullptr);
  }
}

void Node::Impl::on_probe(LinkId link, const Message& message) {
  if (is_of_another(message.header.incarnation, link)) {
    const std::string why = "its sender speaks on another link";
    on_stray(link, message, why);
    send_refusal(link, message, why);  // the answer to the request that the probe asks about may be lost
    return;
  }
  const int probe = probe_of(message);
  Message say;
  Packet answer;
  switch (answers_.look(message.header.incarnation, message.header.request, answer)) {
    case ReplyCache::Known::kAnswered: send(link, std::move(answer)); return;
    case ReplyCache::Known::kOpen: say.header = header_for(MessageKind::kReceived, message); break;
    case ReplyCache::Known::kNew:
      say.header = header_for(MessageKind::kResend, message);
      say.body = std::to_string(probe);
      break;
  }
  send(link, encode(say));
}

void Node::Impl::on_request(LinkId link, Message message) {
  const std::uint64_t sender = message.header.incarnation;
  PeerId from;
  bool known = false, alive = false, finished = false, own = false;
  {
    const Lock lock(mutex_);
    own = joined_ && sender == incarnation_;
    for (const Peer& peer : roster_.peers) {
      if (peer.incarnation != sender) continue;
      known = true;
      alive = peer.alive;
      finished = peer.finished;
      from = peer.id;
    }
    if (!known && message.header.epoch > roster_.epoch) {
      const std::size_t bytes = bytes_of(message);
      if (early_.size() >= kMostEarly || early_bytes_ + bytes > kMostEarlyBytes) return;
      early_bytes_ += bytes;
      early_.emplace_back(link, std::move(message));
      return;
    }
  }
  if (!known || !(alive || finished)) {
    refuse(link, message,
           known ? name_of(from) + " was declared lost" : "the sender is not, or no longer, in this job");
    return;
  }
  if (own) return on_stray(link, message, "it carries this process's own number");
  if (!may_ask(from.role, config_.role, message.header.kind)) {
    refuse(link, message, str("a ", name_of(config_.role), " does not answer this to a ", name_of(from.role)));
    return;
  }
  // A process that has left may repeat requests on its link, but may not bind to a new link.
  const bool is_new = finished && !keyring_ && !speakers_.link_of(sender);
  if (is_new || !may_speak(sender, link)) {
    const std::string why = name_of(from) + (is_new ? " has left" : " speaks on another link");
    on_stray(link, message, why);
    // The sender may be the right process, and the process on the other link an impostor.
    send_refusal(link, message, why);
    return;
  }
  name_link(link, from);
  deliver(link, std::move(message), from);
}

void Node::Impl::deliver(LinkId link, Message message, const PeerId& from) {
  const std::uint64_t sender = message.header.incarnation, number = message.header.request;
  Packet answer;
  switch (answers_.arrive(sender, number, answer)) {
    case ReplyCache::Known::kAnswered: send(link, std::move(answer)); return;
    case ReplyCache::Known::kOpen: send_control(link, MessageKind::kReceived, number); return;
    case ReplyCache::Known::kNew: break;
  }
  const MessageKind kind = message.header.kind;
  Request request;
  request.state_ = std::make_shared<Request::State>(weak_from_this(), std::move(message), from, link);
  try {
    if (kind == MessageKind::kJoin) {
      if (membership_->join(request, link, key_of(link))) broadcast();
      may_speak(sender, link);
    } else if (kind == MessageKind::kLeave && scheduler_) {
      request.reply({});  // before leave(): the scheduler ends when the last process has left
      if (membership_->leave(sender)) broadcast_soon();
    } else if (kind == MessageKind::kEnter && scheduler_) {
      if (membership_->enter(sender)) broadcast();
      request.reply({});  // after broadcast(): the header then has the new roster's epoch
    } else if (handlers_.on_request) {
      handlers_.on_request(request);
    }
  } catch (const std::exception& error) {
    request.refuse(error);
    if (kind == MessageKind::kJoin) answers_.forget(sender);  // keep nothing of a process that was refused
  }
}

void Node::Impl::finish_asks(const std::vector<PendingRequests::Failure>& failures) {
  for (const PendingRequests::Failure& failure : failures) failure.handler(std::nullopt, failure.error);
}

// ---- who may send what ----

std::string Node::Impl::key_of(LinkId link) const {
  return keyed_transport_ ? keyed_transport_->identity_of(link) : std::string();
}

bool Node::Impl::is_from_its_sender(LinkId link, const Message& message) {
  // The peer at the other end of the link to the scheduler has proved that it has the job's secret.
  if (!keyring_ || link == scheduler_link_) return true;
  const std::string key = key_of(link);
  const std::uint64_t sender = message.header.incarnation;
  const MessageKind kind = message.header.kind;
  if (keyring_->speaks_for(key, sender)) return true;
  if (keyring_->is_lost(key)) {
    refuse(link, message, "this process was declared lost: the scheduler had not heard of it");
    return false;
  }
  if (scheduler_ && (sender & kProvisionalIncarnation) != 0) {
    if (kind == MessageKind::kHeartbeat) return false;  // the request to join may still be on its way
    if (kind == MessageKind::kProbe) return true;       // asks whether the request to join has come
    proto::Join join;
    if (kind == MessageKind::kJoin && join.ParseFromString(message.body) && keyring_->let_in(key, join.proof(), sender))
      return true;
  }
  on_malformed(link, str("the key of the link is not that of the sender of a ", name_of(kind)));
  return false;
}

// With keys, the link has proved who speaks. Without keys, a process speaks on the link of its first message.
bool Node::Impl::may_speak(std::uint64_t sender, LinkId link) {
  const auto speaks = keyring_ ? speakers_.bind(sender, link) : speakers_.may_speak(sender, link);
  if (speaks == Speakers::Speaks::kHereFromNow) {
    const Lock lock(send_mutex_);
    if (transport_) transport_->keep(link);  // the link belongs to a process of the job
  }
  return speaks != Speakers::Speaks::kNo;
}

bool Node::Impl::is_of_another(std::uint64_t sender, LinkId link) const {
  const std::optional<LinkId> bound = speakers_.link_of(sender);
  return !keyring_ && bound && *bound != link;
}

Speakers::Speaks Speakers::may_speak(std::uint64_t sender, LinkId link) {
  const Lock lock(mutex_);
  if (closed_.count(link) > 0) return Speaks::kNo;
  const auto [known, is_new] = links_.try_emplace(sender, link);
  return is_new ? Speaks::kHereFromNow : known->second == link ? Speaks::kHere : Speaks::kNo;
}

Speakers::Speaks Speakers::bind(std::uint64_t sender, LinkId link) {
  const Lock lock(mutex_);
  return std::exchange(links_[sender], link) == link ? Speaks::kHere : Speaks::kHereFromNow;
}

std::optional<LinkId> Speakers::link_of(std::uint64_t sender) const {
  const Lock lock(mutex_);
  const auto found = links_.find(sender);
  return found == links_.end() ? std::nullopt : std::optional(found->second);
}

void Speakers::forget(std::uint64_t sender) {
  const Lock lock(mutex_);
  links_.erase(sender);
}

void Speakers::closed(LinkId link) {
  constexpr std::size_t kMostRemembered = 4096;
  const Lock lock(mutex_);
  closed_.insert(link);
  if (closed_.size() > kMostRemembered) closed_.erase(closed_.begin());
  std::erase_if(links_, [link](const auto& entry) { return entry.second == link; });
}

}  // namespace paceline

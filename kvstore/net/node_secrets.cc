// Checks who may send what. In a job with secrets, the key of a link decides for which process the link speaks.

#include <paceline/error.h>

#include <utility>

#include "node_impl.h"
#include "transport/transport_setting.h"

namespace paceline {

void Node::Impl::use_secrets(Transport& transport) {
  if (config_.secret.empty() || TransportSetting::parse(config_.transport).in_process()) return;
  keyring_ = std::make_shared<Keyring>(config_.secret, scheduler_);
  keyed_transport_ = &transport;
  transport.use_keys(keyring_);
}

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

// Returns the header of an answer to a process that is perhaps not in this job. Without keys, the header contains only
// what the process sent itself. With keys, it also contains the incarnation of this process, because receivers
// compare it with the key of the link, except on their link to the scheduler.
MessageHeader Node::Impl::header_for(MessageKind kind, const Message& to) const {
  MessageHeader result{kind, to.header.job, 0, to.header.request, 0};
  if (keyring_) result.incarnation = header(kind, to.header.request).incarnation;
  return result;
}

void Node::Impl::know_members(const Roster& roster) {
  if (!keyring_) return;
  std::unordered_map<std::string, std::uint64_t> members;
  for (const Peer& peer : roster.peers)
    if (peer.alive || peer.finished) members.emplace(peer.key, peer.incarnation);
  keyring_->set_members(std::move(members));
  if (!scheduler_) close_links([](Transport& transport) { transport.close_unadmitted(); });
}

// Closes the links of lost processes after a while. Until then, a lost process that sends a message is told that it was
// declared lost.
void Node::Impl::close_links_of_the_lost(double seconds) {
  since_links_were_closed_ += seconds;
  if (!keyring_ || since_links_were_closed_ < config_.silence_deadline_seconds) return;
  since_links_were_closed_ = 0;
  close_links([](Transport& transport) { transport.close_unadmitted(); });
}

}  // namespace paceline

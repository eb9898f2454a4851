#include "roster.h"

#include <paceline/error.h>

#include <algorithm>
#include <iomanip>
#include <sstream>

namespace paceline {

proto::Roster to_proto(const RosterNotice& notice) {
  proto::Roster result;
  result.set_epoch(notice.roster.epoch);
  result.set_since(notice.since);
  result.set_over(notice.roster.over);
  result.set_failure(notice.failure);
  for (const Peer& peer : notice.roster.peers) {
    proto::Peer& to = *result.add_peers();
    to.set_role(static_cast<std::uint32_t>(peer.id.role));
    to.set_rank(static_cast<std::uint32_t>(peer.id.rank));
    to.set_incarnation(peer.incarnation);
    to.set_address(peer.address);
    to.set_host(peer.host);
    to.set_alive(peer.alive);
    to.set_finished(peer.finished);
    to.set_entered(peer.entered);
    to.set_key(peer.key);
  }
  return result;
}

RosterNotice from_proto(const proto::Roster& roster) {
  RosterNotice result;
  result.roster.epoch = roster.epoch();
  result.since = roster.since();
  result.roster.over = roster.over();
  result.failure = roster.failure();
  for (const proto::Peer& from : roster.peers()) {
    if (from.role() > static_cast<std::uint32_t>(Role::kWorker))
      throw Corrupt(str("[roster] role ", from.role(), " is unknown"));
    Peer peer;
    peer.id = {static_cast<Role>(from.role()), static_cast<int>(from.rank())};
    peer.incarnation = from.incarnation();
    peer.address = from.address();
    peer.host = from.host();
    peer.alive = from.alive();
    peer.finished = from.finished();
    peer.entered = from.entered();
    peer.key = from.key();
    result.roster.peers.push_back(std::move(peer));
  }
  return result;
}

bool update(Roster& roster, const RosterNotice& notice) {
  if (notice.since > roster.epoch) return false;
  roster.epoch = notice.roster.epoch;
  roster.over = notice.roster.over;
  for (const Peer& peer : notice.roster.peers) {
    const auto known = std::ranges::find(roster.peers, peer.id, &Peer::id);
    if (known == roster.peers.end())
      roster.peers.push_back(peer);
    else
      *known = peer;
  }
  return true;
}

std::string describe(const PeerId& id, const std::string& host) {
  return host.empty() ? name_of(id) : name_of(id) + " at " + host;
}

std::string in_seconds(double seconds) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(seconds < 10 ? 1 : 0) << seconds << " s";
  return out.str();
}

}  // namespace paceline

#pragma once
// Converts rosters to messages and back, and writes texts about peers.

#include <message.pb.h>

#include <string>

#include "node.h"

namespace paceline {

struct RosterNotice {
  Roster roster;
  std::uint64_t since = 0;  // the roster holds the peers that changed after this epoch; 0: all
  std::string failure;      // not empty: the job has failed
};

proto::Roster to_proto(const RosterNotice& notice);
RosterNotice from_proto(const proto::Roster& roster);
// Applies the changes of `notice` to `roster`. Returns false if `notice` does not continue from the epoch of `roster`,
// so that changes are missing.
bool update(Roster& roster, const RosterNotice& notice);

std::string describe(const PeerId& id, const std::string& host);  // "server 1 at hostB"
inline std::string describe(const Peer& peer) { return describe(peer.id, peer.host); }
std::string in_seconds(double seconds);  // "15.2 s"

}  // namespace paceline

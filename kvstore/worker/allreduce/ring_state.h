#pragma once
// Converts the pieces of mode ring to the whole keys of a store's state, and back.

#include <vector>

#include "allreduce/ring_keys.h"
#include "allreduce/ring_peer.h"
#include "checkpoint/saved_state.h"

namespace paceline {

// Gathers this worker's weights and state of all pieces.
SavedStore gather(const RingKeys& keys, RingPeer& peer, Engine& engine);
// Cuts a state into pieces. Throws as SavedStore::find().
std::vector<RingPeer::PieceState> cut(const SavedStore& store, const RingKeys& keys);

}  // namespace paceline

#pragma once
// A ring's pieces as the whole keys of a store's state, and back.

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "allreduce/ring_peer.h"
#include "checkpoint/saved_state.h"

namespace paceline {

using RingKeys = std::unordered_map<std::string, std::unique_ptr<RingKey>>;  // by name

// Gathers this worker's weights and state of all pieces.
SavedStore gather(const RingKeys& keys, RingPeer& peer, Engine& engine);
// Cuts a state into pieces. Throws InvalidArgument if the state has other keys.
std::vector<RingPeer::PieceState> cut(const SavedStore& store, const RingKeys& keys);

}  // namespace paceline

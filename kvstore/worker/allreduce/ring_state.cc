#include "allreduce/ring_state.h"

#include <cstring>

namespace paceline {

SavedStore gather(const RingKeys& keys, RingPeer& peer, Engine& engine) {
  SavedStore store;
  for (const auto& [name, key] : keys) {
    SavedKey& saved = store.keys[name];
    for (const RingKey::Part& part : key->parts) {
      const RingPeer::PieceState piece = peer.save(part.piece);
      if (piece.counters.version >= saved.counters.version) saved.counters = piece.counters;
      for (const auto& [slot, array] : piece.arrays) {
        NDArray& whole = slot == "weight" ? saved.weight : saved.slots[slot];
        if (whole.is_none()) {
          whole = NDArray::zeros(key->info.shape, key->info.dtype, {}, engine);
          whole.wait();
        }
        const std::size_t begin = static_cast<std::size_t>(part.begin) * size_of(key->info.dtype);
        if (array.bytes() > 0) std::memcpy(static_cast<std::byte*>(whole.data()) + begin, array.data(), array.bytes());
      }
    }
  }
  return store;
}

std::vector<RingPeer::PieceState> cut(const SavedStore& store, const RingKeys& keys) {
  std::vector<RingPeer::PieceState> pieces;
  for (const auto& [name, key] : keys) {
    const SavedKey& saved = store.find(name, key->info.shape, key->info.dtype);
    NamedArrays arrays{{"weight", saved.weight.contiguous().view(Shape{saved.weight.size()})}};
    for (const auto& [slot, array] : saved.slots)
      arrays.emplace_back(slot, array.contiguous().view(Shape{array.size()}));
    for (const RingKey::Part& part : key->parts) {
      RingPeer::PieceState piece{part.piece, {}, saved.counters};
      for (const auto& [slot, array] : arrays) piece.arrays.emplace_back(slot, array.narrow(0, part.begin, part.end));
      pieces.push_back(std::move(piece));
    }
  }
  return pieces;
}

}  // namespace paceline

#pragma once
// The keys of a worker of mode ring.

#include <paceline/ndarray.h>

#include <memory>
#include <string>
#include <unordered_map>

#include "allreduce/ring_peer.h"

namespace paceline {

using RingKeys = std::unordered_map<std::string, std::unique_ptr<RingKey>>;  // by name

// The key of that name. Throws InvalidArgument if there is none, or if `array` does not fit it. `use`: what the array
// is, for instance "the gradient".
RingKey& find_key(const RingKeys& keys, const std::string& name, const NDArray& array, const char* use);
// Throws InvalidArgument if something else than a pull has written the array that the key shares with the store.
// Workers of which each had written to its own would differ from then on without a word.
void expect_unwritten(const RingKey& key);

}  // namespace paceline

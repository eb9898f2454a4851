#pragma once
// The keys of a worker of mode ring.

#include <paceline/backend.h>
#include <paceline/ndarray.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "allreduce/ring_peer.h"

namespace paceline {

using RingKeys = std::unordered_map<std::string, std::unique_ptr<RingKey>>;  // by name

// Returns the key `name`. Throws InvalidArgument if there is no such key, or if `array` has another size or type. `use`
// says what the array is, for instance "the gradient".
RingKey& find_key(const RingKeys& keys, const std::string& name, const NDArray& array, const char* use);
// Gives each key of `values` its array, and notes whether the store may use the array (InitValue::shared).
void take_arrays(const RingKeys& keys, const std::vector<InitValue>& values);
// Throws InvalidArgument if something else than a pull has written the array that the key shares with the store.
// Otherwise the weights of the workers could come to differ unnoticed.
void expect_unwritten(const RingKey& key);

}  // namespace paceline

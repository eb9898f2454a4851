#pragma once
// Plain bytes, large ones from the pool that arrays of the CPU use, where peers may read them in place. Not installed.

#include <cstddef>
#include <memory>

namespace paceline::detail {

// Uninitialised, aligned as new does at least; given back by its last holder. Throws OutOfMemory. Thread-safe.
std::shared_ptr<std::byte[]> allocate_host(std::size_t bytes);
// Gives the system what the pool keeps for later and nobody uses now. Thread-safe.
void trim_host();

}  // namespace paceline::detail

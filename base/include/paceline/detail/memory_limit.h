#pragma once
// Not installed.

#include <cstddef>
#include <string>

namespace paceline::detail {

// The host's memory in bytes, or the least limit of this process's control groups if that is less. `membership` and
// `mounted` name what describes the groups, of version 1 or 2. A group without a readable limit has none.
std::size_t memory_of_process(const std::string& membership = "/proc/self/cgroup",
                              const std::string& mounted = "/sys/fs/cgroup");

}  // namespace paceline::detail

#pragma once
// Names of modes that mode_catalog() does not hold.

#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace paceline {

// The modes without servers, which the backends of workers implement.
constexpr std::array<std::string_view, 4> kModesWithoutServers{"local", "device", "gossip", "ring"};

// MXNet's names of modes, each with the mode that it stands for here.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kOtherNames{
    {{"nccl", "device"}, {"dist_device_sync", "dist_sync"}, {"dist_sync_device", "dist_sync"}}};

// The mode that a name stands for. Names that are not in kOtherNames stand for themselves.
inline std::string mode_name(const std::string& name) {
  for (const auto& [other, mode] : kOtherNames)
    if (name == other) return std::string(mode);
  return name;
}

}  // namespace paceline

#pragma once
// Where an array lives and a task runs.

#include <cstdint>
#include <string>
#include <string_view>

namespace paceline {

enum class DeviceKind : std::uint8_t {
  kCpu,
  kCuda,
  kSim,  // simulated accelerator: streams are threads with random delays, memory is a separate address range
};

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;

  constexpr Device() = default;
  constexpr Device(DeviceKind device_kind, int device_index) : kind(device_kind), index(device_index) {}

  // "cpu", "cpu:1", "cuda:0", "sim:3"; no index means 0. Throws InvalidArgument for anything else. Names a device
  // only: using a CUDA device that is not there throws NotAvailable at the first allocation.
  explicit Device(std::string_view name);

  std::string name() const;
  bool is_cpu() const { return kind == DeviceKind::kCpu; }
  friend bool operator==(const Device&, const Device&) = default;
  friend auto operator<=>(const Device&, const Device&) = default;
};

// Number of devices of that kind that can be used here: cpu 16 (logical devices of one processor), sim 4, cuda as
// found.
int device_count(DeviceKind kind);

}  // namespace paceline

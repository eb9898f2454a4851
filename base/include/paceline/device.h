#pragma once
// Where an array lives and a task runs.

#include <cstdint>
#include <string>
#include <string_view>

namespace paceline {

// What kind of hardware a device is.
enum class DeviceKind : std::uint8_t {
  kCpu,   // host memory and the host's cores
  kCuda,  // an NVIDIA GPU
  kSim,   // simulated accelerator: streams are threads with random delays, memory is a separate address range
};

// A place for arrays and tasks: a kind and a number. The default is "cpu:0".
struct Device {
  DeviceKind kind = DeviceKind::kCpu;  // of what hardware
  int index = 0;                       // which of that kind, from 0

  constexpr Device() = default;
  // Names device `device_index` of that kind. Checks nothing.
  constexpr Device(DeviceKind device_kind, int device_index) : kind(device_kind), index(device_index) {}

  // "cpu", "cpu:1", "cuda:0", "sim:3"; no index means 0. Throws InvalidArgument for anything else. The device need not
  // exist: where it does not, the first allocation throws NotAvailable.
  explicit Device(std::string_view name);

  std::string name() const;  // "cpu", "cpu:1", "cuda:0"
  // Is it of the kind kCpu?
  bool is_cpu() const { return kind == DeviceKind::kCpu; }
  friend bool operator==(const Device&, const Device&) = default;
  friend auto operator<=>(const Device&, const Device&) = default;
};

// The number of devices of that kind that this process can use: 16 of kCpu (logical devices of one processor), 4 of
// kSim, and of kCuda as many as the driver finds. Thread-safe.
int device_count(DeviceKind kind);

}  // namespace paceline

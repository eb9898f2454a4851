#pragma once
// Knobs and counters of the simulated devices, for tests. Not installed.

#include <cstdint>

namespace paceline::detail {

// Each piece of work of a stream is held up by a random time first.
struct SimulatedDelays {
  std::uint64_t seed = 1;
  int percent = 20;  // how many of 100 pieces are held up; the others start at once
  int maximum_microseconds = 100;
};

// For streams created from now on.
void set_simulated_delays(const SimulatedDelays& delays);

// From now on work of the device fails with a DeviceError, also what is in its streams and not done, until it is told
// to be whole again. Callable from the device's own work: a kernel's fault.
void break_simulated_device(int index, bool is_broken = true);

// How often a host thread has waited for any simulated device (Event::synchronize, DeviceRuntime::synchronize).
std::int64_t simulated_host_waits();

// Bytes of all simulated devices that are allocated and not released.
std::int64_t simulated_bytes_in_use();

// Memory of a simulated device is filled with this byte (NaN in every floating type) before its first use and after its
// release.
inline constexpr unsigned char kSimulatedPoison = 0xff;

}  // namespace paceline::detail

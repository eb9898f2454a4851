#pragma once
// Switches and counters of the simulated devices, for tests. Not installed.

#include <cstdint>

namespace paceline::detail {

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

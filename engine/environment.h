#pragma once
// What the environment says to engines, for looking into a program without changing it.

#include <cstdint>

namespace paceline::detail {

// PACELINE_SCHEDULE_SEED, or 0. Throws InvalidArgument for anything but a number.
std::uint64_t schedule_seed_wanted();

// PACELINE_ENGINE: serial, or threaded, which is the default. Throws InvalidArgument for other words.
bool serial_engine_wanted();

}  // namespace paceline::detail

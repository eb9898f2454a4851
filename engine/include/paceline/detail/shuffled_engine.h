#pragma once
// The threaded engine in other legal orders, for tests: the result must not change. Not installed.

#include <paceline/engine.h>

#include <cstdint>
#include <memory>

namespace paceline::detail {

// Of the tasks that may run, one drawn at random goes first, whatever its priority, and some go a little later. A seed
// of 0 is the usual order. make_threaded_engine() takes the seed from PACELINE_SCHEDULE_SEED, where it is set.
std::unique_ptr<Engine> make_shuffled_engine(const EngineOptions& options, std::uint64_t seed);

}  // namespace paceline::detail

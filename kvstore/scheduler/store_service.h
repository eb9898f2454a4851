#pragma once
// The scheduler's part of the store: where workers agree on keys, their layout, the mode and the optimizer.

#include "scheduler.h"

namespace paceline {

// kInit and kSetOptimizer. A collective that waits longer than `silence_seconds` names in the log whom it waits for.
std::unique_ptr<SchedulerService> make_store_service(int servers, double silence_seconds);

}  // namespace paceline

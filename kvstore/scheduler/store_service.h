#pragma once
// The scheduler's part of the store: where workers agree on keys and tables, their layout and placement, the mode and
// the optimizer.

#include "placement_policy.h"
#include "scheduler.h"

namespace paceline {

// kInit, kPlaceTables and kSetOptimizer. A collective that waits longer than `silence_seconds` names in the log whom it
// waits for. `policy`: places partitions; null: the balanced one.
std::unique_ptr<SchedulerService> make_store_service(int servers, double silence_seconds,
                                                     std::shared_ptr<PlacementPolicy> policy = nullptr);

}  // namespace paceline

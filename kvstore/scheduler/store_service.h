#pragma once
// The scheduler's part of the store. Here workers agree on keys and tables, their layout and placement, the mode and
// the optimizer.

#include "placement_policy.h"
#include "scheduler.h"

namespace paceline {

// Handles kInit, kPlaceTables, kFillTable and kSetOptimizer. If workers wait for others longer than `silence_seconds`,
// the log names the others. `policy` places partitions; null: make_balanced_placement().
std::unique_ptr<SchedulerService> make_store_service(int servers, double silence_seconds,
                                                     std::shared_ptr<PlacementPolicy> policy = nullptr);

}  // namespace paceline

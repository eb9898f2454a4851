#pragma once
// The scheduler's part of the store: where workers agree on keys and tables, their layout and placement, the mode and
// the optimizer.

#include "placement_policy.h"
#include "scheduler.h"

namespace paceline {

// kInit, kPlaceTables, kFillTable and kSetOptimizer. Where workers wait for others longer than `silence_seconds`, the
// log names whom they wait for. `policy`: places partitions; null: the balanced one.
std::unique_ptr<SchedulerService> make_store_service(int servers, double silence_seconds,
                                                     std::shared_ptr<PlacementPolicy> policy = nullptr);

}  // namespace paceline

#pragma once
// Slices that workers fetch from each other: names and counters in a message's body, arrays as its payload.

#include <paceline/updater.h>

#include <memory>

#include "payload.h"
#include "workers.pb.h"

namespace paceline {

// `state`: the optimizer's too.
void write_slice(Updater& updater, int slice, bool state, wire::WorkerSlices::Slice* part, PayloadWriter* payload);
// The arrays lie in the payload, which `owner` keeps. Throws Corrupt where it holds less.
NamedArrays read_slice(const wire::WorkerSlices::Slice& part, const Shape& shape, DType dtype, PayloadReader* payload,
                       const std::shared_ptr<void>& owner, SliceCounters* counters);

}  // namespace paceline

#pragma once
// Slices that workers fetch from each other: names and counters in a message's body, arrays as its payload.

#include <paceline/updater.h>

#include <memory>

#include "payload.h"
#include "workers.pb.h"

namespace paceline {

// `state`: writes the optimizer's state too.
void write_slice(Updater& updater, int slice, bool state, wire::WorkerSlices::Slice* part, PayloadWriter* payload);
// The arrays are in the memory of the payload, which `owner` keeps alive. Throws Corrupt if the payload is too short.
NamedArrays read_slice(const wire::WorkerSlices::Slice& part, const Shape& shape, DType dtype, PayloadReader* payload,
                       const std::shared_ptr<void>& owner, SliceCounters* counters);

}  // namespace paceline

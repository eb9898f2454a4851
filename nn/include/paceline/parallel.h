#pragma once
// One network over several devices. Modules are placed with Module::to(); what crosses from one device to another is
// copied, and its gradient copied back. Tasks of different devices run at the same time where the engine sees that one
// does not need the other. Each cpu:N is a device with a thread (and OpenMP team) of its own.

#include <paceline/module.h>

namespace paceline::nn {

// x on `device`: x itself where it is there already, else a copy that a Tape follows.
NDArray to_device(const NDArray& x, Device device);

}  // namespace paceline::nn

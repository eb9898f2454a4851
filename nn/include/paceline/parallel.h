#pragma once
// One network over several devices. Modules are placed with Module::to(); what crosses from one device to another is
// copied, and its gradient copied back. Tasks of different devices run at the same time where the engine sees that one
// does not need the other. Each cpu:N is a device with a thread and an OpenMP team of its own: let PACELINE_NUM_THREADS
// be the cores divided by the devices in use, or the teams get in each other's way.

#include <paceline/layers.h>

namespace paceline::nn {

// x on `device`: x itself where it is there already, else a copy that a Tape follows.
NDArray to_device(const NDArray& x, Device device);
// x cut along `axis` into one part for each device, their sizes equal or differing by one; a Tape follows. Throws
// InvalidArgument where there are more devices than places.
Parts scatter(const NDArray& x, int axis, const std::vector<Device>& devices);

struct PipelineOptions {
  int micro_batches = 4;
  // Which module each stage but the first begins with. Empty: cut at the first call, so that the greatest stage is as
  // small as can be, by ...
  std::vector<int> begins = {};
  enum class Balance { kBytes, kSeconds } balance = Balance::kBytes;  // ... parameters or the time of a forward pass
};

// A Sequential whose modules lie on several devices, a stage of consecutive ones on each, and which runs on the parts
// of a batch (along axis 0; sizes differ by one at most, and a smaller batch has fewer parts): a stage works on one
// part while the next stage works on the part before. Parameters have the names and the numbers of the Sequential's, so
// files and checkpoints of either fit the other.
//
// Called, it gives the whole batch's output; under a Tape all parts are forward before the first is backward, and all
// that they keep is kept (GPipe, Huang et al. 2019). A Trainer sends each part backward as soon as it is through and
// holds at most one more than there are devices at a time (as 1F1B, PipeDream, Narayanan et al. 2019), whatever their
// number, its own `micro_batches` times these; the loss must be a mean over examples. Weights change after the whole
// batch: the step is that of the Sequential. Batch norm sees the parts, and dropout draws for each of them.
//
// Throws InvalidArgument where `net` is no Sequential, or has fewer modules than there are devices.
struct Pipeline : Module {
  Pipeline(const Module& net, const std::vector<Device>& devices, const PipelineOptions& options = {});
};

// Dense layers whose work and weight are spread over devices (Megatron-LM, Shoeybi et al. 2019), in parts whose sizes
// differ by one at most. The whole weight stays on the CPU, with the name and the numbers of a Dense's, so files and
// checkpoints of either fit the other; each call copies the parts to their devices, which hold them until backward.
// Throw InvalidArgument where there are more devices than outputs, or inputs, to share out.
//
// By columns of y = x W': each device has x and computes some of the outputs. They are gathered where the input was, or
// handed on in parts: element-wise layers (Relu, Tanh, Sigmoid, Gelu) take those, and a RowParallelDense of as many
// devices.
struct ColumnParallelDense : Module {
  ColumnParallelDense(std::int64_t outputs, const std::vector<Device>& devices, const DenseOptions& options = {},
                      bool gather_output = true);
};
// By rows: each device has some of the inputs, in parts as they come or cut from a whole, and computes its share of all
// outputs; the shares are added in the order of the devices, then the bias, where the input was (of parts: where that
// of the Sequential was). So
//   Sequential(ColumnParallelDense(4 * n, devices, {}, false), Gelu(), RowParallelDense(n, devices))
// gathers nothing and adds once.
struct RowParallelDense : Module {
  RowParallelDense(std::int64_t outputs, const std::vector<Device>& devices, const DenseOptions& options = {});
};

}  // namespace paceline::nn

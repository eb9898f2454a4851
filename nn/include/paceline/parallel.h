#pragma once
// One network over several devices. Module::to() places a module. What crosses from one device to another is copied,
// and its gradient is copied back. Tasks of different devices run at the same time where neither needs the other's
// result. Each cpu:N is a device with a thread and an OpenMP team. Set PACELINE_NUM_THREADS to the number of cores
// divided by that of the devices in use, or the teams get in each other's way.

#include <paceline/layers.h>

namespace paceline::nn {

// x on `device`: x itself where it is there already, else a copy, which a Tape follows.
NDArray to_device(const NDArray& x, Device device);
// x cut along `axis` into one part for each device. Sizes differ by one at most. A Tape follows. Throws InvalidArgument
// where there are more devices than places.
Parts scatter(const NDArray& x, int axis, const std::vector<Device>& devices);

// Options of Pipeline.
struct PipelineOptions {
  int micro_batches = 4;  // parts of a batch
  // The modules that each stage but the first begins with. Empty: the first call cuts the network so that the largest
  // stage is as small as possible.
  std::vector<int> begins = {};
  // What "large" means there: the bytes of the parameters, or the seconds of a forward pass.
  enum class Balance { kBytes, kSeconds } balance = Balance::kBytes;
};

// A Sequential in stages of consecutive modules, one on each device. It runs on parts of a batch: a stage works on one
// part while the next stage works on the part before. Parts are cut along axis 0, and their sizes differ by one at
// most; a smaller batch has fewer parts. Parameters have the names and values of the Sequential's, so files and
// checkpoints of either fit the other.
//
// A call gives the output of the whole batch. Under a Tape all parts go forward before the first goes backward, and all
// that they keep is kept (GPipe, Huang et al. 2019). A Trainer sends each part backward as soon as it is through, and
// holds at most one part more than there are devices (1F1B, PipeDream, Narayanan et al. 2019). There are
// `micro_batches` parts for each of the Trainer's own micro-batches. The loss must be a mean over examples. Weights
// change after the whole batch, as in the Sequential. Batch norm sees the parts, and dropout draws for each of them.
//
// Throws InvalidArgument where `net` is no Sequential, or has fewer modules than there are devices.
struct Pipeline : Module {
  Pipeline(const Module& net, const std::vector<Device>& devices, const PipelineOptions& options = {});
};

// A Dense layer whose outputs are spread over devices (Megatron-LM, Shoeybi et al. 2019), in parts whose sizes differ
// by one at most. The whole weight stays on the CPU, with the name and values of a Dense's, so files and checkpoints of
// either fit the other. Each call copies the parts to their devices, which hold them until backward.
//
// Each device has x and computes some of the outputs. These are gathered where the input was, or handed on in parts,
// which element-wise layers (Relu, Tanh, Sigmoid, Gelu) take, and a RowParallelDense with as many devices. Throws
// InvalidArgument where there are more devices than outputs.
struct ColumnParallelDense : Module {
  ColumnParallelDense(std::int64_t outputs, const std::vector<Device>& devices, const DenseOptions& options = {},
                      bool gather_output = true);
};
// A Dense layer whose inputs are spread over devices; otherwise as ColumnParallelDense. Each device has some of the
// inputs, in parts as they come or cut from a whole, and computes its share of all outputs. The shares are added in the
// order of the devices, then the bias, where the input was; where parts come, that is the input of the Sequential. So
// `Sequential(ColumnParallelDense(4 * n, devices, {}, false), Gelu(), RowParallelDense(n, devices))` gathers nothing
// and adds once. Throws InvalidArgument where there are more devices than inputs.
struct RowParallelDense : Module {
  RowParallelDense(std::int64_t outputs, const std::vector<Device>& devices, const DenseOptions& options = {});
};

}  // namespace paceline::nn

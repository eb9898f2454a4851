#pragma once
// The checkpoint file: safetensors. Arrays "arg:NAME" and "aux:NAME" are the weights and running statistics,
// "store:..." what the store keeps beside them (optimizer state, workers' momentum). Metadata: format, epoch, steps,
// positions (of that epoch, already trained on), order (of its records, DataIterator::order()), optimizer, input (type
// and sizes of the first batch's data), under float16 loss_scale and loss_scale_steps (good ones since it changed), and
// the store's counters as "counter:...", and the program's notes as "note:...".

#include <paceline/backend.h>
#include <paceline/data_iterator.h>
#include <paceline/module.h>
#include <paceline/progress.h>

#include <optional>
#include <string>

#include "loss_scale.h"

namespace paceline::nn {

struct Checkpoint {
  std::int64_t epoch = 0;
  std::int64_t steps = 0;  // of the worker that wrote it
  RangeSet positions;
  std::optional<std::string> order = {};  // empty: not known; none: an older file, which does not say
  std::string optimizer;
  std::optional<LossScale> loss_scale = {};
  std::string input;
  Notes notes;
  NamedArrays weights;  // read only
  StoreState store;
};

// Creates the directory. The old file stays whole until the new one is complete.
void write_checkpoint(const std::string& path, const Checkpoint& checkpoint,
                      const std::vector<std::shared_ptr<Parameter>>& parameters);
// Throws IoError, Corrupt.
Checkpoint read_checkpoint(const std::string& path);
// Makes the parameters of a network that has none yet, for inputs as the checkpoint's were, and gives it the
// checkpoint's weights. Throws InvalidArgument where they are of another network. Does nothing for a network without
// parameters and a checkpoint that does not say what its inputs were.
void take_weights(const Checkpoint& checkpoint, const std::string& path, const Module& net, std::uint64_t seed,
                  Device device);

}  // namespace paceline::nn

#pragma once
// Weights of files for networks: fine-tuning and evaluation.

#include <paceline/module.h>

#include <functional>
#include <string>
#include <vector>

namespace paceline::nn {

// How names of a file and of a network may differ.
struct LoadOptions {
  // The network's name for a name in the file, without "arg:" and "aux:"; "" leaves the array out. Null: the same name.
  std::function<std::string(const std::string& name)> map = nullptr;
  // Weights of the network may be missing in the file, or have another shape there, as those of a new head do.
  bool allow_missing = false;
  bool allow_extra = false;  // arrays of the file may be missing in the network
};

// What load_weights() left out.
struct LoadedWeights {
  std::vector<std::string> missing, extra;  // names that only the network has, and that only the file has
  std::vector<std::string> other_shape;     // "0.weight (10, 5) instead of (10, 6)"
};

// Reads weights into an initialised network, converting types. `place` is a checkpoint (the file or its folder),
// MXNet's `.params`, or a safetensors file, on this host or at http://, https:// or s3://. In a job, call it before the
// first step, which gives every worker the weights of rank 0; later the store's weights overwrite what is loaded.
// Throws IoError, Corrupt, and NotAvailable where the file holds an array, wanted or not, of a type that arrays do not
// have. Throws InvalidArgument where something does not fit that the options do not allow. After a throw the network is
// as it was.
LoadedWeights load_weights(const Module& net, const std::string& place, const LoadOptions& options = {});

}  // namespace paceline::nn

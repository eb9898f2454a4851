#include "checkpoint.h"

#include <paceline/trainer.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>

namespace paceline::nn {
namespace {

using Metadata = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kFormat = "paceline checkpoint 1";
constexpr std::string_view kStore = "store:", kCounter = "counter:";

// Of a checkpoint, the file or its folder.
std::string file_of(const std::string& place) {
  return std::filesystem::is_directory(place) ? checkpoint_path(place) : place;
}

std::string prefix_of(const Parameter& parameter) { return parameter.statistic ? "aux:" : "arg:"; }

}  // namespace

std::string checkpoint_path(const std::string& directory) {
  return (std::filesystem::path(directory) / "checkpoint.safetensors").string();
}

void write_checkpoint(const std::string& path, const Checkpoint& checkpoint,
                      const std::vector<std::shared_ptr<Parameter>>& parameters) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) throw IoError(str("cannot create the folder of ", path, ": ", error.message()));
  NamedArrays arrays;
  for (const auto& parameter : parameters)
    arrays.emplace_back(prefix_of(*parameter) + parameter->name, parameter->value.to(Device()));
  for (const auto& [name, array] : checkpoint.store.arrays) arrays.emplace_back(std::string(kStore) + name, array);
  Metadata metadata{{"format", kFormat},
                    {"epoch", std::to_string(checkpoint.epoch)},
                    {"steps", std::to_string(checkpoint.steps)},
                    {"positions", checkpoint.positions.text()},
                    {"optimizer", checkpoint.optimizer}};
  if (const auto& scale = checkpoint.loss_scale) {
    metadata.emplace_back("loss_scale", std::to_string(static_cast<std::int64_t>(scale->value())));
    metadata.emplace_back("loss_scale_steps", std::to_string(scale->good_steps()));
  }
  for (const auto& [name, value] : checkpoint.store.counters)
    metadata.emplace_back(std::string(kCounter) + name, value);
  save_safetensors(path, arrays, metadata);
}

Checkpoint read_checkpoint(const std::string& path) try {
  Metadata metadata;
  const NamedArrays arrays = load_safetensors(path, &metadata);
  std::map<std::string, std::string> values(metadata.begin(), metadata.end());
  if (values["format"] != kFormat)
    throw Corrupt(str("'", path, "' is no checkpoint of this version: its format is '", values["format"],
                      "', expected '", kFormat, "'"));
  Checkpoint checkpoint;
  const auto number = [&](const char* name, std::int64_t* value) {
    const std::string& text = values[name];
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), *value);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || *value < 0)
      throw Corrupt(str("'", path, "' has ", name, "='", text, "', expected a number"));
  };
  number("epoch", &checkpoint.epoch);
  if (values.count("steps") > 0) number("steps", &checkpoint.steps);  // older files do not have it
  if (values.count("loss_scale") > 0) {
    std::int64_t scale = 0, steps = 0;
    number("loss_scale", &scale);
    number("loss_scale_steps", &steps);
    checkpoint.loss_scale = LossScale::of(scale, steps);
    if (!checkpoint.loss_scale)
      throw Corrupt(str("'", path, "' has loss_scale=", scale, " and loss_scale_steps=", steps,
                        ", expected a power of two and less than ", LossScale::kGrowAfter));
  }
  checkpoint.positions = RangeSet::parse(values["positions"]);
  checkpoint.optimizer = values["optimizer"];
  for (const auto& [name, value] : metadata)
    if (name.rfind(kCounter, 0) == 0) checkpoint.store.counters.emplace_back(name.substr(kCounter.size()), value);
  for (const auto& [name, array] : arrays)
    if (name.rfind(kStore, 0) == 0) checkpoint.store.arrays.emplace_back(name.substr(kStore.size()), array);
  return checkpoint;
} catch (const Corrupt& damage) {
  throw Corrupt(str(damage.what(), "; put back a copy of the checkpoint, or remove it to train anew"));
}

StoreState load_store_state(const std::string& place) { return read_checkpoint(file_of(place)).store; }

namespace {

// The arrays of MXNet's `.params` or of a safetensors file, without what a checkpoint has of the store.
NamedArrays stored_weights(const std::string& path) {
  std::uint64_t first = 0;
  if (std::ifstream file(path, std::ios::binary); !file.read(reinterpret_cast<char*>(&first), sizeof first)) first = 0;
  constexpr std::uint64_t kParamsMagic = 0x112;
  NamedArrays arrays = first == kParamsMagic ? load_params(path) : load_safetensors(path);
  std::erase_if(arrays, [](const auto& one) { return one.first.starts_with(kStore); });
  for (auto& [name, array] : arrays)
    if (name.starts_with("arg:") || name.starts_with("aux:")) name.erase(0, 4);
  return arrays;
}

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kNamed = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamed); ++i) text += (i ? ", '" : "'") + names[i] + "'";
  return names.size() > kNamed ? str(text, " and ", names.size() - kNamed, " more") : text;
}

}  // namespace

LoadedWeights load_weights(const Module& net, const std::string& place, const LoadOptions& options) {
  const std::string path = file_of(place);
  const auto parameters = net.parameters();
  require(!parameters.empty(), "'", path, "' is not loaded: the network has no weights yet; call initialize() first");
  std::map<std::string, NDArray> stored;
  for (auto& [name, array] : stored_weights(path)) {
    const std::string own = options.map ? options.map(name) : name;
    if (own.empty()) continue;
    require(stored.emplace(own, array).second, "'", path, "' holds two arrays for '", own, "'");
  }
  LoadedWeights result;
  std::vector<std::pair<NDArray, NDArray>> copies;
  for (const auto& parameter : parameters) {
    const auto found = stored.find(parameter->name);
    if (found == stored.end()) {
      result.missing.push_back(parameter->name);
      continue;
    }
    if (found->second.shape() == parameter->value.shape())
      copies.emplace_back(found->second, parameter->value);
    else
      result.other_shape.push_back(
          str(parameter->name, " ", found->second.shape(), " instead of ", parameter->value.shape()));
    stored.erase(found);
  }
  for (const auto& [name, array] : stored) result.extra.push_back(name);
  std::string wrong;
  const auto add = [&](bool allowed, const std::vector<std::string>& names, const char* what) {
    if (!allowed && !names.empty()) wrong += (wrong.empty() ? "" : ", ") + std::string(what) + listed(names);
  };
  add(options.allow_missing, result.missing, "it lacks ");
  add(options.allow_missing, result.other_shape, "it has other shapes for ");
  add(options.allow_extra, result.extra, "the network lacks ");
  require(wrong.empty(), "'", path, "' does not fit the network: ", wrong,
          "; LoadOptions can map names and allow what is missing or extra");
  for (const auto& [from, to] : copies) to.copy_from(from);
  return result;
}

}  // namespace paceline::nn

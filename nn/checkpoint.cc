#include "checkpoint.h"

#include <paceline/trainer.h>

#include <charconv>
#include <cstring>
#include <filesystem>
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

void load_weights(const Module& net, const std::string& place) {
  const std::string path = file_of(place);
  std::map<std::string, NDArray> stored;
  for (const auto& [name, array] : load_safetensors(path))
    if (name.rfind(kStore, 0) != 0) stored[name] = array;
  for (const auto& parameter : net.parameters()) {
    const auto found = stored.find(prefix_of(*parameter) + parameter->name);
    require(found != stored.end(), "'", path, "' holds no '", parameter->name, "', which the network needs");
    require(found->second.shape() == parameter->value.shape(), "'", parameter->name, "' has shape ",
            found->second.shape(), " in '", path, "', but ", parameter->value.shape(), " in the network");
    parameter->value.copy_from(found->second);
    stored.erase(found);
  }
  require(stored.empty(), "'", path, "' holds '", stored.empty() ? "" : stored.begin()->first.substr(4),
          "', which the network does not have");
}

}  // namespace paceline::nn

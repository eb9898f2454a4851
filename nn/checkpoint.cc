#include "checkpoint.h"

#include <paceline/detail/array_file.h>
#include <paceline/detail/remote.h>
#include <paceline/remote_path.h>
#include <paceline/trainer.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

namespace paceline::nn {
namespace {

using Metadata = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kFormat = "paceline checkpoint 1";
constexpr std::string_view kStore = "store:", kCounter = "counter:", kNote = "note:";

// A file of weights, and its first bytes; none where it is not there.
struct WeightsFile {
  std::string path;
  std::optional<detail::FileStart> start;
};

// The file that `place` names, or the checkpoint in the folder that it names. A URL without a file counts as a folder.
WeightsFile file_at(const std::string& place, std::size_t bytes) {
  const bool remote = is_remote(place);
  if (remote || !std::filesystem::is_directory(place)) {
    WeightsFile file{place, detail::read_start(place, bytes)};
    if (file.start || !remote) return file;
  }
  const std::string path = checkpoint_path(place);
  return {path, detail::read_start(path, bytes)};
}

Notes notes_in(const Metadata& metadata) {
  Notes notes;
  for (const auto& [name, value] : metadata)
    if (name.starts_with(kNote)) notes.emplace(name.substr(kNote.size()), value);
  return notes;
}

std::string prefix_of(const Parameter& parameter) { return parameter.statistic ? "aux:" : "arg:"; }

}  // namespace

std::string checkpoint_path(const std::string& directory) {
  return (std::filesystem::path(directory) / "checkpoint.safetensors").string();
}

void write_checkpoint(const std::string& path, const Checkpoint& checkpoint,
                      const std::vector<std::shared_ptr<Parameter>>& parameters) {
  std::error_code error;
  if (!is_remote(path)) std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) throw IoError(str("cannot create the folder of ", path, ": ", error.message()));
  NamedArrays arrays;
  for (const auto& parameter : parameters)
    arrays.emplace_back(prefix_of(*parameter) + parameter->name, parameter->value.to(Device()));
  for (const auto& [name, array] : checkpoint.store.arrays) arrays.emplace_back(std::string(kStore) + name, array);
  Metadata metadata{{"format", kFormat},
                    {"epoch", std::to_string(checkpoint.epoch)},
                    {"steps", std::to_string(checkpoint.steps)},
                    {"positions", checkpoint.positions.text()},
                    {"order", checkpoint.order.value_or("")},
                    {"optimizer", checkpoint.optimizer},
                    {"input", checkpoint.input}};
  if (const auto& scale = checkpoint.loss_scale) {
    metadata.emplace_back("loss_scale", std::to_string(static_cast<std::int64_t>(scale->value())));
    metadata.emplace_back("loss_scale_steps", std::to_string(scale->good_steps()));
  }
  for (const auto& [name, value] : checkpoint.store.counters)
    metadata.emplace_back(std::string(kCounter) + name, value);
  for (const auto& [name, value] : checkpoint.notes) metadata.emplace_back(std::string(kNote) + name, value);
  save_safetensors(path, arrays, metadata);
}

Checkpoint read_checkpoint(const std::string& path) try {
  const std::string file = redacted(path);
  Metadata metadata;
  const NamedArrays arrays = load_safetensors(path, &metadata);
  std::map<std::string, std::string> values(metadata.begin(), metadata.end());
  if (values["format"] != kFormat)
    throw Corrupt(str("'", file, "' is no checkpoint of this version: its format is '", values["format"],
                      "', expected '", kFormat, "'"));
  Checkpoint checkpoint;
  const auto number = [&](const char* what, std::int64_t* value) {
    const std::string& text = values[what];
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), *value);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || *value < 0)
      throw Corrupt(str("'", file, "' has ", what, "='", text, "', expected a number"));
  };
  number("epoch", &checkpoint.epoch);
  if (values.count("steps") > 0) number("steps", &checkpoint.steps);  // older files do not have it
  if (values.count("loss_scale") > 0) {
    std::int64_t scale = 0, steps = 0;
    number("loss_scale", &scale);
    number("loss_scale_steps", &steps);
    checkpoint.loss_scale = LossScale::of(scale, steps);
    if (!checkpoint.loss_scale)
      throw Corrupt(str("'", file, "' has loss_scale=", scale, " and loss_scale_steps=", steps,
                        ", expected a power of two and less than ", LossScale::kGrowAfter));
  }
  checkpoint.positions = RangeSet::parse(values["positions"]);
  if (values.count("order") > 0) checkpoint.order = values["order"];
  checkpoint.optimizer = values["optimizer"];
  checkpoint.input = values["input"];
  checkpoint.notes = notes_in(metadata);
  for (const auto& [name, value] : metadata)
    if (name.rfind(kCounter, 0) == 0) checkpoint.store.counters.emplace_back(name.substr(kCounter.size()), value);
  for (const auto& [name, array] : arrays) {
    if (name.starts_with(kStore))
      checkpoint.store.arrays.emplace_back(name.substr(kStore.size()), array);
    else if (const auto prefix = name.find(':'); prefix != std::string::npos)
      checkpoint.weights.emplace_back(name.substr(prefix + 1), array);
  }
  return checkpoint;
} catch (const Corrupt& damage) {
  throw Corrupt(str(damage.what(), "; put back a copy of the checkpoint, or remove it to train anew"));
}

namespace {

// Is this MXNet's `.params`? Throws InvalidArgument for files of other kinds that users take for weights.
bool is_params(const WeightsFile& file) {
  if (!file.start) return false;
  const std::string name = redacted(file.path), &bytes = file.start->bytes;
  require(!bytes.starts_with("PK\x03\x04"), "'", name,
          "' is a zip archive, as PyTorch's .pt files are; save the state_dict() with safetensors.torch.save_file");
  require(!bytes.starts_with('{') || detail::begins_safetensors(*file.start), "'", name,
          "' is JSON, perhaps the index of a file in parts; load each .safetensors of it with allow_missing");
  return detail::begins_params(*file.start);
}

// The arrays of MXNet's `.params` or of a safetensors file, by names without "arg:" and "aux:". Arrays of the store in
// a checkpoint are left out.
NamedArrays stored_weights(const WeightsFile& file) {
  NamedArrays arrays = is_params(file) ? load_params(file.path) : load_safetensors(file.path);
  std::erase_if(arrays, [](const auto& one) { return one.first.starts_with(kStore); });
  for (auto& [key, array] : arrays)
    if (key.starts_with("arg:") || key.starts_with("aux:")) key.erase(0, 4);
  return arrays;
}

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kNamed = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamed); ++i) text += (i ? ", '" : "'") + names[i] + "'";
  return names.size() > kNamed ? str(text, " and ", names.size() - kNamed, " more") : text;
}

// Compares the stored arrays with the parameters. For each stored array that fits, `copies` gets the pair of this array
// and the parameter's.
LoadedWeights compared(const std::vector<std::shared_ptr<Parameter>>& parameters, std::map<std::string, NDArray> stored,
                       std::vector<std::pair<NDArray, NDArray>>& copies) {
  LoadedWeights result;
  for (const auto& parameter : parameters) {
    const auto found = stored.find(parameter->name);
    if (found == stored.end() || found->second.is_none()) {
      result.missing.push_back(parameter->name);
      if (found != stored.end()) stored.erase(found);
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
  return result;
}

// Which of the differences the options do not allow, as a part of a sentence; "" for none.
std::string refused(const LoadedWeights& result, const LoadOptions& options) {
  std::string wrong;
  const auto add = [&](bool allowed, const std::vector<std::string>& names, const char* what) {
    if (!allowed && !names.empty()) wrong += (wrong.empty() ? "" : ", ") + std::string(what) + listed(names);
  };
  add(options.allow_missing, result.missing, "it lacks ");
  add(options.allow_missing, result.other_shape, "it has other shapes for ");
  add(options.allow_extra, result.extra, "the network lacks ");
  return wrong;
}

}  // namespace

StoreState load_store_state(const std::string& place) { return read_checkpoint(file_at(place, 1).path).store; }

Notes checkpoint_notes(const std::string& place) {
  constexpr std::size_t kUsual = 256 << 10;  // more than most headers have
  const WeightsFile file = file_at(place, kUsual);
  if (!file.start)
    throw IoError(str("cannot open ", redacted(file.path), ": there is no such file, or it cannot be read"));
  return is_params(file) ? Notes() : notes_in(detail::safetensors_metadata(file.path, *file.start));
}

LoadedWeights load_weights(const Module& net, const std::string& place, const LoadOptions& options) {
  const WeightsFile file = file_at(place, detail::kFormatBytes);
  const std::string path = redacted(file.path);
  const auto parameters = net.parameters();
  require(!parameters.empty(), "'", path, "' is not loaded: the network has no weights yet; call initialize() first");
  std::map<std::string, NDArray> stored;
  for (auto& [name, array] : stored_weights(file)) {
    const std::string own = options.map ? options.map(name) : name;
    if (own.empty()) continue;
    require(stored.emplace(own, array).second, "'", path, "' holds two arrays for '", own,
            "'; LoadOptions::map can give one of them the name \"\", which leaves it out");
  }
  std::vector<std::pair<NDArray, NDArray>> copies;
  const LoadedWeights result = compared(parameters, std::move(stored), copies);
  const std::string wrong = refused(result, options);
  require(wrong.empty(), "'", path, "' does not fit the network: ", wrong,
          "; LoadOptions can map names and allow what is missing or extra");
  for (const auto& [from, to] : copies) to.copy_from(from);
  return result;
}

void take_weights(const Checkpoint& checkpoint, const std::string& place, const Module& net, std::uint64_t seed,
                  Device device) {
  const std::string path = redacted(place);
  if (net.parameters().empty()) {
    if (checkpoint.input.empty()) return;
    std::istringstream words(checkpoint.input);
    std::string type;
    words >> type;
    Shape input;
    for (std::int64_t size = 0; words >> size;) input.push_back(size);
    try {
      net.initialize(input, seed, device, parse_dtype(type));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(str("'", path, "' is of another network: its inputs were of shape ", input,
                                ", which this network does not take: ", error.what()));
    }
  }
  std::vector<std::pair<NDArray, NDArray>> copies;
  const std::string wrong =
      refused(compared(net.parameters(), {checkpoint.weights.begin(), checkpoint.weights.end()}, copies), {});
  require(wrong.empty(), "'", path, "' is of another network: ", wrong,
          "; resume it with the network that it was made of, or remove it to train anew");
  for (const auto& [from, to] : copies)
    require(from.dtype() == to.dtype(), "'", path, "' is of another network: its weights are ", name_of(from.dtype()),
            ", and those of this one ", name_of(to.dtype()),
            "; resume it with the network that it was made of, or load_weights() without resuming");
  for (const auto& [from, to] : copies) to.copy_from(from);
}

}  // namespace paceline::nn

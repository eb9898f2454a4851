// What the tests of converters share: a conversion in a folder of its own, and what a loader reads of it.
#pragma once

#include <gmock/gmock.h>
#include <paceline/convert_sources.h>
#include <paceline/error.h>
#include <paceline/record_loader.h>

#include <map>
#include <string>
#include <vector>

#include "fixtures.h"

namespace paceline::test {

// Everything that a loader without options of its own gives, in the order of the records.
struct Loaded {
  std::vector<float> data;  // as float32, whatever it is
  std::vector<float> label;
  std::int64_t examples = 0;
};

template <class T>
void append_as_float(const NDArray& array, std::vector<float>& to) {
  for (const T value : array.to_vector<T>()) to.push_back(static_cast<float>(value));
}

inline void append_as_float(const NDArray& array, std::vector<float>& to) {
  switch (array.dtype()) {
    case DType::kInt32: return append_as_float<std::int32_t>(array, to);
    case DType::kUint8: return append_as_float<std::uint8_t>(array, to);
    default: return append_as_float<float>(array, to);
  }
}

inline Loaded load_all(const std::string& manifest) {
  RecordLoader loader(manifest);
  Loaded all;
  for (const Batch& batch : EpochRange(loader, 0, {})) {
    append_as_float(batch.data, all.data);
    if (!batch.label.is_none()) append_as_float(batch.label, all.label);
    all.examples += batch.examples;
  }
  return all;
}

// The bytes of all files of data sets, by name.
inline std::map<std::string, std::string> bytes_of_files(const TemporaryFolder& folder, const std::string& prefix) {
  std::map<std::string, std::string> bytes;
  for (const std::string& name : folder.files())
    if (name.starts_with(prefix)) bytes[name.substr(prefix.size())] = read_all(folder / name);
  return bytes;
}

// The names of files that only one of them has, or that differ; empty where there are none.
inline std::string differences(const std::map<std::string, std::string>& a,
                               const std::map<std::string, std::string>& b) {
  std::string names;
  for (const auto& [name, bytes] : a) names += b.contains(name) && b.at(name) == bytes ? "" : name + " ";
  for (const auto& [name, bytes] : b) names += a.contains(name) ? "" : name + " ";
  return names;
}

// The keys of the records of a data set.
inline std::vector<std::int64_t> keys_of(const std::string& manifest_path) {
  const Manifest manifest = Manifest::load(manifest_path);
  std::vector<std::int64_t> keys;
  for (const Shard& shard : manifest.shards) {
    const RecordFile file(manifest.path_of(shard));
    for (std::int64_t place = 0; place < file.size(); ++place) keys.push_back(file.key(place));
  }
  return keys;
}

}  // namespace paceline::test

#include "safetensors.h"

#include <paceline/error.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace paceline::io {
namespace {

using Json = nlohmann::json;

const char* safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return "F32";
    case DType::kFloat64: return "F64";
    case DType::kFloat16: return "F16";
    case DType::kUint8: return "U8";
    case DType::kInt32: return "I32";
    case DType::kInt8: return "I8";
    case DType::kInt64: return "I64";
    case DType::kBool: return "BOOL";
    case DType::kBfloat16: return "BF16";
  }
  return "";
}

}  // namespace

std::size_t bytes_of(const ExampleArray& array) {
  return static_cast<std::size_t>(array.shape.size()) * size_of(array.dtype);
}

void read_tensors(std::string_view file, const std::vector<ExampleArray>& arrays, std::span<void* const> to) {
  std::uint64_t header_bytes = 0;
  if (file.size() < sizeof header_bytes) throw Corrupt("it is too short for a safetensors file");
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  file.remove_prefix(sizeof header_bytes);
  if (header_bytes > file.size()) throw Corrupt("it is no safetensors file, or was cut");
  const std::string_view data = file.substr(header_bytes);
  try {
    const Json header = Json::parse(file.substr(0, header_bytes), [](int depth, Json::parse_event_t, Json&) {
      constexpr int kDeepest = 8;
      if (depth > kDeepest) throw Corrupt("its header is nested too deeply");
      return true;
    });
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      const auto& [name, shape, dtype] = arrays[i];
      if (!header.contains(name)) throw Corrupt(str("it holds no array '", name, "'"));
      const Json& entry = header.at(name);
      const auto sizes = entry.at("shape").get<std::vector<std::int64_t>>();
      const auto stored = entry.at("dtype").get<std::string>();
      if (!std::equal(sizes.begin(), sizes.end(), shape.begin(), shape.end()) || stored != safetensors_name(dtype)) {
        throw Corrupt(str("its array '", name, "' is ", stored, " ", entry.at("shape").dump(), ", not ",
                          safetensors_name(dtype), " ",
                          Json(std::vector<std::int64_t>(shape.begin(), shape.end())).dump()));
      }
      const auto begin = entry.at("data_offsets").at(0).get<std::uint64_t>();
      const std::size_t bytes = bytes_of(arrays[i]);
      if (begin > data.size() || bytes > data.size() - begin) throw Corrupt(str("its array '", name, "' was cut"));
      std::memcpy(to[i], data.data() + begin, bytes);
    }
  } catch (const Json::exception& error) {
    throw Corrupt(str("its header is no safetensors header: ", error.what()));
  }
}

std::string tensors_head(const std::vector<ExampleArray>& arrays) {
  Json header = Json::object();
  std::size_t offset = 0;
  for (const ExampleArray& array : arrays) {
    const std::size_t end = offset + bytes_of(array);
    header[array.name] = {{"dtype", safetensors_name(array.dtype)},
                          {"shape", std::vector<std::int64_t>(array.shape.begin(), array.shape.end())},
                          {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  constexpr std::size_t kAlignment = 8;
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace paceline::io

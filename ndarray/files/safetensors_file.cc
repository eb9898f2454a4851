// safetensors, little-endian:
//
//   file   := length:u64 header:byte*length data
//   header := {"__metadata__": {"key": "value", ...}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0,
//   24]}, ...}
//
// The header begins with '{' and is padded with spaces to a multiple of 8. Offsets count from the first byte of data;
// in the order of their offsets the arrays cover the data without holes. Written by descending type (in the format's
// own order), then by name, so that every array is aligned.
//
// Files of ours begin with checksums, which other readers see as metadata: {"__metadata__": {"crc32c": "xxxxxxxx",
// "crc32c:name": "xxxxxxxx", ...}, ...}. The first is that of the header, computed with zeros in its own place; the
// others are those of the arrays' data.

#include "files/file_reader.h"

#include <paceline/crc32c.h>
#include <paceline/detail/array_file.h>
#include <paceline/detail/atomic_file.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>

namespace paceline {
namespace {

using detail::AtomicFile;
using detail::FileReader;
using Json = nlohmann::json;
using Metadata = std::vector<std::pair<std::string, std::string>>;

constexpr std::uint64_t kLongestHeader = 100'000'000;
constexpr const char* kMetadata = "__metadata__";
constexpr std::string_view kHeaderStart = R"({"__metadata__":{"crc32c":")", kNoChecksum = "00000000";
constexpr std::string_view kChecksum = "crc32c", kChecksumOf = "crc32c:";

// In the format's order of types.
constexpr std::pair<const char*, DType> kTypes[] = {
    {"BOOL", DType::kBool},   {"U8", DType::kUint8},      {"I8", DType::kInt8},
    {"F16", DType::kFloat16}, {"BF16", DType::kBfloat16}, {"I32", DType::kInt32},
    {"F32", DType::kFloat32}, {"F64", DType::kFloat64},   {"I64", DType::kInt64}};
constexpr const char* kOtherTypes[] = {"F8_E5M2", "F8_E4M3", "I16", "U16", "U32", "U64"};

std::size_t rank_of(DType dtype) {
  return static_cast<std::size_t>(
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& entry) { return entry.second == dtype; }) -
      kTypes);
}

// Of an array.
struct Entry {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> sizes;
  std::uint64_t begin;
  std::uint64_t end;
};

DType type_of(const FileReader& file, const std::string& name, const Json& text) {
  if (!text.is_string()) file.corrupt("the dtype of '", name, "' is not a text");
  for (const auto& [known, dtype] : kTypes)
    if (text == known) return dtype;
  for (const char* other : kOtherTypes)
    if (text == other) file.unsupported("'", name, "' has the type ", other, ", which arrays do not have");
  file.corrupt("'", name, "' has the unknown dtype ", text.dump());
}

std::uint64_t number(const FileReader& file, const std::string& name, const Json& value) {
  constexpr std::uint64_t kLargest = std::uint64_t{1} << 62;
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kLargest)
    file.corrupt("'", name, "' has a size or offset that is no count");
  return value.get<std::uint64_t>();
}

Entry read_entry(const FileReader& file, const std::string& name, const Json& value) {
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets") ||
      !value["shape"].is_array() || !value["data_offsets"].is_array() || value["data_offsets"].size() != 2)
    file.corrupt("the header's entry for '", name, "' is not {dtype, shape, data_offsets}");
  Entry entry{name,
              type_of(file, name, value["dtype"]),
              {},
              number(file, name, value["data_offsets"][0]),
              number(file, name, value["data_offsets"][1])};
  for (const Json& size : value["shape"]) entry.sizes.push_back(static_cast<std::int64_t>(number(file, name, size)));
  if (entry.end < entry.begin || entry.end - entry.begin != detail::byte_count(entry.sizes, entry.dtype))
    file.corrupt("the offsets of '", name, "' do not fit its shape and type");
  return entry;
}

bool is_checksum(std::string_view key) { return key == kChecksum || key.starts_with(kChecksumOf); }

std::string digits(std::uint32_t checksum) {
  char text[kNoChecksum.size() + 1];
  std::snprintf(text, sizeof text, "%08x", checksum);
  return text;
}

std::string checksum_of(const NDArray& host) {
  return digits(crc32c({static_cast<const char*>(host.const_data()), host.bytes()}));
}

// The entry of the header's metadata for a checksum that is not known yet.
std::string place_of_checksum(const std::string& name) {
  return str(',', Json(std::string(kChecksumOf) + name).dump(), ":\"", kNoChecksum, '"');
}

// The checksums of the arrays by name; none in a file that was written without. Throws Corrupt where the header's own
// is wrong.
std::map<std::string, std::string> checksums_in(const FileReader& file, std::string text, const Json& header) {
  std::map<std::string, std::string> checksums;
  if (const auto metadata = header.find(kMetadata); metadata != header.end() && metadata->is_object())
    for (const auto& [key, value] : metadata->items())
      if (is_checksum(key) && value.is_string()) checksums.emplace(key, value.get<std::string>());
  if (checksums.empty()) return checksums;
  const std::string said = checksums[std::string(kChecksum)];
  if (text.starts_with(kHeaderStart) && text.size() >= kHeaderStart.size() + kNoChecksum.size())
    text.replace(kHeaderStart.size(), kNoChecksum.size(), kNoChecksum);
  if (digits(crc32c(text)) != said)
    file.corrupt("the header is damaged, or another program changed it: its checksum is ", digits(crc32c(text)),
                 ", the header says '", said, "'");
  std::map<std::string, std::string> of_arrays;
  for (auto& [key, value] : checksums)
    if (key.starts_with(kChecksumOf)) of_arrays.emplace(key.substr(kChecksumOf.size()), std::move(value));
  return of_arrays;
}

Json parse_header(const FileReader& file, const std::string& text) {
  if (text.empty() || text[0] != '{') file.corrupt("the header does not begin with '{'");
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    constexpr int kDeepest = 8;
    if (depth > kDeepest) file.corrupt("the header is nested too deeply");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      file.corrupt("the header has the key ", parsed.dump(), " twice");
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& error) {
    file.corrupt("the header is not JSON: ", error.what());
  }
}

struct Header {
  std::vector<Entry> entries;                    // in the order of their data
  std::map<std::string, std::string> checksums;  // of the arrays, in a file that has them
  Metadata metadata;                             // without the checksums
};

Header read_header(FileReader& file) {
  const std::uint64_t length = file.value<std::uint64_t>();
  if (length > kLongestHeader) file.corrupt("a header of ", length, " bytes; at most ", kLongestHeader, " are allowed");
  const std::string text = file.text(length);
  const Json json = parse_header(file, text);
  Header header;
  header.checksums = checksums_in(file, text, json);
  for (const auto& [name, value] : json.items()) {
    if (name != kMetadata) {
      header.entries.push_back(read_entry(file, name, value));
      continue;
    }
    if (!value.is_object()) file.corrupt("the metadata is not an object");
    for (const auto& [key, said] : value.items()) {
      if (!said.is_string()) file.corrupt("the metadata '", key, "' is not a text");
      if (!is_checksum(key)) header.metadata.emplace_back(key, said.get<std::string>());
    }
  }
  std::stable_sort(header.entries.begin(), header.entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t covered = 0;
  for (const Entry& entry : header.entries) {
    if (entry.begin != covered) file.corrupt("'", entry.name, "' does not begin where the array before it ends");
    covered = entry.end;
  }
  return header;
}

// The length of the header; 0 where the bytes do not say it.
std::uint64_t length_in(const std::string& bytes) {
  std::uint64_t length = 0;
  if (bytes.size() >= sizeof length) std::memcpy(&length, bytes.data(), sizeof length);
  return length;
}

}  // namespace

void save_safetensors(const std::string& path, const NamedArrays& arrays, const Metadata& metadata) {
  std::vector<const NamedArrays::value_type*> order;
  for (const auto& entry : arrays) {
    require(!entry.second.is_none(), "cannot save '", entry.first, "' to ", path, ": it is none");
    require(entry.first != kMetadata, "cannot save to ", path, ": no array may be called ", kMetadata);
    order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    const std::size_t a_rank = rank_of(a->second.dtype());
    const std::size_t b_rank = rank_of(b->second.dtype());
    return a_rank != b_rank ? a_rank > b_rank : a->first < b->first;
  });

  // Put together by hand: the library's objects either forget the order or search it for every key.
  std::string text = str(kHeaderStart, kNoChecksum, '"');
  std::vector<std::size_t> checksums;  // where the digits of the arrays' begin
  std::uint64_t offset = 0;
  try {
    std::set<std::string> keys;
    for (const auto* entry : order) {
      require(keys.insert(entry->first).second, "cannot save to ", path, ": two arrays are called '", entry->first,
              "'");
      text += place_of_checksum(entry->first);
      checksums.push_back(text.size() - 1 - kNoChecksum.size());
    }
    keys.clear();
    for (const auto& [key, value] : metadata) {
      require(!is_checksum(key), "cannot save to ", path, ": metadata may not be called '", key, "'");
      require(keys.insert(key).second, "cannot save to ", path, ": the metadata has '", key, "' twice");
      text += str(',', Json(key).dump(), ':', Json(value).dump());
    }
    text += '}';
    for (const auto* entry : order) {
      const auto& [name, array] = *entry;
      const std::vector<std::int64_t> sizes(array.shape().begin(), array.shape().end());
      text +=
          str(',', Json(name).dump(), ":{\"dtype\":\"", kTypes[rank_of(array.dtype())].first,
              "\",\"shape\":", Json(sizes).dump(), ",\"data_offsets\":[", offset, ',', offset + array.bytes(), "]}");
      offset += array.bytes();
    }
  } catch (const Json::exception& error) {
    throw InvalidArgument(str("cannot save to ", path, ": names and metadata must be UTF-8: ", error.what()));
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  require(text.size() <= kLongestHeader, "cannot save to ", path, ": the names make a header of ", text.size(),
          " bytes, more than the ", kLongestHeader, " allowed");

  AtomicFile file(path);
  file.write_value(std::uint64_t{text.size()});
  file.write(text.data(), text.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const NDArray host = order[i]->second.contiguous().to(Device());
    host.wait();
    text.replace(checksums[i], kNoChecksum.size(), checksum_of(host));
    file.write(host.const_data(), host.bytes());
  }
  text.replace(kHeaderStart.size(), kNoChecksum.size(), digits(crc32c(text)));
  file.overwrite(sizeof(std::uint64_t), text);
  file.commit();
}

NamedArrays load_safetensors(const std::string& path, Metadata* metadata, Engine& engine) {
  FileReader file(path);
  Header header = read_header(file);
  const std::uint64_t bytes = header.entries.empty() ? 0 : header.entries.back().end;
  if (bytes != file.left()) file.corrupt("the header describes ", bytes, " bytes of data, the file has ", file.left());
  NamedArrays arrays;
  for (const Entry& entry : header.entries) {
    const NDArray& array = arrays.emplace_back(entry.name, file.array(entry.sizes, entry.dtype, engine)).second;
    const auto said = header.checksums.find(entry.name);
    if (said != header.checksums.end() && checksum_of(array) != said->second)
      file.corrupt("the data of '", entry.name, "' are damaged: their checksum is ", checksum_of(array),
                   ", the header says ", said->second);
  }
  if (metadata) *metadata = std::move(header.metadata);
  return arrays;
}

bool detail::begins_safetensors(const FileStart& start) {
  const std::uint64_t length = length_in(start.bytes);
  return start.bytes.size() > sizeof length && start.bytes[sizeof length] == '{' &&
         length <= std::min(start.size.value_or(kLongestHeader), kLongestHeader);
}

std::vector<std::pair<std::string, std::string>> detail::safetensors_metadata(const std::string& path,
                                                                              FileStart start) {
  const std::uint64_t length = length_in(start.bytes), end = sizeof length + length;
  // Longer ones are refused by their length alone.
  if (length <= std::min(start.size.value_or(kLongestHeader), kLongestHeader) && start.bytes.size() < end)
    if (auto more = read_start(path, end)) start = std::move(*more);
  FileReader file(path, std::move(start));
  return read_header(file).metadata;
}

}  // namespace paceline

// The manifest is one JSON object:
//
//   { "format": "paceline-manifest", "version": 1, "records": 60000,
//     "payload": "image", "encoding": "raw", "label_width": 1, "variable_labels": false,
//     "class_labels": true, "labels": ["cat", ...], "image": {"height": 28, "width": 28, "channels": 1},
//     "decoder": {"name": "csv_row", "options": {"columns": 14, ...}, "arrays": []}, "columns_crc32c": "xxxxxxxx",
//     "statistics": {...},
//     "shuffle_seed": 0 or null, "shards": [{"path": "train-00000-of-00002.rec", "records": 30000, "bytes": 25200000,
//                 "crc32c": "xxxxxxxx", "index_crc32c": "xxxxxxxx", "checksum_crc32c": "xxxxxxxx"}, ...],
//     "checksum": "xxxxxxxx" }
//
// `checksum` is the CRC32C of the compact text of the object without it, keys sorted. A manifest edited by hand leaves
// it out. Unknown keys are kept out of the way of later versions: they are ignored.

#include <paceline/crc32c.h>
#include <paceline/manifest.h>

#include <paceline/detail/atomic_file.h>
#include <paceline/detail/remote.h>
#include <paceline/error.h>

#include <nlohmann/json.hpp>

#include <charconv>
#include <filesystem>
#include <utility>

#include "file.h"
#include "manifest_details.h"

namespace paceline {
namespace {

using Json = nlohmann::json;

constexpr const char* kWhatItIs =
    "a manifest is a JSON object with \"format\": \"paceline-manifest\", which im2rec writes as PREFIX.manifest";
constexpr std::int64_t kMostRecords = std::int64_t{1} << 40;  // of a shard; sums of them stay in range

std::string hex(std::uint32_t value) {
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", value);
  return digits;
}

std::uint32_t parse_hex(const std::string& text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 8 || error != std::errc() || end != text.data() + text.size()) {
    throw Corrupt(str("'", text, "' is no checksum of 8 hexadecimal digits"));
  }
  return value;
}

Json to_json(const Manifest& manifest) {
  Json shards = Json::array();
  for (const Shard& shard : manifest.shards) {
    shards.push_back({{"path", shard.path},
                      {"records", shard.records},
                      {"bytes", shard.bytes},
                      {"crc32c", hex(shard.crc32c)},
                      {"index_crc32c", hex(shard.index_crc32c)},
                      {"checksum_crc32c", hex(shard.checksum_crc32c)}});
  }
  const ImageSize& image = manifest.image;
  Json json = {{"format", "paceline-manifest"},
               {"version", 1},
               {"records", manifest.records()},
               {"payload", manifest.payload},
               {"encoding", manifest.encoding},
               {"label_width", manifest.label_width},
               {"variable_labels", manifest.variable_labels},
               {"class_labels", manifest.class_labels},
               {"labels", manifest.labels},
               {"image", {{"height", image.height}, {"width", image.width}, {"channels", image.channels}}},
               {"shuffle_seed", manifest.shuffle_seed ? Json(*manifest.shuffle_seed) : Json()},
               {"shards", std::move(shards)}};
  if (!manifest.decoder.name.empty()) json["decoder"] = io::to_json(manifest.decoder);
  if (manifest.columns_crc32c) json["columns_crc32c"] = hex(*manifest.columns_crc32c);
  if (!manifest.statistics.empty()) json["statistics"] = io::to_json(manifest.statistics);
  return json;
}

std::string checksum_of(Json json) {
  json.erase("checksum");
  return hex(crc32c(json.dump(-1, ' ', false, Json::error_handler_t::replace)));
}

// Deep enough for what later versions add, and not for the stack.
Json parse(const std::string& text) {
  constexpr int kDeepest = 64;
  return Json::parse(text, [](int depth, Json::parse_event_t, Json&) {
    if (depth > kDeepest) throw Corrupt("it is nested too deeply");
    return true;
  });
}

Manifest from_json(const Json& json) {
  if (!json.is_object() || json.value("format", "") != "paceline-manifest") {
    throw Corrupt(str("it is no paceline-manifest; ", kWhatItIs));
  }
  const int version = io::whole<int>(json, "version");
  if (version != 1) throw Corrupt(str("its version is ", version, ", this program knows version 1"));
  if (json.contains("checksum") && json.at("checksum").get<std::string>() != checksum_of(json)) {
    throw Corrupt("its checksum is wrong; if it was edited by hand, remove the entry \"checksum\"");
  }

  Manifest manifest;
  manifest.payload = json.at("payload").get<std::string>();
  manifest.encoding = json.at("encoding").get<std::string>();
  manifest.label_width = io::whole<int>(json, "label_width");
  manifest.variable_labels = json.value("variable_labels", false);
  manifest.class_labels = json.at("class_labels").get<bool>();
  manifest.labels = json.at("labels").get<std::vector<std::string>>();
  const Json& image = json.at("image");
  manifest.image = {io::whole<int>(image, "height"), io::whole<int>(image, "width"), io::whole<int>(image, "channels")};
  if (manifest.image.height < 0 || manifest.image.width < 0 ||
      (manifest.image.channels != 0 && manifest.image.channels != 1 && manifest.image.channels != 3)) {
    throw Corrupt(str("its images are of ", manifest.image.width, " x ", manifest.image.height, " pixels and ",
                      manifest.image.channels, " channels, which no images are"));
  }
  if (json.contains("decoder")) manifest.decoder = io::decoder_from_json(json.at("decoder"));
  if (json.contains("columns_crc32c"))
    manifest.columns_crc32c = parse_hex(json.at("columns_crc32c").get<std::string>());
  if (json.contains("statistics")) manifest.statistics = io::statistics_from_json(json.at("statistics"));
  if (!json.at("shuffle_seed").is_null()) manifest.shuffle_seed = io::whole<std::uint64_t>(json, "shuffle_seed");
  for (const Json& entry : json.at("shards")) {
    Shard shard;
    shard.path = entry.at("path").get<std::string>();
    shard.records = io::whole<std::int64_t>(entry, "records");
    shard.bytes = io::whole<std::uint64_t>(entry, "bytes");
    shard.crc32c = parse_hex(entry.at("crc32c").get<std::string>());
    shard.index_crc32c = parse_hex(entry.at("index_crc32c").get<std::string>());
    shard.checksum_crc32c = parse_hex(entry.at("checksum_crc32c").get<std::string>());
    if (shard.records < 1 || shard.records > kMostRecords) {
      throw Corrupt(str("its shard ", shard.path, " holds ", shard.records, " records, expected 1 to ", kMostRecords));
    }
    manifest.shards.push_back(std::move(shard));
  }
  if (manifest.label_width < 1) throw Corrupt(str("its label_width is ", manifest.label_width));
  if (manifest.shards.empty()) throw Corrupt("it names no shards");
  if (const auto claimed = io::whole<std::int64_t>(json, "records"); claimed != manifest.records()) {
    throw Corrupt(str("it claims ", claimed, " records, but its shards hold ", manifest.records()));
  }
  return manifest;
}

}  // namespace

std::int64_t Manifest::records() const {
  std::int64_t total = 0;
  for (const Shard& shard : shards) total += shard.records;
  return total;
}

std::string Manifest::path_of(const Shard& shard) const {
  if (is_remote(folder)) return detail::join_url(folder, shard.path);
  return (std::filesystem::path(folder) / shard.path).string();
}

Manifest Manifest::load(const std::string& path) {
  const std::string text = io::read_file(path), name = redacted(path);
  if (text.starts_with("\x1f\x8b")) throw Corrupt(str(name, " is packed by gzip and no manifest; ", kWhatItIs));
  if (text.starts_with("\x0a\x23\xd7\xce")) {
    throw Corrupt(str(name, " is a record file and no manifest; `rec index ", name, "` writes the manifest ",
                      std::filesystem::path(name).replace_extension(".manifest").string(), ", to be named here"));
  }
  Manifest manifest;
  try {
    manifest = from_json(parse(text));
  } catch (const Json::parse_error& error) {
    throw Corrupt(str(name, " cannot be read as a manifest: from byte ", error.byte, " on it is no JSON; ", kWhatItIs));
  } catch (const Json::exception& error) {
    const std::string_view reason = error.what();  // "[json.exception.out_of_range.403] key 'shards' not found"
    throw Corrupt(
        str("the manifest ", name, " cannot be used: ", reason.substr(reason.find(']') + 2), "; ", kWhatItIs));
  } catch (const Corrupt& error) {
    throw Corrupt(str("the manifest ", name, " cannot be used: ", error.what()));
  }
  manifest.folder = std::filesystem::path(path).parent_path().string();
  return manifest;
}

void Manifest::save(const std::string& path) const {
  for (const Shard& shard : shards)
    require(io::is_utf8(shard.path), "the file name ", io::in_quotes(shard.path),
            " is not UTF-8, as those in a manifest are");
  for (const std::string& label : labels)
    require(io::is_utf8(label), "the class name ", io::in_quotes(label), " is not UTF-8, as those in a manifest are");
  for (const auto& [name, count] : statistics.classes)
    require(io::is_utf8(name), "the class name ", io::in_quotes(name), " is not UTF-8, as those in a manifest are");
  for (const auto& [name, numbers] : statistics.numbers)
    require(io::is_utf8(name), "the column name ", io::in_quotes(name), " is not UTF-8, as those in a manifest are");
  Json json = to_json(*this);
  json["checksum"] = checksum_of(json);
  detail::AtomicFile::write_text(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace paceline

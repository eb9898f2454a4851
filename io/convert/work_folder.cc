#include "convert/work_folder.h"

#include <paceline/crc32c.h>
#include <paceline/detail/atomic_file.h>
#include <paceline/error.h>

#include <nlohmann/json.hpp>

#include <cerrno>
#include <filesystem>

#include "file.h"
#include "shard_writer.h"

namespace paceline::io {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kIdentity = "source";
constexpr const char* kLock = "lock";

std::string name_of_file(const std::string& path) { return fs::path(path).filename().string(); }

// Names of files may hold any bytes.
std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// With a checksum before it, so that a damaged one counts as missing.
std::string sealed(const std::string& text) { return str(crc32c(text), '\n', text); }

bool unseal(std::string& text) {
  const std::size_t end = text.find('\n');
  if (end == std::string::npos) return false;
  const std::string sum = text.substr(0, end);
  text.erase(0, end + 1);
  return sum == str(crc32c(text));
}

}  // namespace

WorkFolder::WorkFolder(const std::string& prefix, const std::string& identity) : folder_(prefix + ".converting") {
  create_folder_of(prefix);
  std::error_code error;
  const std::string marker = (fs::path(folder_) / kIdentity).string();
  // Only what a conversion made is removed.
  require(!fs::exists(folder_, error) || fs::is_empty(folder_, error) || fs::exists(fs::path(folder_) / kLock, error),
          folder_, " is needed for unfinished shards, but is something else; move it away");
  fs::create_directory(folder_, error);
  if (error) throw_io_error("create the folder", folder_, error.value());
  lock_ = FileLock::attempt((fs::path(folder_) / kLock).string(), FileLock::kAlone);
  require(lock_.has_value(), "another process is converting in ", folder_, "; wait for its end");
  if (fs::exists(marker, error) && read_file(marker) == identity) return;
  clear();
  detail::AtomicFile::write_text(marker, identity);
}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  if (!keep_ || finished_ == 0) fs::remove_all(folder_, ignored);
}

// Removes all but the lock.
void WorkFolder::clear() {
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(folder_))
    if (entry.path().filename() != kLock) others.push_back(entry.path());
  for (const fs::path& path : others) fs::remove_all(path);
}

void WorkFolder::remove() {
  std::error_code error;
  fs::remove_all(folder_, error);
  if (error) throw_io_error("remove", folder_, error.value());
}

std::string WorkFolder::path_of(const std::string& final_path) const {
  return (fs::path(folder_) / name_of_file(final_path)).string();
}

bool WorkFolder::find(const std::string& final_path, ShardResult& result) const {
  const std::string written = path_of(final_path);
  try {
    const std::string done = written + ".done";
    if (!fs::exists(done)) return false;
    std::string text = read_file(done);
    if (!unseal(text)) return false;
    const Json json = Json::parse(text);
    ShardResult found;
    found.shard.path = name_of_file(final_path);
    found.shard.records = json.at("records").get<std::int64_t>();
    found.shard.bytes = json.at("bytes").get<std::uint64_t>();
    found.shard.crc32c = json.at("crc32c").get<std::uint32_t>();
    found.shard.index_crc32c = json.at("index_crc32c").get<std::uint32_t>();
    found.shard.checksum_crc32c = json.at("checksum_crc32c").get<std::uint32_t>();
    found.tally = Tally::from_json(json.at("tally"));
    for (const Json& entry : json.at("bad"))
      found.bad.emplace_back(entry.at(0).get<std::string>(), entry.at(1).get<std::string>());
    // A run that was killed while it gave the files their names left some of them under these.
    const auto where = [](const std::string& here, const std::string& there) {
      return fs::exists(here) ? here : there;
    };
    const bool whole =
        fs::file_size(where(written, final_path)) == found.shard.bytes &&
        crc32c(read_file(where(index_path(written), index_path(final_path)))) == found.shard.index_crc32c &&
        crc32c(read_file(where(checksum_path(written), checksum_path(final_path)))) == found.shard.checksum_crc32c;
    if (whole) result = std::move(found);
    return whole;
  } catch (const std::exception&) {
    return false;  // it is made again
  }
}

void WorkFolder::finish(const ShardResult& result) {
  Json bad = Json::array();
  for (const auto& [place, problem] : result.bad) bad.push_back(Json::array({place, problem}));
  const Json json = {{"records", result.shard.records},
                     {"bytes", result.shard.bytes},
                     {"crc32c", result.shard.crc32c},
                     {"index_crc32c", result.shard.index_crc32c},
                     {"checksum_crc32c", result.shard.checksum_crc32c},
                     {"tally", result.tally.to_json()},
                     {"bad", std::move(bad)}};
  detail::AtomicFile::write_text(path_of(result.shard.path) + ".done", sealed(text_of(json)));
  ++finished_;
}

}  // namespace paceline::io

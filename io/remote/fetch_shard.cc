#include "fetch_shard.h"

#include <paceline/crc32c.h>
#include <paceline/error.h>
#include <paceline/log.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "file.h"
#include "open_shard.h"

namespace paceline::io {
namespace {

constexpr std::uint64_t kLongestIndexLine = 42;     // two numbers of 64 bits, a tab and the end of the line
constexpr std::uint64_t kLongestChecksumLine = 51;  // the same with 8 digits and a tab
constexpr int kTries = 3;

class OpenFile {
 public:
  explicit OpenFile(const std::string& path)
      : path_(path), descriptor_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (descriptor_ < 0) throw_io_error("create", path, errno);
  }
  ~OpenFile() { close(descriptor_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int descriptor() const { return descriptor_; }
  void resize(std::uint64_t bytes) const {
    if (ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) throw_io_error("write", path_, errno);
  }
  // Others see the file when the disk has it.
  void sync() const {
    if (fsync(descriptor_) != 0 && errno != EINVAL) throw_io_error("write", path_, errno);
  }

 private:
  const std::string& path_;
  const int descriptor_;
};

std::uint32_t checksum_of(const std::string& path) {
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  const InputFile file(path);
  std::string block(kBlock, '\0');
  std::uint32_t checksum = 0;
  for (std::uint64_t at = 0; at < file.size();) {
    const std::size_t got = file.read_at(at, block.data(), block.size());
    if (got == 0) break;
    checksum = crc32c(std::string_view(block).substr(0, got), checksum);
    at += got;
  }
  return checksum;
}

std::string hex(std::uint32_t checksum) {
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", checksum);
  return digits;
}

// The file whose presence says that the one at `path` was kept though it is damaged.
std::string mark_of(const std::string& path) { return path + ".damaged"; }
void write_mark(const std::string& path) { OutputFile(mark_of(path)).close(OutputFile::kNoSync); }

struct File {
  std::string url;
  std::string path;
  std::uint64_t most;
  std::uint32_t crc32c;
  bool exact = false;  // it has `most` bytes, not fewer
};

void fetch(const File& wanted, const std::string& manifest_name, OnDamage on_damage, const detail::Tick& tick) {
  const OpenFile file(wanted.path);
  for (int tried = 1;; ++tried) {
    const std::uint64_t bytes = detail::download(wanted.url, file.descriptor(), wanted.most, tick);
    const std::uint32_t checksum = checksum_of(wanted.path);
    if (checksum == wanted.crc32c && (!wanted.exact || bytes == wanted.most)) break;
    const std::string what =
        str(redacted(wanted.url), " arrived with ", bytes, " bytes and the CRC32C ", hex(checksum), ", the manifest ",
            manifest_name, " says ", wanted.exact ? str(wanted.most, " bytes and ") : "", hex(wanted.crc32c));
    if (tried == kTries && on_damage == OnDamage::kSkip) {
      LOG(WARNING) << what << " (fetched " << tried << " times); its damaged records are left out";
      file.resize(wanted.most);
      write_mark(wanted.path);
      break;
    }
    if (tried == kTries)
      throw Corrupt(str(what, " (fetched ", tried,
                        " times); one of the two was replaced or is damaged, so upload "
                        "the data set again"));
    LOG(WARNING) << what << "; it is fetched again";
  }
  file.sync();
}

}  // namespace

ShardCache::Wanted wanted(const Manifest& manifest, const Shard& shard) {
  // The key names the contents, as far as the manifest does.
  const std::string url = manifest.path_of(shard);
  const std::string contents = str(hex(shard.crc32c), hex(shard.index_crc32c), hex(shard.checksum_crc32c));
  const auto records = static_cast<std::uint64_t>(shard.records);
  return {str(contents, hex(crc32c(url)), shard.bytes),
          {{"shard.rec", shard.bytes},
           {"shard.idx", kLongestIndexLine * records},
           {"shard.crc", kLongestChecksumLine * records}}};
}

void fetch_shard(const Manifest& manifest, const std::string& manifest_name, const Shard& shard,
                 const std::string& folder, OnDamage on_damage, const detail::Tick& tick) {
  const std::string url = manifest.path_of(shard);
  const auto records = static_cast<std::uint64_t>(shard.records);
  fetch({index_path(url), folder + "/shard.idx", kLongestIndexLine * records, shard.index_crc32c}, manifest_name,
        OnDamage::kFail, tick);
  fetch({checksum_path(url), folder + "/shard.crc", kLongestChecksumLine * records, shard.checksum_crc32c},
        manifest_name, OnDamage::kFail, tick);
  fetch({url, folder + "/shard.rec", shard.bytes, shard.crc32c, true}, manifest_name, on_damage, tick);
}

CachedShard open_in_cache(ShardCache& cache, const Manifest& manifest, const std::string& manifest_name,
                          const Shard& shard, OnDamage on_damage, const std::function<void()>& has_room,
                          const detail::Tick& tick) {
  const ShardCache::Wanted key = wanted(manifest, shard);
  const auto fill = [&](const std::string& folder) {
    has_room();
    fetch_shard(manifest, manifest_name, shard, folder, on_damage, tick);
  };
  for (bool once_more = true;;) {
    CachedShard result{cache.take(key, fill, tick, has_room), nullptr};
    if (!result.held) return result;
    if (!result.held->fetched && is_kept_damaged(result.held->folder) && std::exchange(once_more, false)) {
      // The other host may have the right bytes by now.
      result.held.reset();
      cache.drop(key.key);
      continue;
    }
    try {
      result.file = open_shard(manifest, manifest_name, shard, result.held->folder + "/shard.rec", on_damage);
    } catch (const Corrupt&) {
      // A copy of an earlier run may have been damaged since.
      const bool old = !result.held->fetched;
      result.held.reset();
      if (!cache.drop(key.key) || !old) throw;
      continue;
    }
    has_room();
    return result;
  }
}

void mark_damaged(const std::string& folder) { write_mark(folder + "/shard.rec"); }
bool is_kept_damaged(const std::string& folder) { return access(mark_of(folder + "/shard.rec").c_str(), F_OK) == 0; }

}  // namespace paceline::io

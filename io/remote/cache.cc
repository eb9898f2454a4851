#include "cache.h"

#include <paceline/error.h>
#include <paceline/log.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

#include "file.h"

namespace paceline::io {
namespace {

namespace fs = std::filesystem;

constexpr int kTries = 20;  // of about 10 ms each
constexpr std::string_view kPart = ".part", kLock = ".lock", kGone = ".gone";

// In a folder that everybody can write to, somebody else may have made it.
void require_own(const std::string& folder) {
  struct stat status = {};
  if (lstat(folder.c_str(), &status) != 0) throw_io_error("open", folder, errno);
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 022) != 0)
    throw IoError(str("cannot keep files in ", folder, " on host ", host_name(),
                      ": it is not a folder that only this user can write to; name another in PACELINE_CACHE"));
}

// A shard that is being fetched has the room that its name says: its files may be short meanwhile, and grow again.
std::uint64_t bytes_of(const fs::path& folder) {
  std::uint64_t bytes = 0;
  const fs::path name = folder.filename();
  if (name.extension() == kPart) {
    const std::string room = name.stem().extension().string();  // ".BYTES"
    const auto [end, error] = std::from_chars(room.data() + !room.empty(), room.data() + room.size(), bytes);
    if (error == std::errc()) return bytes;
  }
  std::error_code gone;  // by another process
  for (fs::directory_iterator at(folder, gone), end; !gone && at != end; at.increment(gone)) {
    const std::uintmax_t size = fs::file_size(at->path(), gone);
    if (!gone) bytes += size;
  }
  return bytes;
}

// Waits for a lock. A process that was stopped may keep it for ever, so it says every minute what it waits for.
class Waiting {
 public:
  void pause(const char* whom, const std::string& lock, const detail::Tick& tick) {
    if (tick) tick();
    thread_local std::minstd_rand random{std::random_device()()};
    std::this_thread::sleep_for(std::chrono::milliseconds(std::uniform_int_distribution<>(5, 20)(random)));
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return;
    LOG(WARNING) << "waits for " << whom << "; it holds " << lock << " on host " << host_name();
    next_ = now + std::chrono::minutes(1);
  }

 private:
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + std::chrono::seconds(30);
};

}  // namespace

struct ShardCache::Entry {
  std::string name;
  std::uint64_t bytes;
  fs::file_time_type used;

  // Is a folder of this name one of the cache? Then its lock lies beside it, an empty file.
  static bool is_one(const std::string& cache, const std::string& name) {
    std::error_code none;
    const fs::path lock = cache + '/' + key_of(name) + std::string(kLock);
    return !key_of(name).empty() && fs::is_regular_file(lock, none) && fs::file_size(lock, none) == 0;
  }
  static std::string key_of(const std::string& name) { return name.substr(0, name.find('.')); }
};

ShardCache::ShardCache(detail::CacheSettings settings)
    : folder_(std::move(settings.folder)), most_bytes_(settings.most_bytes) {
  if (folder_.empty()) {
    folder_ = (fs::temp_directory_path() / str("paceline-cache-", geteuid())).string();
    if (mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) throw_io_error("create", folder_, errno);
    require_own(folder_);
  }
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) throw_io_error("create", folder_, error.value());
}

bool ShardCache::is_whole(const Wanted& shard) const {
  const std::string folder = path(shard.key) + '/';
  std::error_code missing;
  for (const auto& [name, bytes] : shard.files)
    if (!fs::is_regular_file(folder + name, missing)) return false;
  const auto& [name, bytes] = shard.files.front();
  return fs::file_size(folder + name, missing) == bytes && !missing;
}

std::uint64_t ShardCache::Wanted::most_bytes() const {
  std::uint64_t most = 0;
  for (const auto& [name, bytes] : files) most += bytes;
  return most;
}

std::optional<ShardCache::Held> ShardCache::take(const Wanted& shard, const Fill& fill, const detail::Tick& tick,
                                                 const std::function<void()>& has_room, Room room) try {
  const std::string folder = path(shard.key), lock = folder + std::string(kLock), part = part_of(shard);
  bool fetched = false;
  const auto in_use = [&](FileLock shared) {
    // Else what removes old files could take the lock, without which the folder is none of the cache.
    for (const std::string& used : {folder, lock}) utimensat(AT_FDCWD, used.c_str(), nullptr, 0);
    return Held{folder, std::move(shared), fetched, bytes_of(folder)};
  };
  Waiting waiting;
  for (int lacking = 0;;) {
    bool lacks_a_file = false;
    if (auto shared = FileLock::attempt(lock, FileLock::kShared)) {
      if (is_whole(shard)) return in_use(std::move(*shared));
      lacks_a_file = fs::exists(folder);  // nobody fetches it, or the lock would be another's alone
    }
    if (auto alone = FileLock::attempt(lock, FileLock::kAlone); alone && !is_whole(shard)) {
      remove_what_is_left_of(shard.key);
      if (!make_room(shard, tick, room)) return {};
      // Somebody who lists the folder meanwhile could miss both names, or remove the shard before it is in use.
      std::optional<FileLock> only;
      try {
        fill(part);
        only = room_lock(tick);
        fs::rename(part, folder);
      } catch (...) {
        std::error_code none;
        fs::remove_all(part, none);
        throw;
      }
      if (!is_whole(shard)) throw IoError(str("the shard in ", folder, " changed while it was fetched"));
      fetched = true;
      if (alone->share()) return in_use(std::move(*alone));
      // The lock is gone, but who removes shards needs room.lock, and others soon let go of this lock.
      for (int tries = 0; tries < kTries && is_whole(shard); ++tries) {
        if (auto shared = FileLock::attempt(lock, FileLock::kShared)) return in_use(std::move(*shared));
        waiting.pause("another process that looks at the shard", lock, tick);
      }
      continue;
    }
    // Who uses the shard may do so for a whole epoch, and even be a thread of this process.
    if (lacks_a_file && ++lacking > kTries)
      throw IoError(str("the shard in ", folder, " on host ", host_name(),
                        " has lost a file while a process uses it; it is fetched again when none does, so end the "
                        "programs that use it, and start again"));
    if (has_room && fs::exists(part)) has_room();
    waiting.pause("another process that fetches or removes the shard", lock, tick);
  }
} catch (const fs::filesystem_error& error) {
  throw IoError(str("the cache ", folder_, " on host ", host_name(), " cannot be used: ", error.what()));
}

std::uint64_t ShardCache::most_bytes(std::uint64_t used) const {
  if (most_bytes_ > 0) return most_bytes_;
  std::error_code error;
  const fs::space_info space = fs::space(folder_, error);
  return error ? used : (used + space.available) / 2;
}

FileLock ShardCache::room_lock(const detail::Tick& tick) const {
  const std::string path = this->path("room.lock");
  for (Waiting waiting;;) {
    if (auto lock = FileLock::attempt(path, FileLock::kAlone)) return std::move(*lock);
    waiting.pause("another process that makes room in the cache", path, tick);
  }
}

void ShardCache::remove_what_is_left_of(const std::string& key) const {
  std::vector<fs::path> left;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    std::error_code gone;
    if (Entry::key_of(name) == key && entry.is_directory(gone)) left.push_back(entry.path());
  }
  for (const fs::path& one : left) fs::remove_all(one);
}

// A kill meanwhile leaves no KEY with only some of its files.
void ShardCache::remove_folder(const std::string& name) const {
  const std::string gone = path(Entry::key_of(name)) + std::string(kGone);
  if (path(name) != gone && fs::exists(path(name))) {  // a part is removed where fetching fails
    fs::remove_all(gone);
    fs::rename(path(name), gone);
  }
  fs::remove_all(gone);
}

std::string ShardCache::part_of(const Wanted& shard) const {
  return str(path(shard.key), '.', shard.most_bytes(), kPart);
}

// Also takes the room.
bool ShardCache::make_room(const Wanted& shard, const detail::Tick& tick, Room room) const {
  const FileLock only = room_lock(tick);
  std::vector<Entry> entries;
  std::uint64_t used = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    std::error_code gone;
    const std::string name = entry.path().filename().string();
    if (!entry.is_directory(gone) || !Entry::is_one(folder_, name)) continue;
    const auto time = fs::last_write_time(entry.path(), gone);
    entries.push_back({name, bytes_of(entry.path()), time});
    used += entries.back().bytes;
  }
  std::ranges::sort(entries, {}, &Entry::used);
  const std::uint64_t most = most_bytes(used), needed = shard.most_bytes();
  const auto lock_of = [&](const Entry& entry) { return path(Entry::key_of(entry.name)) + std::string(kLock); };
  std::uint64_t removable = 0;  // nothing is removed where all of it does not suffice
  for (const Entry& entry : entries) {
    if (room == Room::kFree || used - removable + needed <= most) break;
    if (FileLock::attempt(lock_of(entry), FileLock::kAlone)) removable += entry.bytes;
  }
  if (used - removable + needed > most) return false;
  for (const Entry& entry : entries) {
    if (used + needed <= most) break;
    const std::string lock = lock_of(entry);
    const auto alone = FileLock::attempt(lock, FileLock::kAlone);
    if (!alone) continue;  // in use
    remove_folder(entry.name);
    fs::remove(lock);
    used -= entry.bytes;
  }
  if (used + needed > most) return false;
  fs::create_directory(part_of(shard));
  return true;
}

bool ShardCache::drop(const std::string& key) {
  const auto alone = FileLock::attempt(path(key) + std::string(kLock), FileLock::kAlone);
  if (alone) remove_folder(key);
  return alone.has_value();
}

std::uint64_t ShardCache::used_bytes() const {
  std::uint64_t used = 0;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_))
      if (entry.is_directory() && Entry::is_one(folder_, entry.path().filename().string()))
        used += bytes_of(entry.path());
  } catch (const fs::filesystem_error&) {  // other processes change the folder; this then counts too little
  }
  return used;
}

bool ShardCache::is_too_small_for(std::uint64_t bytes) const { return bytes > most_bytes(used_bytes()); }

std::string ShardCache::no_room_for(const Wanted& shard) const {
  const std::uint64_t used = used_bytes();
  return str("the cache ", folder_, " on host ", host_name(), " may hold ", most_bytes(used),
             " bytes, shards in use have ", used, " of them, and the next one needs ", shard.most_bytes(),
             "; give it more (PACELINE_CACHE_SIZE), or pack smaller shards");
}

}  // namespace paceline::io

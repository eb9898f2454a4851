// Data sets on a web server: what loaders deliver, what is fetched, and what becomes of failures.

#include <paceline/detail/descriptor.h>
#include <paceline/detail/remote.h>
#include <paceline/error.h>
#include <paceline/record_loader.h>
#include <paceline/record_tools.h>
#include <paceline/sampling.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "fixtures.h"
#include "remote/cache.h"
#include "remote/remote_shards.h"
#include "web_server.h"

namespace {

// What another process does just before this one gets a shared lock; once.
std::function<void()> before_sharing;

}  // namespace

// In the place of the C library's, in this program.
extern "C" int flock(int file, int operation) {
  if ((operation & LOCK_SH) != 0)
    if (const auto other = std::exchange(before_sharing, nullptr)) other();
  return static_cast<int>(syscall(SYS_flock, file, operation));
}

namespace paceline {
namespace {

using test::error_of;
using test::WebReply;
using test::WebRequest;
using test::WebServer;
using testing::HasSubstr;
using testing::Not;

namespace fs = std::filesystem;

constexpr int kRecords = 60, kShards = 6;

// At one moment: nothing was renamed between two looks.
std::uint64_t bytes_in(const std::string& folder) {
  std::map<std::string, std::uint64_t> before, now;
  do {
    before = std::exchange(now, {});
    std::error_code gone;
    for (fs::recursive_directory_iterator at(folder, gone), end; !gone && at != end; at.increment(gone)) {
      std::error_code none;
      const auto size = fs::is_regular_file(at->path(), none) ? fs::file_size(at->path(), none) : 0;
      if (!none) now[at->path()] = size;
    }
  } while (now != before);
  std::uint64_t bytes = 0;
  for (const auto& [path, size] : now) bytes += size;
  return bytes;
}

// What an epoch delivers, as text: positions and labels, batch by batch.
std::vector<std::string> epoch_of(RecordLoader& loader, std::int64_t epoch = 0) {
  std::vector<std::string> batches;
  loader.start(epoch);
  for (Batch batch; loader.next(batch);) {
    std::string text;
    for (const Range& range : batch.positions) text += str(range.begin, '-', range.end, ' ');
    for (const auto label : batch.label.to_vector<int>()) text += str(label, ',');
    for (const float value : batch.data.to_vector<float>()) text += str(value, ' ');
    batches.push_back(text);
  }
  return batches;
}

RecordLoaderOptions in_order(std::int64_t batch = 5) {
  RecordLoaderOptions options;
  options.batch = batch;
  options.decode_threads = 2;
  options.prefetch = 2;
  return options;
}

// Gives pieces of the epoch in its order. `lengths`: of the pieces, again and again. A negative one is skipped.
class Pieces final : public Source {
 public:
  explicit Pieces(std::vector<std::int64_t> lengths) : lengths_(std::move(lengths)) {}
  bool is_dynamic() const override { return true; }
  Part part(std::int64_t) override { return {0, 0}; }
  void begin(std::int64_t, const EpochPlan& plan) override {
    at_ = 0;
    end_ = plan.all.ranges().back().end;
  }
  void commit(std::int64_t, const std::vector<Range>&, const std::string&) override {}
  RangeSet take_over(std::int64_t, std::int64_t, bool) override {
    RangeSet piece;
    while (piece.empty() && at_ < end_) {
      const std::int64_t length = lengths_[next_++ % lengths_.size()];
      const std::int64_t begin = std::exchange(at_, std::min(end_, at_ + std::abs(length)));
      if (length > 0) piece.add({begin, at_});
    }
    return piece;
  }

 private:
  const std::vector<std::int64_t> lengths_;
  std::size_t next_ = 0;
  std::int64_t at_ = 0, end_ = 0;
};

RecordLoaderOptions in_pieces(std::vector<std::int64_t> lengths, std::int64_t batch = 5) {
  RecordLoaderOptions options = in_order(batch);
  options.source = std::make_shared<Pieces>(std::move(lengths));
  return options;
}

std::vector<std::int64_t> positions_of_batch(RecordLoader& loader) {
  std::vector<std::int64_t> positions;
  Batch batch;
  if (!loader.next(batch)) return positions;
  for (const Range& range : batch.positions)
    for (std::int64_t position = range.begin; position < range.end; ++position) positions.push_back(position);
  return positions;
}

std::vector<std::int64_t> positions_of(RecordLoader& loader) {
  std::vector<std::int64_t> positions;
  do {
    for (auto batch = positions_of_batch(loader); !batch.empty(); batch = positions_of_batch(loader))
      positions.insert(positions.end(), batch.begin(), batch.end());
  } while (loader.take_over());
  return positions;
}

std::vector<std::int64_t> all_positions() {
  std::vector<std::int64_t> all(kRecords);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Gives these shards to one batch.
io::RemoteShards::Walk one_batch(std::vector<std::size_t> shards) {
  return [shards = std::move(shards), done = false](std::vector<std::size_t>& needed) mutable {
    needed = shards;
    return !std::exchange(done, true);
  };
}

// Does not answer some requests before release(), or its end.
class StallingServer {
 public:
  StallingServer(const std::string& folder, std::function<bool(const WebRequest&)> stalls)
      : stalls_(std::move(stalls)), server_(folder, [this](const WebRequest& request, WebReply&) {
          if (!stalls_(request)) return;
          std::unique_lock lock(mutex_);
          changed_.wait(lock, [this] { return released_; });
        }) {}
  ~StallingServer() { release(); }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  WebServer& server() { return server_; }

 private:
  const std::function<bool(const WebRequest&)> stalls_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool released_ = false;
  WebServer server_;  // last, so that its threads end first
};

// Whether a thread of this process is asleep.
bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string stat;
  std::getline(file, stat);
  return stat.find(") S ") != std::string::npos;
}

bool asks_for_a_shard(const WebRequest& request) { return request.path.ends_with(".rec"); }

template <class Condition>
void wait_until(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << "it does not come";
    std::this_thread::yield();
  }
}

class Remote : public testing::Test {
 protected:
  Remote() {
    test::write_data_set(folder_, kRecords, kShards);
    shard_ = Manifest::load(folder_ / "set.manifest").shards[0];
    setenv("PACELINE_CACHE", (cache_ / "c").c_str(), 1);
    setenv("PACELINE_REMOTE_ATTEMPTS", "3", 1);
  }
  ~Remote() override {
    for (const char* name :
         {"PACELINE_CACHE", "PACELINE_CACHE_SIZE", "PACELINE_REMOTE_ATTEMPTS", "PACELINE_REMOTE_STALL",
          "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL"})
      unsetenv(name);
  }
  std::vector<std::string> local_epoch(std::int64_t epoch = 0, RecordLoaderOptions options = in_order()) const {
    RecordLoader loader(folder_ / "set.manifest", std::move(options));
    return epoch_of(loader, epoch);
  }
  std::uint64_t set_bytes() const { return bytes_in(folder_ / ""); }
  // What the cache asks room for, for one shard.
  std::uint64_t room_of_a_shard() const { return shard_.bytes + 93 * static_cast<std::uint64_t>(shard_.records); }
  // A cache of so many bytes holds two shards, and not three: one that is there takes no more than its files.
  std::uint64_t room_of_two_shards() const {
    std::uint64_t bytes = room_of_a_shard() + shard_.bytes / 4;
    for (const char* extension : {"rec", "idx", "crc"})
      bytes += fs::file_size(folder_ / str("set-00001-of-00006.", extension));
    return bytes;
  }
  // A file of a shard's in the cache, or with the shard's key before this ending.
  std::string in_cache(const Manifest& manifest, std::size_t shard, const std::string& ending) const {
    return cache_ / ("c/" + io::wanted(manifest, manifest.shards[shard]).key + ending);
  }
  // Returns when the cache has been asked for room for a shard, and had none.
  void wait_until_without_room(const Manifest& manifest, std::size_t shard) const {
    const std::string lock = in_cache(manifest, shard, ".lock");
    const auto is_asked = [&] { return fs::exists(lock) && !io::FileLock::attempt(lock, io::FileLock::kShared); };
    std::optional<io::FileLock> room;
    wait_until(
        [&] { return (room = io::FileLock::attempt(cache_ / "c/room.lock", io::FileLock::kAlone)).has_value(); });
    wait_until(is_asked);  // and waits for `room`
    room.reset();
    wait_until([&] { return !is_asked(); });
  }
  std::string error_of_epoch(WebServer& server) {
    return error_of<Error>([&] {
      RecordLoader loader(server.url("set.manifest"), in_order());
      epoch_of(loader);
    });
  }

  test::TemporaryFolder folder_, cache_;
  Shard shard_;
};

TEST_F(Remote, IsReadAsIfItWereHereAndFetchedOnce) {
  WebServer server(folder_ / "");
  RecordLoaderOptions shuffled = in_order(7);
  shuffled.shuffle = 3;
  RecordLoaderOptions dealt = shuffled;
  dealt.partition = Partition::kRecords;
  for (const RecordLoaderOptions& options : {in_order(), shuffled, dealt}) {
    RecordLoader loader(server.url("set.manifest"), options);
    EXPECT_EQ(epoch_of(loader, 0), local_epoch(0, options));
    EXPECT_EQ(epoch_of(loader, 1), local_epoch(1, options));
  }
  // Each further loader read its manifest again.
  const std::uint64_t manifest = fs::file_size(folder_ / "set.manifest");
  EXPECT_EQ(server.bytes(), set_bytes() + 2 * manifest);
  EXPECT_EQ(server.requests(".rec"), kShards);
}

TEST_F(Remote, TwoLoadersFetchAShardOnce) {
  WebServer server(folder_ / "");
  std::vector<std::string> found[2];
  std::vector<std::thread> threads;
  for (auto& epoch : found) {
    threads.emplace_back([&] {
      RecordLoader loader(server.url("set.manifest"), in_order());
      epoch = epoch_of(loader);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found[0], local_epoch());
  EXPECT_EQ(found[1], found[0]);
  EXPECT_EQ(server.requests(".rec"), kShards);
  EXPECT_EQ(server.requests(".idx"), kShards);
  EXPECT_EQ(server.requests(".crc"), kShards);
}

TEST_F(Remote, TheFirstBatchWaitsForItsShardOnlyAndOthersAreFetchedMeanwhile) {
  // The shards behind the second come after the first batch, or never.
  StallingServer stalling(
      folder_ / "", [](const WebRequest& request) { return request.path >= "set-00002" && asks_for_a_shard(request); });
  WebServer& server = stalling.server();
  RecordLoader loader(server.url("set.manifest"), in_order());
  loader.start(0);
  Batch batch;
  ASSERT_TRUE(loader.next(batch));
  EXPECT_EQ(batch.label.to_vector<int>(), (std::vector{0, 1, 2, 3, 4}));
  // Shards are asked for that no batch has needed.
  while (server.requests("set-00002-of-00006.rec") == 0) std::this_thread::yield();
  stalling.release();
  int batches = 1;
  while (loader.next(batch)) ++batches;
  EXPECT_EQ(batches, kRecords / 5);
}

TEST_F(Remote, WhatBreaksOffGoesOnFromThere) {
  WebServer server(folder_ / "", [&](const WebRequest& request, WebReply& reply) {
    if (request.count == 1 && request.path.ends_with(".rec")) reply.cut = reply.body.size() / 2;
  });
  RecordLoader loader(server.url("set.manifest"), in_order());
  EXPECT_EQ(epoch_of(loader), local_epoch());
  EXPECT_EQ(server.bytes(), set_bytes());
}

TEST_F(Remote, AttemptsThatBringSomethingDoNotCount) {
  setenv("PACELINE_REMOTE_ATTEMPTS", "2", 1);
  std::string bytes(std::size_t{5} << 20, 'x');
  for (std::size_t i = 0; i < bytes.size(); i += 997) bytes[i] = static_cast<char>(i / 997);
  test::write_all(folder_ / "large", bytes);
  std::atomic<std::size_t> piece = std::size_t{5} << 18;
  WebServer server(folder_ / "", [&](const WebRequest&, WebReply& reply) { reply.cut = piece; });
  const int file = detail::download_unnamed(server.url("large"));
  std::string read(bytes.size() + 1, '\0');
  read.resize(static_cast<std::size_t>(std::max<ssize_t>(0, pread(file, read.data(), read.size(), 0))));
  EXPECT_TRUE(read == bytes) << read.size();
  close(file);
  EXPECT_EQ(server.requests("large"), 4);
  EXPECT_EQ(server.bytes(), bytes.size());
  piece = 1000;
  EXPECT_THAT(error_of<IoError>([&] { detail::download_unnamed(server.url("large")); }), HasSubstr("2 attempts"));
}

TEST_F(Remote, AServerWithoutRangesSendsTheFileAgain) {
  WebServer server(folder_ / "", [&](const WebRequest& request, WebReply& reply) {
    if (!request.path.ends_with(".rec")) return;
    reply = {200, "ETag: \"1\"\r\n", test::read_all(folder_ / request.path)};
    if (request.count == 1) reply.cut = reply.body.size() / 2;
  });
  RecordLoader loader(server.url("set.manifest"), in_order());
  EXPECT_EQ(epoch_of(loader), local_epoch());
}

TEST_F(Remote, AnotherPartThanAskedForIsNotTaken) {
  WebServer server(folder_ / "", [&](const WebRequest& request, WebReply& reply) {
    if (request.count == 1 && request.path.ends_with(".rec")) reply.cut = reply.body.size() / 2;
    if (request.count == 2 && request.path.ends_with(".rec"))
      reply = {206, "Content-Range: bytes 0-9/500\r\n", reply.body.substr(0, 10)};
  });
  RecordLoader loader(server.url("set.manifest"), in_order());
  EXPECT_EQ(epoch_of(loader), local_epoch());
}

TEST_F(Remote, APartOfAFileWhoseSizeTheServerDoesNotRepeatIsNotTheWhole) {
  const std::string bytes(5000, 'x');
  test::write_all(folder_ / "file", bytes);
  WebServer server(folder_ / "", [&](const WebRequest& request, WebReply& reply) {
    if (request.count == 1) reply.cut = 1000;
    if (request.count == 2) reply = {206, "Content-Range: bytes 1000-1999/*\r\n", bytes.substr(1000, 1000)};
  });
  const int file = detail::download_unnamed(server.url("file"));
  EXPECT_EQ(lseek(file, 0, SEEK_END), 5000);
  close(file);
  EXPECT_EQ(server.requests("file"), 3);
}

TEST_F(Remote, FailuresThatPassAreTriedAgain) {
  WebServer server(folder_ / "", [&](const WebRequest& request, WebReply& reply) {
    if (request.path.ends_with(".crc") || request.path.ends_with(".idx")) return;
    if (request.count == 1) reply = {503, "Retry-After: 0\r\n", "<Error><Code>SlowDown</Code></Error>"};
    if (request.count == 2) reply = {500, "Retry-After: never\r\n", "oops"};
  });
  RecordLoader loader(server.url("set.manifest"), in_order());
  EXPECT_EQ(epoch_of(loader), local_epoch());
}

TEST_F(Remote, FailuresThatStayAreSaid) {
  WebServer server(folder_ / "", [&](const WebRequest& request, WebReply& reply) {
    if (request.path.ends_with("2-of-00006.rec")) reply = {503, "", "<Error><Code>SlowDown</Code></Error>"};
  });
  EXPECT_EQ(error_of_epoch(server), str("cannot read ", server.url("set-00002-of-00006.rec"),
                                        ": the server answers 503 SlowDown (3 attempts)"));
  EXPECT_EQ(server.requests("2-of-00006.rec"), 3);
}

TEST_F(Remote, AMissingShardIsNotTriedAgain) {
  fs::remove(folder_ / "set-00001-of-00006.idx");
  WebServer server(folder_ / "");
  EXPECT_EQ(error_of_epoch(server),
            str("cannot read ", server.url("set-00001-of-00006.idx"), ": there is no such file (it answers 404)"));
  EXPECT_EQ(server.requests("1-of-00006.idx"), 1);
}

TEST_F(Remote, AServerThatIsNotThereIsSaid) {
  std::string url;
  {
    WebServer server(folder_ / "");
    url = server.url("set.manifest");
  }
  setenv("PACELINE_REMOTE_ATTEMPTS", "2", 1);
  const std::string error = error_of<IoError>([&] { RecordLoader loader(url); });
  EXPECT_THAT(error, HasSubstr("cannot read " + url));
  EXPECT_THAT(error, HasSubstr("2 attempts"));
}

TEST_F(Remote, AServerThatStallsIsTriedAgain) {
  setenv("PACELINE_REMOTE_STALL", "1", 1);
  setenv("PACELINE_REMOTE_ATTEMPTS", "20", 1);  // a busy machine may stall, too
  StallingServer stalling(folder_ / "", [](const WebRequest& request) {
    return request.count == 1 && request.path.ends_with("0-of-00006.rec");
  });
  WebServer& server = stalling.server();
  {
    RecordLoader loader(server.url("set.manifest"), in_order());
    EXPECT_EQ(epoch_of(loader), local_epoch());
  }
}

TEST_F(Remote, WrongBytesAreFetchedAgain) {
  WebServer server(folder_ / "", [&](const WebRequest& request, WebReply& reply) {
    if (request.count == 1 && !request.path.ends_with("manifest")) reply.body[reply.body.size() / 2] ^= 8;
  });
  RecordLoader loader(server.url("set.manifest"), in_order());
  EXPECT_EQ(epoch_of(loader), local_epoch());
}

TEST_F(Remote, BytesThatStayWrongAreSaid) {
  WebServer server(folder_ / "", [&](const WebRequest& request, WebReply& reply) {
    if (request.path.ends_with("3-of-00006.rec")) reply.body[40] ^= 8;
  });
  const std::string error = error_of_epoch(server);
  EXPECT_THAT(error, HasSubstr(server.url("set-00003-of-00006.rec")));
  EXPECT_THAT(error, HasSubstr(server.url("set.manifest")));
  EXPECT_THAT(error, HasSubstr("fetched 3 times"));
  EXPECT_EQ(server.requests("3-of-00006.rec"), 3);
}

// A loader that skips damaged records needs no sound file. What it kept is fetched again by the next loader.
TEST_F(Remote, BytesThatStayWrongAreSkippedWhereThatIsAsked) {
  std::atomic<bool> damages = true, shortens = false;
  WebServer server(folder_ / "", [&](const WebRequest& request, WebReply& reply) {
    if (!damages || !request.path.ends_with("3-of-00006.rec")) return;
    if (shortens) reply.body.resize(reply.body.size() - 30);
    reply.body[40] ^= 8;
  });
  RecordLoaderOptions skipping = in_order();
  skipping.on_damage = OnDamage::kSkip;
  for (const bool is_short : {false, true}) {
    shortens = is_short;
    RecordLoader loader(server.url("set.manifest"), skipping);
    epoch_of(loader);
    EXPECT_EQ(loader.damaged(), is_short ? 2 : 1);
    EXPECT_THAT(error_of_epoch(server), HasSubstr("fetched 3 times"));
  }
  damages = false;
  RecordLoader loader(server.url("set.manifest"), in_order());
  EXPECT_EQ(epoch_of(loader), local_epoch());
}

TEST_F(Remote, AFileThatIsTooLongEndsEarly) {
  WebServer server(folder_ / "", [&](const WebRequest& request, WebReply& reply) {
    if (request.path.ends_with("0-of-00006.rec")) reply.body += std::string(std::size_t{8} << 20, 'x');
  });
  EXPECT_THAT(error_of_epoch(server), HasSubstr(str("more than the ", shard_.bytes, " bytes expected")));
  EXPECT_LT(bytes_in(cache_ / ""), set_bytes());
}

TEST_F(Remote, TheCacheKeepsItsBound) {
  const std::uint64_t most = room_of_a_shard() * 5 / 2;
  setenv("PACELINE_CACHE_SIZE", std::to_string(most).c_str(), 1);
  std::atomic<std::uint64_t> largest = 0;
  WebServer server(folder_ / "", [&](const WebRequest&, WebReply&) {
    const std::uint64_t now = bytes_in(cache_ / "");
    for (std::uint64_t seen = largest; seen < now && !largest.compare_exchange_weak(seen, now);) continue;
  });
  RecordLoader loader(server.url("set.manifest"), in_order());
  for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(epoch_of(loader, epoch), local_epoch(epoch));
  EXPECT_GT(largest, shard_.bytes);
  EXPECT_LE(largest, most);
  EXPECT_LE(bytes_in(cache_ / ""), most);
  EXPECT_GT(server.requests(".rec"), kShards) << "two epochs cannot both come from so small a cache";
}

// Its file is empty before the first byte comes, and again where the bytes were wrong.
TEST_F(Remote, AShardHasItsRoomWhileItIsFetched) {
  const std::string folder = cache_ / "direct";
  const io::ShardCache::Wanted first{"a", {{"shard.rec", 100}}}, second{"b", {{"shard.rec", 100}}};
  const auto fill = [](const std::string& part) { test::write_all(part + "/shard.rec", std::string(100, 'x')); };
  io::ShardCache cache({folder, 150}), of_another_process({folder, 150});
  {
    const auto held = cache.take(first,
                                 [&](const std::string& part) {
                                   test::write_all(part + "/shard.rec", "");
                                   EXPECT_FALSE(of_another_process.take(second, fill, {}));
                                   fill(part);
                                 },
                                 {});
    ASSERT_TRUE(held);
    EXPECT_FALSE(of_another_process.take(second, fill, {}));
  }
  EXPECT_TRUE(of_another_process.take(second, fill, {}));
  EXPECT_EQ(bytes_in(folder), 100U);
}

TEST_F(Remote, AShardThatWasFetchedIsNotRemovedBeforeItIsUsed) {
  const std::string folder = cache_ / "direct";
  const io::ShardCache::Wanted first{"a", {{"shard.rec", 100}}}, second{"b", {{"shard.rec", 100}}};
  const auto fill = [](const std::string& part) { test::write_all(part + "/shard.rec", std::string(100, 'x')); };
  const detail::Tick do_not_wait = [] { throw Error("somebody has the lock"); };
  io::ShardCache cache({folder, 150}), of_another_process({folder, 150});
  int fetched = 0;
  bool made_room = false;
  const auto make_room = [&] {
    try {
      made_room = of_another_process.take(second, fill, do_not_wait).has_value();
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): as it should be
    }
  };
  const auto fill_first = [&](const std::string& part) {
    fill(part);
    if (++fetched == 1) before_sharing = make_room;
  };
  const auto held = cache.take(first, fill_first, {});
  EXPECT_FALSE(before_sharing) << "the shard is used without a shared lock";
  EXPECT_FALSE(made_room);
  ASSERT_TRUE(held);
  EXPECT_TRUE(held->fetched);
  EXPECT_EQ(fetched, 1);
}

// PACELINE_CACHE may name a folder with other things in it.
TEST_F(Remote, WhatIsNotOfTheCacheStays) {
  const std::string folder = cache_ / "direct";
  for (const char* other : {"mine/deep", ".ssh", "yarn"}) {
    fs::create_directories(folder + '/' + other);
    test::write_all(folder + '/' + other + "/file", std::string(50, 'x'));
  }
  test::write_all(folder + "/yarn.lock", "not the cache's");
  const auto fill = [](const std::string& part) { test::write_all(part + "/shard.rec", std::string(100, 'x')); };
  io::ShardCache cache({folder, 150});
  for (const char* key : {"a", "b"}) EXPECT_TRUE(cache.take({key, {{"shard.rec", 100}}}, fill, {})) << key;
  for (const char* other : {"/mine/deep/file", "/.ssh/file", "/yarn/file", "/yarn.lock"})
    EXPECT_TRUE(fs::exists(folder + other)) << other;
  EXPECT_FALSE(fs::exists(folder + "/a")) << "it made room for the other shard";
}

TEST_F(Remote, ACacheThatCannotMakeEnoughRoomRemovesNothing) {
  const std::string folder = cache_ / "direct";
  const auto fill = [](const std::string& part) { test::write_all(part + "/shard.rec", std::string(100, 'x')); };
  io::ShardCache cache({folder, 250});
  EXPECT_TRUE(cache.take({"old", {{"shard.rec", 100}}}, fill, {}));
  const auto used = cache.take({"used", {{"shard.rec", 100}}}, fill, {});
  EXPECT_FALSE(cache.take({"large", {{"shard.rec", 200}}}, fill, {}));
  EXPECT_TRUE(fs::exists(folder + "/old/shard.rec"));
}

// A process that was stopped keeps its locks.
TEST_F(Remote, ALoaderCanBeLeftWhileAnotherProcessKeepsTheCacheLocked) {
  WebServer server(folder_ / "");
  fs::create_directories(cache_ / "c");
  const auto room = io::FileLock::attempt(cache_ / "c/room.lock", io::FileLock::kAlone);
  ASSERT_TRUE(room);
  {
    RecordLoader loader(server.url("set.manifest"), in_order());
    loader.start(0);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::ranges::none_of(fs::directory_iterator(cache_ / "c"), [](const fs::directory_entry& entry) {
      return entry.path().extension() == ".lock" && entry.path().filename() != "room.lock";
    })) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "no shard is fetched";
      std::this_thread::yield();
    }
  }
}

TEST_F(Remote, ACacheThatIsTooSmallIsSaid) {
  setenv("PACELINE_CACHE_SIZE", "1000", 1);
  WebServer server(folder_ / "");
  const std::string error = error_of_epoch(server);
  EXPECT_THAT(error, HasSubstr("may hold 1000 bytes"));
  EXPECT_THAT(error, HasSubstr("PACELINE_CACHE_SIZE"));
  setenv("PACELINE_CACHE_SIZE", "many", 1);
  EXPECT_THAT(error_of_epoch(server), HasSubstr("PACELINE_CACHE_SIZE='many'"));
}

TEST_F(Remote, TwoThreadsShareACacheThatHoldsTheShardsOfOneBatch) {
  setenv("PACELINE_CACHE_SIZE", std::to_string(room_of_two_shards()).c_str(), 1);
  WebServer server(folder_ / "");
  constexpr std::int64_t kTwoShards = 2 * kRecords / kShards;
  {
    RecordLoader loader(server.url("set.manifest"), in_order(kTwoShards));
    for (int epoch = 0; epoch < 3; ++epoch)
      EXPECT_EQ(epoch_of(loader, epoch), local_epoch(epoch, in_order(kTwoShards)));
  }
  RecordLoader too_much(server.url("set.manifest"), in_order(kTwoShards + 1));
  EXPECT_THAT(error_of<IoError>([&] { epoch_of(too_much); }), HasSubstr("give it more (PACELINE_CACHE_SIZE)"));
}

TEST_F(Remote, ABatchGetsRoomAfterThoseBeforeItAlthoughItAsksFirst) {
  setenv("PACELINE_CACHE_SIZE", std::to_string(room_of_two_shards()).c_str(), 1);
  WebServer server(folder_ / "");
  const Manifest manifest = Manifest::load(server.url("set.manifest"));
  io::RemoteShards shards(manifest, "set", OnDamage::kFail);
  std::promise<void> go_on;
  shards.begin([batch = std::size_t{0}, ready = go_on.get_future().share()](std::vector<std::size_t>& needed) mutable {
    ready.wait();
    needed = {2 * batch, 2 * batch + 1};
    return batch++ < 2;
  });
  std::atomic<pid_t> thread = 0;
  std::atomic<bool> ended = false;
  std::string failure;
  std::thread later([&] {
    thread = gettid();
    try {
      for (const std::size_t shard : {2, 3}) shards.file(shard);
    } catch (const Error& error) {
      failure = error.what();
    }
    ended = true;
  });
  while (!ended && (thread == 0 || !sleeps(thread))) std::this_thread::yield();
  go_on.set_value();
  EXPECT_NO_THROW(shards.file(0));
  EXPECT_NO_THROW(shards.file(1));
  shards.passed(1);
  later.join();
  EXPECT_EQ(failure, "");
}

TEST_F(Remote, AShardWaitsForOneThatIsFetchedAndWillTakeLessRoom) {
  setenv("PACELINE_CACHE_SIZE", std::to_string(room_of_two_shards()).c_str(), 1);
  StallingServer stalling(folder_ / "",
                          [](const WebRequest& request) { return request.path.ends_with("0-of-00006.rec"); });
  const Manifest manifest = Manifest::load(stalling.server().url("set.manifest"));
  io::RemoteShards shards(manifest, "set", OnDamage::kFail, std::chrono::nanoseconds(0));
  shards.begin([batch = 0](std::vector<std::size_t>& needed) mutable {
    needed = {0, 1};
    return batch++ == 0;
  });
  auto second = std::async(std::launch::async, [&] { return shards.file(1); });
  wait_until([&] { return stalling.server().requests(".rec") > 0; });
  wait_until_without_room(manifest, 1);
  stalling.release();
  EXPECT_NO_THROW(second.get());
}

TEST_F(Remote, TheNextPieceIsFetchedBeforeThisOneEndsAndItsFetchGoesOn) {
  StallingServer stalling(folder_ / "",
                          [](const WebRequest& request) { return request.path.ends_with("1-of-00006.rec"); });
  WebServer& server = stalling.server();
  RecordLoader loader(server.url("set.manifest"), in_pieces({5}));  // half a shard
  loader.start(0);
  EXPECT_TRUE(positions_of_batch(loader).empty());
  std::vector<std::int64_t> found;
  for (int piece = 0; piece < 2; ++piece) {
    ASSERT_TRUE(loader.take_over());
    if (piece == 1) wait_until([&] { return server.requests("1-of-00006.rec") > 0; });
    for (const auto position : positions_of_batch(loader)) found.push_back(position);
    EXPECT_TRUE(positions_of_batch(loader).empty());
  }
  EXPECT_EQ(found.size(), std::size_t{10});
  ASSERT_TRUE(loader.take_over());
  stalling.release();
  for (const auto position : positions_of(loader)) found.push_back(position);
  EXPECT_EQ(found, all_positions());
  for (int shard = 0; shard < kShards; ++shard)
    EXPECT_EQ(server.requests(str(shard, "-of-00006.rec")), 1) << "shard " << shard;
}

TEST_F(Remote, PiecesOfAnyLengthDeliverEachRecordOnce) {
  WebServer server(folder_ / "");
  for (const std::uint64_t room : {room_of_two_shards(), std::uint64_t{1} << 30}) {
    setenv("PACELINE_CACHE_SIZE", std::to_string(room).c_str(), 1);
    for (const std::vector<std::int64_t>& lengths : std::vector<std::vector<std::int64_t>>{{1}, {7, 3}, {10}, {25}}) {
      RecordLoaderOptions options = in_pieces(lengths);
      options.shuffle = 3;
      options.window = 1;
      RecordLoader loader(server.url("set.manifest"), options);
      for (int epoch = 0; epoch < 2; ++epoch) {
        loader.start(epoch);
        EXPECT_EQ(positions_of(loader), all_positions()) << room << ": " << lengths[0];
      }
    }
  }
}

// Two workers take turns: the half shards between are the other one's.
TEST_F(Remote, TheNextPieceIsAsFarAwayAsTheOneBefore) {
  WebServer server(folder_ / "");
  RecordLoader loader(server.url("set.manifest"), in_pieces({5, -5}));
  loader.start(0);
  EXPECT_TRUE(positions_of_batch(loader).empty());
  for (int piece = 0; piece < kShards; ++piece) {
    ASSERT_TRUE(loader.take_over());
    const std::string next = str(piece + 1, "-of-00006.rec");
    if (piece > 0 && piece + 1 < kShards) wait_until([&] { return server.requests(next) > 0; });
    EXPECT_EQ(positions_of_batch(loader).size(), std::size_t{5});
    EXPECT_TRUE(positions_of_batch(loader).empty());
  }
  EXPECT_FALSE(loader.take_over());
  EXPECT_EQ(server.requests(".rec"), kShards);
}

TEST_F(Remote, AGuessNeverFails) {
  WebServer server(folder_ / "", [&](const WebRequest& request, WebReply& reply) {
    if (request.path.ends_with("1-of-00006.rec")) reply = {404, "", "no such file"};
  });
  RecordLoader loader(server.url("set.manifest"), in_pieces({10, -10}));
  loader.start(0);
  EXPECT_TRUE(positions_of_batch(loader).empty());
  ASSERT_TRUE(loader.take_over());
  wait_until([&] { return server.requests("1-of-00006.rec") > 0; });
  EXPECT_EQ(positions_of(loader).size(), std::size_t{30});
  EXPECT_EQ(server.requests("1-of-00006.rec"), 1);
}

// As where other hosts do the pieces between.
TEST_F(Remote, AfterAWrongGuessTheNextOneMustComeTrueFirst) {
  WebServer server(folder_ / "");
  const Manifest manifest = Manifest::load(server.url("set.manifest"));
  std::atomic<bool> at_its_end = false;  // of the guess; then the next piece is compared with it
  io::RemoteShards shards(manifest, "set", OnDamage::kFail);
  shards.begin([](std::vector<std::size_t>&) { return false; });
  const auto piece = [&](std::size_t shard, std::size_t guess) {
    at_its_end = false;
    shards.extend(one_batch({shard}), [&, walk = one_batch({guess})](std::vector<std::size_t>& needed) {
      const bool more = walk(needed);
      if (!more) at_its_end = true;
      return more;
    });
    EXPECT_NO_THROW(shards.file(shard));
    wait_until([&] { return at_its_end.load(); });
  };
  piece(0, 1);
  wait_until([&] { return fs::exists(in_cache(manifest, 1, "")); });
  shards.passed(1);
  piece(2, 3);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(server.requests("3-of-00006.rec"), 0);
  shards.passed(1);
  piece(3, 4);
  wait_until([&] { return fs::exists(in_cache(manifest, 4, "")); });
  EXPECT_EQ(server.requests(".rec"), 5);
}

TEST_F(Remote, AGuessGivesWayToAShardThatABatchNeeds) {
  setenv("PACELINE_CACHE_SIZE", std::to_string(room_of_two_shards()).c_str(), 1);
  StallingServer stalling(folder_ / "",
                          [](const WebRequest& request) { return request.path.ends_with("1-of-00006.rec"); });
  const Manifest manifest = Manifest::load(stalling.server().url("set.manifest"));
  const auto patience = std::chrono::seconds(60), at_once = std::chrono::seconds(20);
  io::RemoteShards shards(manifest, "set", OnDamage::kFail, patience);
  shards.begin([](std::vector<std::size_t>&) { return false; });
  shards.extend(one_batch({0}), one_batch({0, 1}));
  EXPECT_NO_THROW(shards.file(0));
  wait_until([&] { return stalling.server().requests("1-of-00006.rec") > 0; });
  shards.passed(1);
  const auto began = std::chrono::steady_clock::now();
  shards.extend(one_batch({2, 3}));
  EXPECT_NO_THROW(shards.file(2));
  EXPECT_NO_THROW(shards.file(3));
  EXPECT_LT(std::chrono::steady_clock::now() - began, at_once);
}

TEST_F(Remote, AGuessEndsBeforeOtherProcessesLosePatience) {
  setenv("PACELINE_CACHE_SIZE", std::to_string(room_of_two_shards()).c_str(), 1);
  StallingServer stalling(folder_ / "",
                          [](const WebRequest& request) { return request.path.ends_with("1-of-00006.rec"); });
  const Manifest manifest = Manifest::load(stalling.server().url("set.manifest"));
  const auto patience = std::chrono::seconds(4);
  io::RemoteShards shards(manifest, "set", OnDamage::kFail, patience),
      others(manifest, "set", OnDamage::kFail, patience);
  shards.begin([](std::vector<std::size_t>&) { return false; });
  shards.extend(one_batch({0}), one_batch({1}));
  EXPECT_NO_THROW(shards.file(0));
  wait_until([&] { return stalling.server().requests("1-of-00006.rec") > 0; });
  others.begin(one_batch({2}));
  EXPECT_NO_THROW(others.file(2));
}

TEST_F(Remote, AGuessRemovesNothing) {
  setenv("PACELINE_CACHE_SIZE", std::to_string(room_of_two_shards()).c_str(), 1);
  WebServer server(folder_ / "");
  const Manifest manifest = Manifest::load(server.url("set.manifest"));
  io::RemoteShards shards(manifest, "set", OnDamage::kFail);
  shards.begin(one_batch({0, 1}));
  for (const std::size_t shard : {0, 1}) EXPECT_NO_THROW(shards.file(shard));
  shards.passed(1);
  const std::string lock = in_cache(manifest, 2, ".lock");
  const auto is_asked = [&] { return fs::exists(lock) && !io::FileLock::attempt(lock, io::FileLock::kShared); };
  {
    const auto room = io::FileLock::attempt(cache_ / "c/room.lock", io::FileLock::kAlone);
    ASSERT_TRUE(room);
    shards.extend(one_batch({1}), one_batch({2}));
    EXPECT_NO_THROW(shards.file(1));
    wait_until(is_asked);
  }
  wait_until([&] { return !is_asked(); });
  EXPECT_TRUE(fs::exists(in_cache(manifest, 0, "")));
  EXPECT_EQ(server.requests(".rec"), 2);
}

TEST_F(Remote, AGuessTakesNoRoomOfShardsInUseNorOfTheGuessBefore) {
  setenv("PACELINE_CACHE_SIZE", std::to_string(room_of_two_shards()).c_str(), 1);
  WebServer server(folder_ / "");
  const Manifest manifest = Manifest::load(server.url("set.manifest"));
  io::RemoteShards shards(manifest, "set", OnDamage::kFail);
  shards.begin(one_batch({0}));
  EXPECT_NO_THROW(shards.file(0));
  shards.passed(1);
  shards.extend(one_batch({0}), one_batch({1, 2}));
  EXPECT_NO_THROW(shards.file(0));
  wait_until([&] { return fs::exists(in_cache(manifest, 1, "")); });
  const std::string lock = in_cache(manifest, 2, ".lock");
  wait_until([&] { return fs::exists(lock) && io::FileLock::attempt(lock, io::FileLock::kShared); });
  EXPECT_EQ(shards.open(), std::vector<std::string>{shards.file(0)->path()});
  shards.passed(1);
  shards.extend(one_batch({1}));
  EXPECT_NO_THROW(shards.file(1));
  EXPECT_EQ(server.requests(".rec"), 2);
}

TEST_F(Remote, APieceCanBeginWhileTheOneBeforeIsFetched) {
  StallingServer stalling(folder_ / "",
                          [](const WebRequest& request) { return request.path.ends_with("1-of-00006.rec"); });
  RecordLoader loader(stalling.server().url("set.manifest"), in_pieces({20}));
  loader.start(0);
  ASSERT_TRUE(loader.take_over());
  EXPECT_EQ(positions_of_batch(loader), (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
  wait_until([&] { return stalling.server().requests("1-of-00006.rec") > 0; });
  ASSERT_TRUE(loader.take_over());  // the other batches are left out
  stalling.release();
  EXPECT_EQ(positions_of_batch(loader), (std::vector<std::int64_t>{20, 21, 22, 23, 24}));
}

// As in a mixture of two data sets.
TEST_F(Remote, AShardThatIsNamedTwiceTakesItsRoomOnce) {
  setenv("PACELINE_CACHE_SIZE", std::to_string(room_of_two_shards()).c_str(), 1);
  WebServer server(folder_ / "");
  Manifest manifest = Manifest::load(server.url("set.manifest"));
  manifest.shards = {manifest.shards[0], manifest.shards[0], manifest.shards[1]};
  const std::string other(shard_.bytes / 2, 'x');
  io::ShardCache of_another_process({cache_ / "c", std::uint64_t{1} << 30});
  auto used =
      of_another_process.take({"other", {{"shard.rec", other.size()}}},
                              [&](const std::string& part) { test::write_all(part + "/shard.rec", other); }, {});
  io::RemoteShards shards(manifest, "set", OnDamage::kFail);
  shards.begin([batch = 0](std::vector<std::size_t>& needed) mutable {
    needed = {0, 1, 2};
    return batch++ == 0;
  });
  auto last = std::async(std::launch::async, [&] { return shards.file(2); });
  wait_until([&] { return fs::exists(in_cache(manifest, 0, "")); });
  wait_until_without_room(manifest, 2);
  used.reset();
  EXPECT_NO_THROW(last.get());
}

TEST_F(Remote, ADamagedCopyHasNoRoomUntilItIsFetchedAnew) {
  WebServer server(folder_ / "");
  const Manifest manifest = Manifest::load(server.url("set.manifest"));
  const std::string folder = cache_ / "direct";
  const auto open = [&](io::ShardCache& cache, std::size_t shard, const std::function<void()>& has_room) {
    return io::open_in_cache(cache, manifest, "set", manifest.shards[shard], OnDamage::kFail, has_room);
  };
  for (const bool is_marked : {true, false}) {
    io::ShardCache large({folder, std::uint64_t{1} << 30});
    const io::CachedShard used = open(large, 1, [] {});
    const std::string copy = open(large, 0, [] {}).held->folder;
    if (is_marked)
      io::mark_damaged(copy);
    else
      test::flip_bit(copy + "/shard.idx", 1);
    io::ShardCache full({folder, bytes_in(folder)});
    bool has_room = false;
    EXPECT_FALSE(open(full, 0, [&] { has_room = true; }).held);
    EXPECT_FALSE(has_room) << is_marked;
  }
}

TEST_F(Remote, SamplingByWeightsFetchesEachShardOnce) {
  WebServer server(folder_ / "");
  const std::string set = server.url("set.manifest");
  const std::vector<std::int64_t> classes = read_classes(set, 2);
  EXPECT_EQ(classes, read_classes(folder_ / "set.manifest"));
  RecordLoaderOptions options = in_order(7);
  options.shuffle = 3;
  options.sampling.weights = balanced_weights(classes);
  RecordLoader loader(set, options);
  for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(epoch_of(loader, epoch), local_epoch(epoch, options));
  EXPECT_EQ(server.requests(".rec"), kShards);
  setenv("PACELINE_CACHE_SIZE", "1000", 1);
  EXPECT_EQ(read_classes(set), classes) << "what the cache cannot hold is read without it";
}

// A store that has ended the upload knows its number no more.
TEST_F(Remote, AnUploadWhoseAnswerWasLostIsDoneWhereItsBytesAreThere) {
  constexpr std::size_t kBytes = (std::size_t{32} << 20) + 5;  // in two parts
  test::write_all(folder_ / "file", std::string(kBytes, 'x'));
  fs::create_directories(folder_ / "bucket");
  fs::copy_file(folder_ / "file", folder_ / "bucket/key");  // the upload of before had the same bytes
  WebServer server(folder_ / "", [](const WebRequest& request, WebReply& reply) {
    if (request.method == "GET") return;
    reply = {200, "ETag: \"part\"\r\n", "<Result><UploadId>7</UploadId></Result>"};
    if (request.method != "POST" || !request.path.ends_with("?uploadId=7")) return;
    reply = {503, "", ""};
    if (request.count % 2 == 0) reply = {404, "", "<Error><Code>NoSuchUpload</Code></Error>"};
  });
  setenv("AWS_ACCESS_KEY_ID", "key", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
  setenv("AWS_REGION", "nowhere-1", 1);
  setenv("AWS_ENDPOINT_URL", server.url("").c_str(), 1);
  const auto upload = [&] {
    const detail::Descriptor file(open((folder_ / "file").c_str(), O_RDONLY | O_CLOEXEC));
    detail::upload(file.number(), kBytes, "s3://bucket/key");
  };
  EXPECT_NO_THROW(upload());
  test::flip_bit(folder_ / "bucket/key", kBytes - 1);
  EXPECT_THAT(error_of<IoError>(upload), HasSubstr("the server has forgotten the parts of the upload"));
}

TEST_F(Remote, ACopyThatWasDamagedSinceIsFetchedAgain) {
  WebServer server(folder_ / "");
  for (int round = 0; round < 2; ++round) {
    RecordLoader loader(server.url("set.manifest"), in_order());
    EXPECT_EQ(epoch_of(loader), local_epoch());
    for (const auto& entry : fs::recursive_directory_iterator(cache_ / "c")) {
      if (entry.path().extension() == ".idx") test::flip_bit(entry.path(), 1);
    }
  }
  EXPECT_EQ(server.requests(".rec"), 2 * kShards);
}

TEST_F(Remote, ACopyThatHasLostAFileIsFetchedAgain) {
  WebServer server(folder_ / "");
  int loaders = 0;
  for (const char* lost : {"shard.idx", "shard.crc", "shard.rec", "none"}) {
    RecordLoader loader(server.url("set.manifest"), in_order());
    EXPECT_EQ(epoch_of(loader), local_epoch());
    EXPECT_EQ(server.requests(".rec"), ++loaders * kShards) << lost;
    for (const auto& copy : fs::directory_iterator(cache_ / "c"))
      if (copy.is_directory()) fs::remove(copy.path() / lost);
  }
}

TEST_F(Remote, ACopyInUseThatHasLostAFileEndsWhoWantsIt) {
  const WebServer server(folder_ / "");
  const Manifest manifest = Manifest::load(server.url("set.manifest"));
  io::ShardCache cache({cache_ / "direct", std::uint64_t{1} << 30});
  const auto open = [&] { return io::open_in_cache(cache, manifest, "set", manifest.shards[0], OnDamage::kFail); };
  {
    const auto held = open();
    fs::remove(held.held->folder + "/shard.crc");
    EXPECT_THAT(error_of<IoError>(open), HasSubstr("has lost a file while a process uses it"));
  }
  EXPECT_EQ(open().file->size(), manifest.shards[0].records);
}

TEST_F(Remote, ACopyWhoseFileIsAFolderIsFetchedAgain) {
  const WebServer server(folder_ / "");
  const Manifest manifest = Manifest::load(server.url("set.manifest"));
  io::ShardCache cache({cache_ / "direct", std::uint64_t{1} << 30});
  const auto open = [&] { return io::open_in_cache(cache, manifest, "set", manifest.shards[0], OnDamage::kFail); };
  const std::string index = open().held->folder + "/shard.idx";
  fs::remove(index);
  fs::create_directory(index);
  EXPECT_EQ(open().file->size(), manifest.shards[0].records);
  EXPECT_TRUE(fs::is_regular_file(index));
}

TEST_F(Remote, ACopyWithADamagedRecordIsFetchedAgainByTheNextLoader) {
  WebServer server(folder_ / "");
  const auto epoch = [&](OnDamage on_damage) {
    RecordLoaderOptions options = in_order();
    options.on_damage = on_damage;
    RecordLoader loader(server.url("set.manifest"), options);
    return epoch_of(loader);
  };
  const auto damage_copies = [&] {
    for (const auto& entry : fs::recursive_directory_iterator(cache_ / "c"))
      if (entry.path().filename() == "shard.rec") test::flip_bit(entry.path(), 40);
  };
  EXPECT_EQ(epoch(OnDamage::kSkip), local_epoch());
  damage_copies();
  EXPECT_NE(epoch(OnDamage::kSkip), local_epoch());
  EXPECT_EQ(epoch(OnDamage::kSkip), local_epoch());
  damage_copies();
  EXPECT_THAT(error_of<Corrupt>([&] { epoch(OnDamage::kFail); }), HasSubstr("fetched anew next time"));
  int failures = 1;
  for (std::vector<std::string> delivered; delivered.empty();) {
    try {
      delivered = epoch(OnDamage::kFail);
      EXPECT_EQ(delivered, local_epoch());
    } catch (const Corrupt&) {
      ASSERT_LE(++failures, kShards) << "a shard was not fetched again";
    }
  }
}

TEST_F(Remote, AManifestThatSaysAnotherSizeIsRefused) {
  Manifest other = Manifest::load(folder_ / "set.manifest");
  other.shards[0].bytes += 4;
  other.save(folder_ / "other.manifest");
  WebServer server(folder_ / "");
  EXPECT_THAT(error_of<Corrupt>([&] {
                RecordLoader loader(server.url("other.manifest"), in_order());
                epoch_of(loader);
              }),
              HasSubstr(str("says ", other.shards[0].bytes, " bytes")));
  EXPECT_LE(server.requests("0-of-00006.rec"), 3);
}

TEST_F(Remote, AChangedDataSetIsNotMistakenForTheOldOne) {
  WebServer server(folder_ / "");
  {
    RecordLoader loader(server.url("set.manifest"), in_order());
    epoch_of(loader);
  }
  test::write_data_set(folder_, 2 * kRecords, kShards);
  RecordLoader loader(server.url("set.manifest"), in_order());
  EXPECT_EQ(epoch_of(loader), local_epoch());
}

TEST_F(Remote, WhatAKilledProcessLeftIsTakenAway) {
  WebServer server(folder_ / "");
  const auto fetch_all = [&] {
    RecordLoader loader(server.url("set.manifest"), in_order());
    EXPECT_EQ(epoch_of(loader), local_epoch());
  };
  fetch_all();
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(cache_ / "c"))
    if (entry.is_directory()) folders.push_back(entry.path());
  ASSERT_EQ(folders.size(), std::size_t{kShards});
  for (const fs::path& folder : folders) {
    // Another release may have named it otherwise.
    const std::string part = str(folder.string(), folder == folders.front() ? "" : ".1234", ".part");
    fs::rename(folder, part);
    fs::resize_file(part + "/shard.rec", 10);
  }
  fetch_all();
  for (const auto& entry : fs::directory_iterator(cache_ / "c")) EXPECT_NE(entry.path().extension(), ".part");
}

TEST_F(Remote, ALoaderCanBeLeftWhileItFetches) {
  StallingServer stalling(folder_ / "", asks_for_a_shard);
  WebServer& server = stalling.server();
  {
    RecordLoader loader(server.url("set.manifest"), in_order());
    loader.start(0);
    while (server.requests(".rec") == 0) std::this_thread::yield();
  }
}

TEST_F(Remote, ToolsReadIt) {
  WebServer server(folder_ / "");
  const VerifyReport report = verify(server.url("set.manifest"));
  EXPECT_TRUE(report.problems.empty());
  EXPECT_EQ(report.records, kRecords);
  EXPECT_EQ(report.shards, kShards);
  EXPECT_EQ(statistics(server.url("set.manifest")).records, kRecords);
  test::flip_bit(folder_ / "set-00000-of-00006.rec", 40);
  const VerifyReport damaged = verify(server.url("set.manifest"));
  ASSERT_FALSE(damaged.problems.empty());
  EXPECT_THAT(damaged.problems[0], HasSubstr(server.url("set-00000-of-00006.rec")));
  fs::remove(folder_ / "set-00001-of-00006.crc");
  std::string with_password = server.url("set.manifest");
  with_password.insert(std::string_view("http://").size(), "user:secret@");
  for (const std::string& problem : verify(with_password).problems) EXPECT_THAT(problem, Not(HasSubstr("secret")));
  EXPECT_TRUE(detail::exists(server.url("set.manifest")));
  EXPECT_FALSE(detail::exists(server.url("nothing")));
}

TEST_F(Remote, AToolThatIsInterruptedDoesNotWaitForAServerThatStalls) {
  StallingServer stalling(folder_ / "", asks_for_a_shard);
  WebServer& server = stalling.server();
  const RecordWork work{.threads = 1, .progress = [&](std::uint64_t) {
                          if (server.requests(".rec") > 0) throw IoError("interrupted");
                        }};
  EXPECT_EQ(error_of<Error>([&] { statistics(server.url("set.manifest"), work); }), "interrupted");
}

TEST_F(Remote, WhereNothingCanBeWritten) {
  WebServer server(folder_ / "");
  EXPECT_THAT(error_of<IoError>([&] {
                write_index(server.url("x.idx"), {{0, 0}});
              }),
              HasSubstr("only files of s3:// can be written"));
  EXPECT_EQ(server.requests(), 0);
}

// A manifest from elsewhere names files of its own folder only.
TEST_F(Remote, AManifestCannotNameFilesOfThisHost) {
  Manifest manifest = Manifest::load(folder_ / "set.manifest");
  manifest.shards[0].path = folder_ / "set-00000-of-00006.rec";
  manifest.save(folder_ / "other.manifest");
  WebServer server(folder_ / "");
  RecordLoader loader(server.url("other.manifest"), in_order());
  EXPECT_THAT(error_of<IoError>([&] { epoch_of(loader); }), HasSubstr("there is no such file"));
}

}  // namespace
}  // namespace paceline

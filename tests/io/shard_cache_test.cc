// Locks of the cache that change hands at the worst moment.

#include <paceline/detail/lock_file.h>

#include <gtest/gtest.h>
#include <sys/file.h>

#include <optional>
#include <string>

#include "fixtures.h"
#include "remote/cache.h"

namespace paceline::test {
namespace {

// The system lets go of an exclusive lock before it takes a shared one. Here another process takes it in between.
TEST(ShardCache, AShardStaysWhereSharingItsLockFails) {
  TemporaryFolder folder;
  const std::string lock = folder / "a.lock", room_lock = folder / "room.lock";
  const auto only = [](const std::string& path) { return io::FileLock::attempt(path, io::FileLock::kAlone); };
  io::ShardCache cache({folder / "", 1000});
  std::optional<io::FileLock> room, others;
  int fetched = 0, ticks = 0;
  const auto fill = [&](const std::string& part) {
    ++fetched;
    write_all(part + "/shard.rec", std::string(100, 'x'));
    room = only(room_lock);  // so that the first tick comes before the shard is in use
    EXPECT_TRUE(room);
  };
  const auto tick = [&] {
    if (++ticks == 1) {
      for (int file = 0; file < 1000; ++file)
        if (detail::is_still(lock, file)) flock(file, LOCK_UN);
      others = only(lock);
      EXPECT_TRUE(others);
      room.reset();
    } else if (ticks == 4) {
      EXPECT_FALSE(only(room_lock)) << "another process may remove the shard";
      others.reset();
    }
  };
  const auto held = cache.take({"a", {{"shard.rec", 100}}}, fill, tick);
  ASSERT_TRUE(held);
  EXPECT_TRUE(held->fetched);
  EXPECT_EQ(fetched, 1);
  EXPECT_EQ(ticks, 4);
  EXPECT_FALSE(only(lock));
  EXPECT_TRUE(only(room_lock));
}

}  // namespace
}  // namespace paceline::test

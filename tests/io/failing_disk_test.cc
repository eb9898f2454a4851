// A disk that cannot read some of its blocks.

#include <gmock/gmock.h>
#include <paceline/error.h>
#include <paceline/record_loader.h>

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <numeric>

#include "fixtures.h"

namespace {

// The bytes [begin, end) of the file with this inode cannot be read.
std::atomic<ino_t> broken_file = 0;
std::atomic<off_t> broken_begin = 0, broken_end = 0;
std::atomic<int> reads_of_file = 0;  // calls of pread() for it

}  // namespace

// In the place of the C library's, in this program.
extern "C" ssize_t pread(int file, void* to, size_t count, off_t offset) {
  struct stat status = {};
  if (broken_file != 0 && fstat(file, &status) == 0 && status.st_ino == broken_file) {
    ++reads_of_file;
    if (offset < broken_end && offset + static_cast<off_t>(count) > broken_begin) {
      errno = EIO;
      return -1;
    }
  }
  return syscall(SYS_pread64, file, to, count, offset);
}

namespace paceline::test {
namespace {

constexpr std::int64_t kRecords = 20, kBroken = 7;

class FailingDisk : public testing::Test {
 protected:
  FailingDisk() {
    DatasetWriter writer(folder_ / "set", 1);
    for (std::int64_t i = 0; i < kRecords; ++i) writer.write(0, i, std::to_string(i) + std::string(100, ','));
    Manifest manifest;
    manifest.payload = "bytes";
    writer.finish(manifest);
    const std::string shard = folder_ / "set-00000-of-00001.rec";
    struct stat status = {};
    EXPECT_EQ(stat(shard.c_str(), &status), 0);
    const RecordFile file(shard);
    broken_begin = static_cast<off_t>(file.offset(kBroken));
    broken_end = static_cast<off_t>(file.offset(kBroken + 1));
    broken_file = status.st_ino;
  }
  ~FailingDisk() override { broken_file = 0; }
  RecordLoader loader(OnDamage on_damage) const {
    const auto read = [](std::string_view record, std::uint64_t, std::span<void* const> to) {
      *static_cast<std::int32_t*>(to[0]) = std::stoi(std::string(record));
    };
    return RecordLoader(
        folder_ / "set.manifest",
        {.batch = 4, .on_damage = on_damage, .decoder = decoders::function({{"data", {}, DType::kInt32}}, read)});
  }

  TemporaryFolder folder_;
};

TEST_F(FailingDisk, EndsTheLoaderInOneSentence) {
  RecordLoader data = loader(OnDamage::kFail);
  data.start(0);
  Batch batch;
  try {
    while (data.next(batch)) {
    }
    ADD_FAILURE() << "it was read";
  } catch (const Corrupt& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("set-00000-of-00001.rec"), testing::HasSubstr("record 7"),
                               testing::HasSubstr("Input/output error"), testing::HasSubstr("--skip_bad")));
  }
}

TEST_F(FailingDisk, LosesOneRecordWhereItMay) {
  RecordLoader data = loader(OnDamage::kSkip);
  data.start(0);
  std::vector<std::int32_t> got;
  for (Batch batch; data.next(batch); data.commit(batch))
    for (const std::int32_t number : batch.data.to_vector<std::int32_t>()) got.push_back(number);
  std::vector<std::int32_t> expected(kRecords);
  std::iota(expected.begin(), expected.end(), 0);
  expected.erase(expected.begin() + kBroken);
  EXPECT_EQ(got, expected);
  EXPECT_EQ(data.damaged(), 1);
}

TEST_F(FailingDisk, TellsOfOneRecordInARun) {
  const RecordFile file(folder_ / "set-00000-of-00001.rec");
  RecordBuffer buffer;
  std::int64_t count = 0;
  file.visit(0, kRecords, buffer, [&](std::int64_t place, std::string_view record, const RecordDamage* damage) {
    EXPECT_EQ(place, count++);
    ASSERT_EQ(damage != nullptr, place == kBroken);
    if (damage) {
      EXPECT_THAT(damage->text(),
                  testing::AllOf(testing::HasSubstr(str("record ", kBroken, " at offset ", file.offset(kBroken))),
                                 testing::HasSubstr("Input/output error")));
    } else {
      EXPECT_EQ(record, std::to_string(place) + std::string(100, ','));
    }
  });
  EXPECT_EQ(count, kRecords);
}

TEST_F(FailingDisk, ASoundRunIsReadAtOnce) {
  broken_begin = broken_end = 0;
  const RecordFile file(folder_ / "set-00000-of-00001.rec");
  RecordBuffer buffer;
  std::int64_t count = 0;
  reads_of_file = 0;
  file.visit(0, kRecords, buffer, [&](std::int64_t, std::string_view, const RecordDamage* damage) {
    EXPECT_EQ(damage, nullptr);
    ++count;
  });
  EXPECT_EQ(count, kRecords);
  EXPECT_EQ(reads_of_file, 1);
}

}  // namespace
}  // namespace paceline::test

#include <paceline/recordio.h>

#include <gmock/gmock.h>
#include <paceline/crc32c.h>
#include <paceline/error.h>

#include <algorithm>
#include <random>
#include <thread>

#include "fixtures.h"

namespace paceline::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kMagicBytes = "\x0a\x23\xd7\xce";

std::string from_hex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    while (text[i] == ' ') ++i;
    bytes.push_back(static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// dmlc-core's output for the six records below.
const std::string kSixRecords = from_hex(
    "0a23d7ce 05000000 68656c6c 6f000000 0a23d7ce 00000020 0a23d7ce 00000060 "
    "0a23d7ce 04000020 41424344 0a23d7ce 02000060 45460000 0a23d7ce 07000000 "
    "410a23d7 ce454600 0a23d7ce 00000020 0a23d7ce 00000040 0a23d7ce 00000060 0a23d7ce 00000000");
const std::vector<std::string> kSix = {
    "hello", kMagicBytes, "ABCD" + kMagicBytes + "EF", "A" + kMagicBytes + "EF", kMagicBytes + kMagicBytes, ""};

std::vector<std::string> read_records(const std::string& path, OnDamage policy = OnDamage::kFail) {
  RecordReader reader(path, policy);
  std::vector<std::string> records;
  std::string record;
  while (reader.next(record)) records.push_back(record);
  return records;
}

void write_records(const std::string& path, const std::vector<std::string>& records) {
  RecordWriter writer(path);
  RecordIndex index;
  std::vector<RecordChecksum> checksums;
  for (const std::string& record : records) {
    const std::int64_t key = static_cast<std::int64_t>(index.size());
    index.push_back({key, writer.write(record)});
    checksums.push_back({key, crc32c(record), record.size()});
  }
  writer.close();
  write_index(index_path(path), index);
  write_checksums(checksum_path(path), checksums);
}

// Random bytes in which magic numbers are frequent, aligned and not.
std::string random_record(std::mt19937_64& random) {
  std::string record;
  const std::size_t pieces = random() % 12;
  for (std::size_t i = 0; i < pieces; ++i) {
    if (random() % 2) {
      record += kMagicBytes;
    } else {
      for (std::size_t n = random() % 9; n > 0; --n) record.push_back(static_cast<char>(random()));
    }
  }
  return record;
}

TEST(Crc32c, HasTheCheckValueAndContinues) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("6789", crc32c("12345")), 0xe3069283u);
}

TEST(RecordWriter, WritesTheBytesOfDmlcCore) {
  TemporaryFolder folder;
  RecordWriter writer(folder / "six.rec");
  std::vector<std::uint64_t> offsets;
  for (const std::string& record : kSix) offsets.push_back(writer.write(record));
  writer.close();
  EXPECT_EQ(read_all(folder / "six.rec"), kSixRecords);
  EXPECT_THAT(offsets, ElementsAre(0, 16, 32, 56, 72, 96));
  EXPECT_EQ(writer.bytes(), kSixRecords.size());
  EXPECT_EQ(writer.checksum(), crc32c(kSixRecords));
}

TEST(RecordWriter, WritesWhatIsBufferedWhenItIsDestroyed) {
  TemporaryFolder folder;
  {
    RecordWriter writer(folder / "six.rec");
    for (const std::string& record : kSix) writer.write(record);
  }
  EXPECT_EQ(read_all(folder / "six.rec"), kSixRecords);
}

TEST(RecordReader, ReadsTheBytesOfDmlcCore) {
  TemporaryFolder folder;
  write_all(folder / "six.rec", kSixRecords);
  EXPECT_EQ(read_records(folder / "six.rec"), kSix);
}

TEST(RecordWriter, RefusesRecordsOf512Megabytes) {
  TemporaryFolder folder;
  RecordWriter writer(folder / "long.rec");
  // Never touched beyond its size, so the memory is not really needed.
  const std::string_view too_long(kMagicBytes.data(), std::size_t{1} << 29);
  EXPECT_THAT(error_of<InvalidArgument>([&] { writer.write(too_long); }), HasSubstr("536870912 bytes is too long"));
}

TEST(RecordWriter, SaysThatTheDiskIsFull) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  RecordWriter writer("/dev/full");
  writer.write("hello");
  EXPECT_THAT(error_of<IoError>([&] { writer.close(); }), HasSubstr("/dev/full"));
}

TEST(RecordIo, RoundTripsRecordsFullOfMagicNumbers) {
  std::mt19937_64 random(test_seed());
  TemporaryFolder folder;
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> records(random() % 40);
    for (std::string& record : records) record = random_record(random);
    const std::string path = folder / "random.rec";
    write_records(path, records);
    EXPECT_EQ(read_records(path), records);
    EXPECT_EQ(std::filesystem::file_size(path) % 4, 0u);
    RecordFile file(path);
    ASSERT_EQ(file.size(), static_cast<std::int64_t>(records.size()));
    std::string record;
    for (std::size_t i = records.size(); i-- > 0;) {
      file.read(static_cast<std::int64_t>(i), record);
      EXPECT_EQ(record, records[i]);
    }
    EXPECT_EQ(scan_index(path), read_index(index_path(path)));
  }
}

TEST(RecordReader, SaysThatTheFileBecameShorter) {
  TemporaryFolder folder;
  const std::string path = folder / "a.rec";
  write_records(path, std::vector<std::string>(3000, std::string(1000, 'x')));
  for (const OnDamage on_damage : {OnDamage::kFail, OnDamage::kSkip}) {
    std::filesystem::resize_file(path, 3'000'000);
    RecordReader reader(path, on_damage);
    std::string record;
    ASSERT_TRUE(reader.next(record));
    std::filesystem::resize_file(path, 1'500'000);
    EXPECT_THAT(error_of<IoError>([&] {
                  while (reader.next(record)) continue;
                }),
                HasSubstr("became shorter"));
  }
}

TEST(RecordReader, ReadsRecordsLongerThanItsBuffer) {
  TemporaryFolder folder;
  std::string longer(3'000'001, 'x');
  longer.replace(1'600'000, 4, kMagicBytes);
  write_records(folder / "long.rec", {"a", longer, "b"});
  EXPECT_EQ(read_records(folder / "long.rec"), (std::vector<std::string>{"a", longer, "b"}));
}

struct DamageCase {
  const char* name;
  std::size_t keep;      // bytes of kSixRecords
  std::size_t at;        // changed there ...
  std::string bytes;     // ... to this
  const char* expected;  // in the message
};

class DamagedFile : public testing::TestWithParam<DamageCase> {};

TEST_P(DamagedFile, IsNamedWithFileOffsetAndRecord) {
  const DamageCase& damage = GetParam();
  TemporaryFolder folder;
  std::string bytes = kSixRecords.substr(0, damage.keep);
  bytes.replace(damage.at, damage.bytes.size(), damage.bytes);
  write_all(folder / "six.rec", bytes);
  const std::string message = error_of<Corrupt>([&] { read_records(folder / "six.rec"); });
  EXPECT_THAT(message, HasSubstr(folder / "six.rec"));
  EXPECT_THAT(message, HasSubstr(damage.expected));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, DamagedFile,
    testing::Values(
        DamageCase{"HeaderCut", 20, 0, "", "record 1 at offset 16 is damaged: the file ends inside a part's header"},
        DamageCase{"PayloadCut", 12, 0, "", "record 0 at offset 0 is damaged: the file ends inside the record"},
        DamageCase{"LastPartMissing", 24, 0, "", "record 1 at offset 16 is damaged: the file ends before"},
        DamageCase{"WrongMagic", 104, 57, "\x24", "record 3 at offset 56 is damaged: wrong magic number"},
        DamageCase{"MiddleWhereHead", 104, 7, "\x40",
                   "record 0 at offset 0 is damaged: a part with flag 2 stands where"},
        DamageCase{"HeadWhereLast", 104, 31, std::string(1, '\0'),
                   "record 1 at offset 16 is damaged: a part with flag 0"},
        DamageCase{"InvalidFlag", 104, 7, "\xa0", "a part with flag 5 stands where 0 or 1 is expected"},
        DamageCase{"OddFirstPart", 104, 36, "\x03", "record 2 at offset 32 is damaged: a part that is not the last"},
        DamageCase{"Padding", 104, 15, "\x01", "record 0 at offset 0 is damaged: the padding is not zero"}),
    [](const auto& info) { return info.param.name; });

TEST(RecordReader, SkipsDamageAndListsIt) {
  TemporaryFolder folder;
  const std::string path = folder / "set.rec";
  write_records(path, {"one", "two two", kMagicBytes + "3", "four", "five"});
  flip_bit(path, 12 + 1);  // the second record's magic
  RecordReader reader(path, OnDamage::kSkip);
  std::vector<std::string> records;
  std::string record;
  while (reader.next(record)) records.push_back(record);
  EXPECT_THAT(records, ElementsAre("one", kMagicBytes + "3", "four", "five"));
  ASSERT_EQ(reader.damage().size(), 1u);
  EXPECT_EQ(reader.damage()[0].text(), path + ": record 1 at offset 12 is damaged: wrong magic number");
}

TEST(RecordFile, SaysWhatIsMissingAndWhere) {
  TemporaryFolder folder;
  const std::string message = error_of<IoError>([&] { RecordFile file(folder / "absent.rec"); });
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  EXPECT_THAT(message, HasSubstr(folder / "absent.rec"));
  EXPECT_THAT(message, HasSubstr(host));
  EXPECT_THAT(message, HasSubstr("No such file"));
}

TEST(RecordFile, ReadsFilesWithoutAnIndex) {
  TemporaryFolder folder;
  const std::string path = folder / "six.rec";
  write_all(path, kSixRecords);
  const RecordFile file(path);
  ASSERT_EQ(file.size(), 6);
  std::string record;
  for (std::int64_t i = 0; i < 6; ++i) {
    file.read(i, record);
    EXPECT_EQ(record, kSix[static_cast<std::size_t>(i)]);
    EXPECT_EQ(file.key(i), i);
  }
  write_all(path, kSixRecords.substr(0, 20));
  EXPECT_THAT(error_of<Corrupt>([&] { RecordFile damaged(path); }),
              HasSubstr("six.rec: record 1 at offset 16 is damaged: the file ends inside a part's header"));
}

TEST(RecordFile, TakesAnIndexOfSomeRecordsForASubset) {
  TemporaryFolder folder;
  const std::string path = folder / "six.rec";
  write_all(path, kSixRecords);
  write_all(index_path(path), "9\t72\n4\t16\n");
  const RecordFile file(path);
  ASSERT_EQ(file.size(), 2);
  std::string record;
  file.read(0, record);
  EXPECT_EQ(record, kSix[1]);
  EXPECT_EQ(file.key(0), 4);
  file.read(1, record);
  EXPECT_EQ(record, kSix[4]);
}

TEST(RecordFile, CatchesAFlippedPayloadBitByItsChecksum) {
  TemporaryFolder folder;
  const std::string path = folder / "set.rec";
  write_records(path, {"one", "two two", "three"});
  flip_bit(path, 12 + 8 + 2);
  RecordFile file(path);
  std::string record;
  file.read(0, record);
  EXPECT_EQ(record, "one");
  EXPECT_EQ(error_of<Corrupt>([&] { file.read(1, record); }),
            path + ": record 1 at offset 12 is damaged: its CRC32C differs from the one kept beside the index");
  file.read(2, record);
  EXPECT_EQ(record, "three");
}

TEST(RecordFile, ReadsFilesWithoutChecksumsAndUnorderedIndexes) {
  TemporaryFolder folder;
  const std::string path = folder / "set.rec";
  write_records(path, {"one", "two two", "three"});
  std::filesystem::remove(checksum_path(path));
  write_all(index_path(path), "7\t28\n5\t0\n6\t12\n");
  RecordFile file(path);
  EXPECT_FALSE(file.has_checksums());
  std::string record;
  file.read(2, record);
  EXPECT_EQ(record, "three");
  EXPECT_EQ(file.key(2), 7);
}

TEST(RecordFile, NamesWrongIndexes) {
  TemporaryFolder folder;
  const std::string path = folder / "set.rec";
  write_records(path, {"one", "two two", "three"});
  std::filesystem::remove(checksum_path(path));
  std::string record;
  const auto open = [&] { RecordFile file(path); };
  write_all(index_path(path), "0\t0\n1\tx\n");
  EXPECT_THAT(error_of<Corrupt>(open), HasSubstr("set.idx: line 2 is damaged"));
  write_all(index_path(path), "0\t0\n\n1\t12\n");
  EXPECT_THAT(error_of<Corrupt>(open), HasSubstr("set.idx: line 2 is damaged"));
  write_all(index_path(path), "0\t0\n1\t13\n");
  EXPECT_THAT(error_of<Corrupt>(open), HasSubstr("no record can start at offset 13"));
  write_all(index_path(path), "0\t0\n1\t16\n2\t28\n");
  EXPECT_THAT(error_of<Corrupt>([&] { RecordFile(path).read(1, record); }), HasSubstr("wrong magic number"));
  write_all(index_path(path), "0\t0\n2\t28\n");
  flip_bit(path, 12);
  EXPECT_THAT(error_of<Corrupt>([&] { RecordFile(path).read(0, record); }),
              HasSubstr("bytes that are no record follow it"));
  flip_bit(path, 12);
  write_all(index_path(path), "0\t0\n1\t12\n2\t28\n3\t4000\n");
  EXPECT_THAT(error_of<Corrupt>([&] { RecordFile(path).read(3, record); }), HasSubstr("the file ends before it"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { RecordFile(path).read(4, record); }), HasSubstr("there is no record 4"));
  write_checksums(checksum_path(path), {{0, 1, 2}});
  EXPECT_THAT(error_of<Corrupt>(open), HasSubstr("set.crc holds 1 checksums"));
}

// What visit() tells of the records [begin, end): their contents, or why they cannot be read.
std::vector<std::string> visited(const RecordFile& file, std::int64_t begin, std::int64_t end, RecordBuffer& buffer) {
  std::vector<std::string> told;
  file.visit(begin, end, buffer, [&](std::int64_t place, std::string_view record, const RecordDamage* damage) {
    EXPECT_EQ(place, begin + static_cast<std::int64_t>(told.size()));
    told.emplace_back(damage ? damage->text() : std::string(record));
  });
  return told;
}

// The same of try_read().
std::vector<std::string> read_singly(const RecordFile& file, std::int64_t begin, std::int64_t end) {
  std::vector<std::string> told;
  for (std::int64_t place = begin; place < end; ++place) {
    std::string record;
    RecordDamage damage;
    told.push_back(file.try_read(place, record, damage) ? record : damage.text());
  }
  return told;
}

// Records of many lengths, some of several parts, some longer than a run or than a block.
std::vector<std::string> records_of_many_lengths(std::mt19937_64& random) {
  std::vector<std::string> records;
  for (const std::size_t length : {0, 1, 3, 4, 1000, 90'000, 262'136, 262'144, 1'048'568, 1'048'569, 2'500'000})
    records.emplace_back(length, static_cast<char>(random()));
  for (int i = 0; i < 300; ++i) records.push_back(random_record(random) + std::string(random() % 4000, 'x'));
  std::shuffle(records.begin(), records.end(), random);
  return records;
}

TEST(RecordFile, VisitsRunsAcrossBlocks) {
  std::mt19937_64 random(test_seed());
  TemporaryFolder folder;
  const std::string path = folder / "set.rec";
  const std::vector<std::string> records = records_of_many_lengths(random);
  write_records(path, records);
  const auto size = static_cast<std::int64_t>(records.size());
  RecordBuffer buffer;
  for (const bool checked : {true, false}) {
    if (!checked) std::filesystem::remove(checksum_path(path));
    const RecordFile file(path);
    EXPECT_EQ(file.has_checksums(), checked);
    EXPECT_EQ(visited(file, 0, size, buffer), records);
    EXPECT_THAT(visited(file, 17, 17, buffer), testing::IsEmpty());
    for (int round = 0; round < 20; ++round) {
      const auto begin = static_cast<std::int64_t>(random() % records.size());
      const auto end = begin + static_cast<std::int64_t>(random() % 5);
      if (end > size) continue;
      EXPECT_EQ(visited(file, begin, end, buffer),
                (std::vector<std::string>{records.begin() + begin, records.begin() + end}));
    }
    EXPECT_THAT(error_of<InvalidArgument>([&] { visited(file, 5, size + 1, buffer); }),
                HasSubstr(str("there are no records 5 to ", size + 1)));
    EXPECT_THAT(error_of<InvalidArgument>([&] { visited(file, -1, 1, buffer); }), HasSubstr("no records -1 to 1"));
  }
}

TEST(RecordFile, TellsOfDamageWithinARunAndGoesOn) {
  TemporaryFolder folder;
  const std::string path = folder / "set.rec";
  std::vector<std::string> records;
  for (int i = 0; i < 100; ++i) records.push_back(std::to_string(i) + std::string(100, ','));
  records[60].replace(8, 4, kMagicBytes);
  write_records(path, records);
  const RecordIndex index = read_index(index_path(path));
  flip_bit(path, index[20].offset + 50);  // its contents
  flip_bit(path, index[40].offset + 1);   // its magic number
  flip_bit(path, index[60].offset + 60);  // its second part
  flip_bit(path, index[99].offset + 5);   // its length
  const RecordFile file(path);
  const auto begins = [&](std::size_t place) {
    return str(path, ": record ", place, " at offset ", index[place].offset, " is damaged: ");
  };
  records[20] = begins(20) + "its CRC32C differs from the one kept beside the index";
  records[40] = begins(40) + "wrong magic number";
  records[60] = begins(60) + "its CRC32C differs from the one kept beside the index";
  records[99] = begins(99) + "the file ends inside the record";
  RecordBuffer buffer;
  EXPECT_EQ(visited(file, 0, 100, buffer), records);
  EXPECT_EQ(read_singly(file, 0, 100), records);
}

TEST(RecordFile, TellsOfAFileThatIsCutWhileARunIsRead) {
  TemporaryFolder folder;
  const std::string path = folder / "set.rec";
  const std::vector<std::string> records(2000, std::string(1000, 'x'));
  write_records(path, records);
  const RecordFile file(path);
  std::filesystem::resize_file(path, file.offset(1500) + 500);
  RecordBuffer buffer;
  const std::vector<std::string> told = visited(file, 0, 2000, buffer);
  ASSERT_EQ(told.size(), records.size());
  for (std::size_t i = 0; i < told.size(); ++i)
    ASSERT_THAT(told[i], i < 1500 ? HasSubstr("xxx") : HasSubstr("became shorter while it was read"));
  EXPECT_EQ(told, read_singly(file, 0, 2000));
}

TEST(RecordFile, StopsVisitingWhereTheVisitorThrows) {
  TemporaryFolder folder;
  write_records(folder / "set.rec", {"one", "two", "three"});
  const RecordFile file(folder / "set.rec");
  RecordBuffer buffer;
  std::vector<std::string> seen;
  const auto visit = [&](std::int64_t, std::string_view record, const RecordDamage*) {
    seen.emplace_back(record);
    if (record == "two") throw IoError("the visitor's own");
  };
  EXPECT_EQ(error_of<IoError>([&] { file.visit(0, 3, buffer, visit); }), "the visitor's own");
  EXPECT_THAT(seen, ElementsAre("one", "two"));
}

TEST(RecordFile, VisitsWithABufferThatWasMovedFrom) {
  TemporaryFolder folder;
  const std::vector<std::string> records{"one", "two", "three"};
  write_records(folder / "set.rec", records);
  const RecordFile file(folder / "set.rec");
  RecordBuffer first, second = std::move(first);
  EXPECT_EQ(visited(file, 0, 3, second), records);
  EXPECT_EQ(visited(file, 0, 3, first), records);  // NOLINT(bugprone-use-after-move)
  second = std::move(first);
  EXPECT_EQ(visited(file, 0, 3, first), records);  // NOLINT(bugprone-use-after-move)
}

TEST(RecordFile, IsReadByManyThreads) {
  std::mt19937_64 random(test_seed());
  TemporaryFolder folder;
  const std::vector<std::string> records = records_of_many_lengths(random);
  write_records(folder / "set.rec", records);
  const RecordFile file(folder / "set.rec");
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      RecordBuffer buffer;
      EXPECT_EQ(visited(file, 0, file.size(), buffer), records);
      EXPECT_EQ(read_singly(file, 0, file.size()), records);
    });
}

TEST(RecordIndex, IsMxnetsText) {
  TemporaryFolder folder;
  write_index(folder / "a.idx", {{0, 0}, {1, 12}, {2, 28}});
  EXPECT_EQ(read_all(folder / "a.idx"), "0\t0\n1\t12\n2\t28\n");
  write_index(folder / "b.idx", {{0, 6'000'000'000}});
  EXPECT_THAT(read_index(folder / "b.idx"), ElementsAre(RecordIndexEntry{0, 6'000'000'000}));
}

// Whatever bytes stand in the files, reading ends with records or a typed error.
TEST(RecordIo, SurvivesMutatedFiles) {
  std::mt19937_64 random(test_seed());
  TemporaryFolder folder;
  const std::string path = folder / "set.rec";
  std::vector<std::string> records(20);
  for (std::string& record : records) record = random_record(random);
  write_records(path, records);
  const std::string original[3] = {read_all(path), read_all(index_path(path)), read_all(checksum_path(path))};
  const std::string names[3] = {path, index_path(path), checksum_path(path)};
  RecordBuffer buffer;
  int unharmed = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::size_t which = random() % 3;
    std::string bytes = original[which];
    for (std::size_t n = 1 + random() % 3; n > 0 && !bytes.empty(); --n) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8)); break;
        case 1: bytes[at] = static_cast<char>(random()); break;
        case 2: bytes.resize(at); break;
        default: bytes.insert(at, std::string(random() % 9, static_cast<char>(random())));
      }
    }
    write_all(names[which], bytes);
    std::string record;
    try {
      RecordFile file(path);
      EXPECT_EQ(visited(file, 0, file.size(), buffer), read_singly(file, 0, file.size()));
      for (std::int64_t i = 0; i < file.size(); ++i) {
        RecordDamage damage;
        // What is delivered is a record of the original: a checksum of 32 bits stands against the rest.
        if (file.try_read(i, record, damage)) {
          ++unharmed;
          EXPECT_THAT(records, testing::Contains(record));
        }
      }
    } catch (const Corrupt&) {
    }
    if (which == 0) {
      RecordReader reader(path, OnDamage::kSkip);
      while (reader.next(record)) {
      }
    }
    write_all(names[which], original[which]);
  }
  EXPECT_GT(unharmed, 0);
}

}  // namespace
}  // namespace paceline::test

// convert(): splits, shards, bad entries, resumption. The sources have a test of their own.

#include <paceline/convert.h>

#include <paceline/record_tools.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "convert/source.h"
#include "convert_fixtures.h"

namespace paceline::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Rows "i,i / 8" with the label i % 3.
std::string rows(int from, int to) {
  std::string text;
  for (int i = from; i < to; ++i) text += str(i, ",", static_cast<float>(i) / 8, ",", i % 3, "\n");
  return text;
}

RecordSourceHandle table(const std::string& path) { return csv_source({path}, {.table = {.label = "2"}}); }

TEST(Convert, WritesWhatALoaderReads) {
  TemporaryFolder folder;
  write_all(folder / "rows.csv", rows(0, 100));
  const ConvertReport report = convert(folder / "set", *table(folder / "rows.csv"), {.shards = 3, .shuffle = false});
  ASSERT_THAT(report.sets, SizeIs(1));
  EXPECT_EQ(report.sets[0].manifest, folder / "set.manifest");
  EXPECT_EQ(report.sets[0].records, 100);
  EXPECT_EQ(report.unit, "rows");
  EXPECT_THAT(verify(folder / "set.manifest").problems, IsEmpty());
  const Loaded loaded = load_all(folder / "set.manifest");
  ASSERT_EQ(loaded.examples, 100);
  for (std::size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(loaded.data[2 * i], static_cast<float>(i));
    EXPECT_EQ(loaded.data[2 * i + 1], static_cast<float>(i) / 8);
    EXPECT_EQ(loaded.label[i], static_cast<float>(i % 3));
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "set.converting"));
}

TEST(Convert, CountsStatistics) {
  TemporaryFolder folder;
  write_all(folder / "rows.csv", rows(0, 100));
  convert(folder / "set", *table(folder / "rows.csv"), {.shards = 2});
  const RecordLoader loader(folder / "set.manifest");
  const DataStatistics& statistics = loader.manifest().statistics;
  EXPECT_THAT(statistics.classes, ElementsAre(std::pair{"0", 34}, std::pair{"1", 33}, std::pair{"2", 33}));
  const NumberStatistics& first = statistics.numbers.at("0");
  EXPECT_EQ(first.count, 100);
  EXPECT_DOUBLE_EQ(first.mean, 49.5);
  EXPECT_NEAR(first.deviation, std::sqrt((100.0 * 100 - 1) / 12), 1e-12);
  EXPECT_EQ(first.smallest, 0);
  EXPECT_EQ(first.largest, 99);
  EXPECT_NEAR(statistics.numbers.at("1").deviation, first.deviation / 8, 1e-12);
  EXPECT_THAT(loader.labels(), ElementsAre("0", "1", "2"));
}

TEST(Convert, GivesTheSameBytesForEveryNumberOfThreads) {
  TemporaryFolder folder;
  write_all(folder / "rows.csv", rows(0, 2000));
  for (const int threads : {1, 5}) {
    convert(folder / str("t", threads), *table(folder / "rows.csv"),
            {.shards = 3, .seed = 7, .splits = {{"a", 2}, {"b", 1}}, .threads = threads});
  }
  std::map<std::string, std::string> one = bytes_of_files(folder, "t1"), five = bytes_of_files(folder, "t5");
  EXPECT_THAT(one, SizeIs(2 * (3 * 3 + 2)));
  for (auto& [name, bytes] : one) {
    // Manifests hold the names of shards.
    if (name.ends_with(".manifest")) continue;
    EXPECT_EQ(bytes, five[name]) << name;
  }
  EXPECT_EQ(Manifest::load(folder / "t1-a.manifest").statistics, Manifest::load(folder / "t5-a.manifest").statistics);
}

TEST(Convert, SplitsByShareAndKeepsEntriesInTheirSet) {
  TemporaryFolder folder;
  const std::vector<Split> splits = {{"train", 0.8}, {"validation", 0.1}, {"test", 0.1}};
  const auto sets = [&](int count) {
    write_all(folder / "rows.csv", rows(0, count));
    convert(folder / "set", *table(folder / "rows.csv"), {.splits = splits});
    std::map<std::int64_t, std::string> where;
    for (const Split& split : splits)
      for (const std::int64_t key : keys_of(folder / ("set-" + split.name + ".manifest")))
        EXPECT_TRUE(where.emplace(key, split.name).second) << key << " is in two sets";
    EXPECT_THAT(where, SizeIs(count));
    return where;
  };
  const auto before = sets(4000);
  const auto after = sets(5000);
  for (const auto& [key, name] : before) EXPECT_EQ(after.at(key), name) << key;
  std::map<std::string, int> counts;
  for (const auto& [key, name] : after) ++counts[name];
  // Five deviations of the binomial distribution.
  EXPECT_NEAR(counts["train"], 4000, 5 * std::sqrt(5000 * 0.8 * 0.2));
  EXPECT_NEAR(counts["test"], 500, 5 * std::sqrt(5000 * 0.1 * 0.9));
}

TEST(Convert, SplitsByAColumn) {
  TemporaryFolder folder;
  std::string text = "user,value,y\n";
  for (int i = 0; i < 300; ++i) text += str("u", i % 20, ",", i, ",", i % 2, "\n");
  write_all(folder / "rows.csv", text);
  convert(folder / "set",
          *csv_source({folder / "rows.csv"}, {.table = {.label = "y", .skip = {"user"}, .split_key = "user"}}),
          {.splits = {{"train", 1}, {"test", 1}}});
  std::set<std::int64_t> train, test;
  for (const std::int64_t key : keys_of(folder / "set-train.manifest")) train.insert(key % 20);
  for (const std::int64_t key : keys_of(folder / "set-test.manifest")) test.insert(key % 20);
  EXPECT_EQ(train.size() + test.size(), 20u) << "a user is in both sets";
  EXPECT_GT(train.size(), 3u);
  EXPECT_GT(test.size(), 3u);
}

TEST(Convert, ListsBadEntries) {
  TemporaryFolder folder;
  write_all(folder / "rows.csv", rows(0, 50) + "1,x,2\n" + rows(50, 60) + "1,2\n");
  const TableOptions all_numbers{.schema = TableSchema{{{"0"}, {"1"}, {"2"}}, "2"}};
  const RecordSourceHandle source = csv_source({folder / "rows.csv"}, {.table = all_numbers});
  const std::string message = error_of<Corrupt>([&] { convert(folder / "set", *source); });
  EXPECT_THAT(message,
              HasSubstr("2 of 62 rows are bad (listed in " + folder / "set.bad.txt" + "); nothing was written"));
  EXPECT_THAT(folder.files(), ElementsAre("rows.csv", "set.bad.txt"));
  std::vector<std::string> told;
  const ConvertReport report = convert(
      folder / "set", *source,
      {.shuffle = false,
       .skip_bad = true,
       .bad_limit = 2,
       .on_bad = [&](const std::string& place, const std::string& problem) { told.push_back(place + " " + problem); }});
  EXPECT_EQ(report.bad, 2);
  EXPECT_EQ(report.sets[0].records, 60);
  EXPECT_THAT(told, ElementsAre(folder / "rows.csv" + ":51 its column '1' is 'x', expected a finite number",
                                folder / "rows.csv" + ":62 it has 2 columns, expected 3"));
  EXPECT_EQ(read_all(folder / "set.bad.txt"), folder / "rows.csv" +
                                                  ":51\tits column '1' is 'x', expected a finite number\n" +
                                                  folder / "rows.csv" + ":62\tit has 2 columns, expected 3\n");
  EXPECT_THAT(error_of<Corrupt>([&] { convert(folder / "set", *source, {.skip_bad = true, .bad_limit = 1}); }),
              HasSubstr("more than 1 rows are bad, the last of them "));
}

// Three entries, the second of which is too long for a record.
class OneTooLong final : public RecordSource {
 public:
  std::int64_t size() const override { return 3; }
  const char* unit() const override { return "entries"; }
  std::string place(std::int64_t entry) const override { return str("entry ", entry); }
  std::vector<std::uint64_t> keys() const override { return {0, 1, 2}; }
  std::unique_ptr<io::EntryEncoder> encoder(const std::function<void()>&) const override {
    return std::make_unique<Encoder>();
  }
  Manifest description() const override {
    Manifest manifest;
    manifest.payload = "bytes";
    return manifest;
  }
  std::string identity() const override { return "one too long"; }

 private:
  class Encoder final : public io::EntryEncoder {
   public:
    void encode(std::int64_t entry, std::string& record, io::Tally&) override {
      record.assign(entry == 1 ? std::size_t{1} << 29 : 10, 'x');
    }
  };
};

TEST(Convert, AnEntryThatIsTooLongIsBad) {
  TemporaryFolder folder;
  const std::string problem = "its record has 536870912 bytes, expected at most 536870911";
  EXPECT_THAT(error_of<Corrupt>([&] { convert(folder / "set", OneTooLong()); }), HasSubstr("1 of 3 entries is bad"));
  EXPECT_EQ(read_all(folder / "set.bad.txt"), "entry 1\t" + problem + "\n");
  const ConvertReport report = convert(folder / "set", OneTooLong(), {.skip_bad = true});
  EXPECT_EQ(report.bad, 1);
  EXPECT_EQ(report.sets[0].records, 2);
  EXPECT_THAT(verify(folder / "set.manifest").problems, IsEmpty());
}

TEST(Convert, SaysWhatIsWrong) {
  TemporaryFolder folder;
  write_all(folder / "rows.csv", rows(0, 5));
  const RecordSourceHandle source = table(folder / "rows.csv");
  const auto refusal = [&](const ConvertOptions& options) {
    return error_of<InvalidArgument>([&] { convert(folder / "set", *source, options); });
  };
  EXPECT_THAT(refusal({.shards = 6}), HasSubstr("5 rows cannot fill 6 shards"));
  EXPECT_THAT(refusal({.shards = 0}), HasSubstr("a data set has 1 to 10000 shards, not 0"));
  EXPECT_THAT(refusal({.splits = {{"a", 1}, {"a", 1}}}), HasSubstr("two splits are named 'a'"));
  EXPECT_THAT(refusal({.splits = {{"a", -1}}}), HasSubstr("the share of the split 'a' is -1"));
  EXPECT_THAT(refusal({.splits = {{"", 1}}}), HasSubstr("a split needs a name"));
  EXPECT_THAT(refusal({.threads = 0}), HasSubstr("at least one thread"));
  std::filesystem::create_directory(folder / "set.converting");
  write_all(folder / "set.converting/mine", "of another program");
  EXPECT_THAT(refusal({}), HasSubstr("set.converting is needed for unfinished shards, but is something else"));
  EXPECT_TRUE(std::filesystem::exists(folder / "set.converting/mine"));
}

class InterruptedConversion : public testing::Test {
 protected:
  InterruptedConversion() { write_all(folder_ / "rows.csv", rows(0, 3000)); }

  ConvertOptions options() const { return {.shards = 4, .splits = {{"a", 1}, {"b", 2}}, .threads = 2}; }

  // Ends with an error when so many entries are done.
  void interrupt_at(std::int64_t entries) {
    ConvertOptions interrupted = options();
    interrupted.progress = [&](std::int64_t done, std::int64_t) {
      if (done >= entries) throw IoError("interrupted");
    };
    const std::string message =
        error_of<IoError>([&] { convert(folder_ / "set", *table(folder_ / "rows.csv"), interrupted); });
    kept_ = message.find("shards are kept in " + folder_ / "set.converting") != std::string::npos;
    EXPECT_EQ(kept_, std::filesystem::exists(folder_ / "set.converting")) << message;
  }

  std::map<std::string, std::string> undisturbed() {
    std::filesystem::create_directory(folder_ / "whole");
    convert(folder_ / "whole/set", *table(folder_ / "rows.csv"), options());
    std::map<std::string, std::string> bytes;
    for (const auto& file : std::filesystem::directory_iterator(folder_ / "whole"))
      bytes[file.path().filename().string().substr(3)] = read_all(file.path().string());
    return bytes;
  }

  TemporaryFolder folder_;
  bool kept_ = false;
};

TEST_F(InterruptedConversion, GoesOnAtRandomPlacesToTheSameBytes) {
  const auto whole = undisturbed();
  std::mt19937_64 random(test_seed());
  int resumed = 0;
  for (int round = 0; round < 20; ++round) {
    for (const auto& [name, bytes] : bytes_of_files(folder_, "set"))
      std::filesystem::remove_all(folder_ / ("set" + name));
    interrupt_at(static_cast<std::int64_t>(random() % 3000));
    if (random() % 2) interrupt_at(static_cast<std::int64_t>(random() % 3000));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "set-a.manifest"));
    const ConvertReport report = convert(folder_ / "set", *table(folder_ / "rows.csv"), options());
    EXPECT_EQ(report.resumed > 0, kept_);
    resumed += report.resumed > 0;
    EXPECT_EQ(differences(bytes_of_files(folder_, "set"), whole), "");
  }
  EXPECT_GT(resumed, 5);
}

TEST_F(InterruptedConversion, GoesOnWhereItGaveFilesTheirNames) {
  const auto whole = undisturbed();
  interrupt_at(3000);
  ASSERT_TRUE(kept_);
  // As a kill between two renames leaves them.
  for (const std::string name :
       {"set-a-00000-of-00004.rec", "set-a-00000-of-00004.idx", "set-a-00000-of-00004.crc", "set-a-00001-of-00004.rec"})
    std::filesystem::rename(folder_ / ("set.converting/" + name), folder_ / name);
  const ConvertReport report = convert(folder_ / "set", *table(folder_ / "rows.csv"), options());
  EXPECT_EQ(report.resumed, 8);
  EXPECT_EQ(differences(bytes_of_files(folder_, "set"), whole), "");
}

TEST_F(InterruptedConversion, DoesNotTakeShardsOfOtherOptionsOrData) {
  interrupt_at(2500);
  ASSERT_TRUE(kept_);
  ConvertOptions other = options();
  other.seed = 1;
  EXPECT_EQ(convert(folder_ / "set", *table(folder_ / "rows.csv"), other).resumed, 0);
  interrupt_at(2500);
  ASSERT_TRUE(kept_);
  write_all(folder_ / "rows.csv", rows(0, 3001));
  EXPECT_EQ(convert(folder_ / "set", *table(folder_ / "rows.csv"), options()).resumed, 0);
}

TEST_F(InterruptedConversion, MakesDamagedShardsAgain) {
  const auto whole = undisturbed();
  interrupt_at(3000);
  ASSERT_TRUE(kept_);
  flip_bit(folder_ / "set.converting/set-a-00000-of-00004.idx", 1);
  flip_bit(folder_ / "set.converting/set-a-00001-of-00004.rec.done", 30);
  std::filesystem::resize_file(folder_ / "set.converting/set-a-00002-of-00004.rec", 100);
  EXPECT_EQ(convert(folder_ / "set", *table(folder_ / "rows.csv"), options()).resumed, 5);
  EXPECT_EQ(differences(bytes_of_files(folder_, "set"), whole), "");
}

TEST_F(InterruptedConversion, TwoAtATimeAreRefused) {
  ConvertOptions outer = options();
  std::string message;
  outer.progress = [&](std::int64_t done, std::int64_t) {
    if (done == 0 && message.empty()) {
      message = error_of<InvalidArgument>([&] { convert(folder_ / "set", *table(folder_ / "rows.csv"), options()); });
    }
  };
  convert(folder_ / "set", *table(folder_ / "rows.csv"), outer);
  EXPECT_THAT(message, HasSubstr("another process is converting in " + folder_ / "set.converting"));
  EXPECT_THAT(verify(folder_ / "set-a.manifest").problems, IsEmpty());
}

TEST_F(InterruptedConversion, LeavesAnOlderDataSetAlone) {
  convert(folder_ / "set", *table(folder_ / "rows.csv"), options());
  const auto before = bytes_of_files(folder_, "set-");
  write_all(folder_ / "rows.csv", rows(0, 3100));
  interrupt_at(2500);
  EXPECT_EQ(differences(bytes_of_files(folder_, "set-"), before), "");
}

}  // namespace
}  // namespace paceline::test

// The order in which loaders deliver, by the numbers of their records: whatever the workers, through kills and
// resumptions, and for a data set of 10^8 records.

#include <paceline/record_loader.h>

#include <gmock/gmock.h>
#include <paceline/error.h>
#include <paceline/memory_iterator.h>

#include <charconv>
#include <fstream>
#include <map>
#include <set>

#include "fixtures.h"

namespace paceline::test {
namespace {

using testing::Each;
using testing::ElementsAreArray;
using testing::HasSubstr;

// Records that are their numbers, from `first` on, in shards of about the same size.
std::string write_numbers(const TemporaryFolder& folder, int count, int shards, const std::string& name = "numbers",
                          int first = 0) {
  DatasetWriter writer(folder / name, shards);
  for (int i = 0; i < count; ++i) writer.write(((i + 1) * shards - 1) / count, i, std::to_string(first + i));
  Manifest manifest;
  manifest.payload = "bytes";
  return writer.finish(manifest);
}

DecoderFactory number_decoder() {
  return decoders::function({{"label", {1}, DType::kInt32}},
                            [](std::string_view record, std::uint64_t, std::span<void* const> to) {
                              auto& number = *static_cast<std::int32_t*>(to[0]);
                              std::from_chars(record.data(), record.data() + record.size(), number);
                            });
}

std::vector<int> numbers_of(const Batch& batch) { return batch.label.to_vector<std::int32_t>(); }

std::vector<std::int64_t> positions_of(const Batch& batch) {
  std::vector<std::int64_t> positions;
  for (const Range& range : batch.positions)
    for (std::int64_t p = range.begin; p < range.end; ++p) positions.push_back(p);
  return positions;
}

RecordLoaderOptions options_of(RecordLoaderOptions options, Part part = {}) {
  options.decoder = number_decoder();
  options.source = fixed_source(part);
  options.decode_threads = 2;
  return options;
}

// What stands at each position, as one worker sees it.
std::vector<int> order_of(const std::string& manifest, const RecordLoaderOptions& options, std::int64_t epoch) {
  RecordLoader loader(manifest, options_of(options));
  std::vector<int> numbers(static_cast<std::size_t>(loader.size()), -1);
  for (const Batch& batch : EpochRange(loader, epoch, {})) {
    const std::vector<int> here = numbers_of(batch);
    const std::vector<std::int64_t> positions = positions_of(batch);
    for (std::size_t i = 0; i < here.size(); ++i) numbers.at(static_cast<std::size_t>(positions.at(i))) = here[i];
  }
  return numbers;
}

struct Dealing {
  const char* name;
  RecordLoaderOptions options;
};
std::ostream& operator<<(std::ostream& out, const Dealing& dealing) { return out << dealing.name; }

class LoaderOrder : public testing::TestWithParam<Dealing> {};

TEST_P(LoaderOrder, IsTheSameForEveryNumberOfWorkersResumedAnywhere) {
  TemporaryFolder folder;
  const int size = 397;
  const std::string manifest = write_numbers(folder, size, 9);
  std::mt19937_64 random(test_seed());
  for (int place = 0; place < 20; ++place) {
    RecordLoaderOptions options = GetParam().options;
    options.shuffle = random() % 3;
    const std::int64_t epoch = static_cast<std::int64_t>(random() % 4);
    const std::vector<int> expected = order_of(manifest, options, epoch);
    // What some workers had done when the job ended.
    const int before = std::vector{1, 2, 3, 8}[random() % 4];
    RangeSet done;
    for (int index = 0; index < before; ++index) {
      RecordLoader loader(manifest, options_of(options, {index, before}));
      loader.start(epoch);
      Batch batch;
      for (std::uint64_t n = random() % 10; n > 0 && loader.next(batch); --n) loader.commit(batch);
      for (const Range& range : loader.committed().ranges()) done.add(range);
    }
    for (const int count : {1, 2, 3, 8}) {
      std::vector<int> delivered(expected.size(), -1);
      for (int index = 0; index < count; ++index) {
        RecordLoader loader(manifest, options_of(options, {index, count}));
        for (const Batch& batch : EpochRange(loader, epoch, RangeSet::parse(done.text()))) {
          const std::vector<int> numbers = numbers_of(batch);
          const std::vector<std::int64_t> positions = positions_of(batch);
          ASSERT_EQ(numbers.size(), positions.size());
          for (std::size_t i = 0; i < numbers.size(); ++i) {
            int& at = delivered.at(static_cast<std::size_t>(positions[i]));
            EXPECT_EQ(at, -1) << "position " << positions[i] << " twice";
            at = numbers[i];
          }
        }
      }
      for (std::size_t p = 0; p < expected.size(); ++p)
        EXPECT_EQ(delivered[p], done.contains(static_cast<std::int64_t>(p)) ? -1 : expected[p])
            << "position " << p << " with " << count << " workers";
    }
  }
}

// Who has what of an epoch; the workers of one process.
class Ledger {
 public:
  RangeSet left, done;
  int count = 1;

  class Worker final : public Source {
   public:
    Worker(Ledger& ledger, int index) : ledger_(ledger), index_(index) {}
    Part part(std::int64_t) override { return {index_, ledger_.count}; }
    void begin(std::int64_t, const EpochPlan& plan) override { mine_ = plan.mine; }
    void commit(std::int64_t, const std::vector<Range>& positions, const std::string&) override {
      for (const Range& range : positions) {
        mine_.subtract(range);
        ledger_.done.add(range);
      }
    }
    RangeSet take_over(std::int64_t, std::int64_t, bool) override {
      mine_ = std::exchange(ledger_.left, {});
      return mine_;
    }
    void die() {
      for (const Range& range : mine_.ranges()) ledger_.left.add(range);
    }

   private:
    Ledger& ledger_;
    int index_;
    RangeSet mine_;
  };
};

// Workers are killed between a batch and its commit; the others take over, or the job ends and resumes with others.
TEST_P(LoaderOrder, SurvivesKillsAndResumptions) {
  TemporaryFolder folder;
  const std::string manifest = write_numbers(folder, 251, 7);
  std::mt19937_64 random(test_seed());
  for (int program = 0; program < 20; ++program) {
    RecordLoaderOptions options = GetParam().options;
    options.shuffle = random();
    const std::vector<int> expected = order_of(manifest, options, program);
    std::vector<int> counted(expected.size());
    std::int64_t twice = 0, delivered = 0;
    Ledger ledger;
    struct Worker {
      std::shared_ptr<Ledger::Worker> source;
      std::unique_ptr<RecordLoader> loader;
    };
    while (ledger.done.count() < 251) {
      ledger.left = {};
      ledger.count = std::vector{1, 2, 3, 8}[random() % 4];
      const RangeSet resumed = ledger.done;
      std::vector<Worker> workers;
      for (int index = 0; index < ledger.count; ++index) {
        auto source = std::make_shared<Ledger::Worker>(ledger, index);
        RecordLoaderOptions mine = options_of(options);
        mine.source = source;
        workers.push_back({source, std::make_unique<RecordLoader>(manifest, mine)});
        workers.back().loader->start(program, resumed);
      }
      for (std::uint64_t steps = 5 + random() % 60; steps > 0 && !workers.empty(); --steps) {
        const std::size_t which = random() % workers.size();
        Worker& worker = workers[which];
        Batch batch;
        if (!worker.loader->next(batch)) {
          if (!worker.loader->take_over()) workers.erase(workers.begin() + static_cast<std::ptrdiff_t>(which));
          continue;
        }
        const std::vector<int> numbers = numbers_of(batch);
        const std::vector<std::int64_t> positions = positions_of(batch);
        for (std::size_t i = 0; i < numbers.size(); ++i) {
          EXPECT_EQ(numbers[i], expected[static_cast<std::size_t>(positions[i])]);
          EXPECT_FALSE(ledger.done.contains(positions[i])) << "a committed position was delivered again";
        }
        delivered += batch.examples;
        if (random() % 6 > 0) {
          worker.loader->commit(batch);
          for (const std::int64_t p : positions) ++counted[static_cast<std::size_t>(p)];
        } else {
          twice += batch.examples;  // these are delivered again
          worker.source->die();
          workers.erase(workers.begin() + static_cast<std::ptrdiff_t>(which));
        }
      }
    }
    EXPECT_THAT(counted, Each(1));
    EXPECT_EQ(delivered, 251 + twice);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, LoaderOrder,
    testing::Values(Dealing{"Windows", {.batch = 6, .window = 3}}, Dealing{"Uniform", {.batch = 6, .window = 0}},
                    Dealing{"Records", {.batch = 6, .partition = Partition::kRecords}},
                    Dealing{"GlobalBatch", {.batch = 6, .window = 2, .global_batch = 24}},
                    Dealing{"Nodes", {.batch = 6, .window = 2, .virtual_nodes = 6}},
                    Dealing{"NodesInSteps", {.batch = 6, .window = 1, .virtual_nodes = 4, .global_batch = 24}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(RecordLoaderOrder, NamesWhatDecidesIt) {
  TemporaryFolder folder, elsewhere;
  const std::string manifest = write_numbers(folder, 100, 4), larger = write_numbers(folder, 101, 4, "larger");
  const auto order = [&](const std::string& set, const RecordLoaderOptions& options, Part part = {}) {
    return RecordLoader(set, options_of(options, part)).order();
  };
  const std::string first = order(manifest, {.batch = 8, .shuffle = 5, .window = 2});
  EXPECT_THAT(first, testing::MatchesRegex("seed=5 window=2 data=[0-9a-f]{8}"));
  // Neither the batch nor the workers nor the place of the files.
  for (const std::string& name : folder.files()) std::filesystem::copy(folder / name, elsewhere / name);
  EXPECT_EQ(order(elsewhere / "numbers.manifest", {.batch = 9, .shuffle = 5, .window = 2}, {1, 3}), first);
  EXPECT_NE(order(larger, {.shuffle = 5, .window = 2}), first);
  EXPECT_NE(order(manifest, {.shuffle = 6, .window = 2}), first);
  EXPECT_NE(order(manifest, {.shuffle = 5, .window = 3}), first);
  EXPECT_NE(order(manifest, {.shuffle = 5, .window = 2, .virtual_nodes = 2}), first);
  EXPECT_THAT(order(manifest, {}), testing::StartsWith("unshuffled data="));
  EXPECT_EQ(order(manifest, {.shuffle = 5}), order(manifest, {.shuffle = 5, .window = 0}));  // all are 4
}

TEST(RecordLoaderOrder, OpensAWindowOfShardsAtATime) {
  TemporaryFolder folder;
  const std::string manifest = write_numbers(folder, 400, 40);
  RecordLoader loader(manifest, options_of({.batch = 5, .shuffle = 1, .window = 4}));
  std::set<int> seen;
  std::set<std::string> opened;
  for (const Batch& batch : EpochRange(loader, 0, {})) {
    for (const int number : numbers_of(batch)) seen.insert(number);
    const std::vector<std::string> open = loader.open_shards();
    EXPECT_LE(open.size(), 8u);
    opened.insert(open.begin(), open.end());
  }
  EXPECT_EQ(seen.size(), 400u);
  EXPECT_EQ(opened.size(), 40u);
}

TEST(RecordLoaderOrder, MissesAShardAtTheStartThatItNeedsLater) {
  TemporaryFolder folder;
  const std::string manifest = write_numbers(folder, 400, 40);
  RecordLoader loader(manifest, options_of({.batch = 5, .window = 2}));
  loader.start(0);
  const std::string last = folder / "numbers-00039-of-00040.rec";
  std::filesystem::resize_file(last, std::filesystem::file_size(last) - 4);
  EXPECT_THAT(error_of<Corrupt>([&] { loader.start(1); }), HasSubstr(last + " has "));
  std::filesystem::remove(last);
  EXPECT_THAT(error_of<IoError>([&] { loader.start(1); }), HasSubstr(last));
}

std::int64_t resident_megabytes() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * sysconf(_SC_PAGESIZE) >> 20;
}

// 1,000 shards of 10^5 records, which are one file. Its memory is that of the open shards, and not of the data set.
TEST(RecordLoaderOrder, StartsAndResumesIn100MillionRecords) {
  TemporaryFolder folder;
  constexpr int kShard = 100000, kShards = 1000;
  Manifest manifest = Manifest::load(write_numbers(folder, kShard, 1));
  const Shard shard = manifest.shards.front();
  manifest.shards.assign(kShards, shard);
  manifest.save(folder / "large.manifest");
  const std::int64_t before = resident_megabytes();
  const Part part{3, 8};
  RecordLoader loader(folder / "large.manifest", options_of({.batch = 256, .shuffle = 1, .global_batch = 2048}, part));
  ASSERT_EQ(loader.size(), std::int64_t{kShard} * kShards);
  Batch batch;
  loader.start(0);
  ASSERT_TRUE(loader.next(batch));
  const std::vector<int> first = numbers_of(batch);
  // In the middle of an epoch, too, whose order is the same.
  RangeSet done;
  done.add({0, loader.size() / 2 + 5});
  loader.start(0, done);
  ASSERT_TRUE(loader.next(batch));
  EXPECT_GE(batch.positions.front().begin, loader.size() / 2);
  EXPECT_LT(batch.positions.front().begin, loader.size() / 2 + 4096);
  const std::int64_t taken = resident_megabytes() - before;
  std::printf("%lld MB\n", static_cast<long long>(taken));
  EXPECT_LT(taken, 1000);
  loader.start(0);
  ASSERT_TRUE(loader.next(batch));
  EXPECT_THAT(numbers_of(batch), ElementsAreArray(first));
}

}  // namespace
}  // namespace paceline::test

// What all iterators share, seen through those that need no records.

#include <paceline/cores.h>
#include <paceline/csv.h>
#include <paceline/error.h>
#include <paceline/generator.h>
#include <paceline/libsvm.h>
#include <paceline/memory_iterator.h>
#include <paceline/mutex.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <sstream>
#include <thread>

#include "fixtures.h"
#include "pipeline.h"
#include "stage_clock.h"

namespace paceline::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kExamples = 101;

struct Dealing {
  std::int64_t batch = 8;
  std::optional<std::uint64_t> shuffle = {};
  std::shared_ptr<Source> source = {};
  int threads = 0;
};

// Iterators whose example i has the label i, and the data i, 2 i.
using Make = std::function<std::unique_ptr<DataIterator>(const Dealing&, const TemporaryFolder&)>;

void write_pair(std::int64_t number, std::span<void* const> to) {
  static_cast<float*>(to[0])[0] = static_cast<float>(number);
  static_cast<float*>(to[0])[1] = static_cast<float>(2 * number);
  *static_cast<std::int32_t*>(to[1]) = static_cast<std::int32_t>(number);
}

const std::vector<ExampleArray> kPair{{"data", {2}}, {"label", {}, DType::kInt32}};

std::unique_ptr<DataIterator> csv(const Dealing& dealing, const TemporaryFolder& folder) {
  std::string text = "a,b,y\n";
  for (std::int64_t i = 0; i < kExamples; ++i) text += str(i, ",", 2 * i, ",", i, "\n");
  write_all(folder / "rows.csv", text);
  return std::make_unique<CsvIterator>(folder / "rows.csv", CsvIteratorOptions{.batch = dealing.batch,
                                                                               .shuffle = dealing.shuffle,
                                                                               .source = dealing.source,
                                                                               .label = "y",
                                                                               .decode_threads = dealing.threads});
}

std::unique_ptr<DataIterator> libsvm(const Dealing& dealing, const TemporaryFolder& folder) {
  std::string text = "# rows\n\n";
  for (std::int64_t i = 0; i < kExamples; ++i) text += str("  \n", i, " 1:", i, " 2:", 2 * i, " # row\n");
  write_all(folder / "rows.svm", text);
  return std::make_unique<LibsvmIterator>(folder / "rows.svm",
                                          LibsvmIteratorOptions{.batch = dealing.batch,
                                                                .shuffle = dealing.shuffle,
                                                                .source = dealing.source,
                                                                .features = 2,
                                                                .class_labels = true,
                                                                .decode_threads = dealing.threads});
}

std::unique_ptr<DataIterator> memory(const Dealing& dealing, const TemporaryFolder&) {
  std::vector<float> data;
  std::vector<std::int32_t> label;
  for (std::int32_t i = 0; i < kExamples; ++i) {
    data.insert(data.end(), {static_cast<float>(i), static_cast<float>(2 * i)});
    label.push_back(i);
  }
  return std::make_unique<MemoryIterator>(NDArray::from(data, {kExamples, 2}), NDArray::from(label, {kExamples}),
                                          MemoryIteratorOptions{.batch = dealing.batch,
                                                                .shuffle = dealing.shuffle,
                                                                .source = dealing.source,
                                                                .copy_threads = dealing.threads});
}

std::unique_ptr<DataIterator> generator(const Dealing& dealing, const TemporaryFolder&) {
  return std::make_unique<GeneratorIterator>(
      kPair, kExamples, [](std::int64_t number, std::uint64_t, std::span<void* const> to) { write_pair(number, to); },
      GeneratorOptions{.batch = dealing.batch,
                       .shuffle = dealing.shuffle,
                       .source = dealing.source,
                       .decode_threads = dealing.threads});
}

std::unique_ptr<DataIterator> stream(const Dealing& dealing, const TemporaryFolder&) {
  GeneratorIterator::Begin begin = [](std::int64_t) {
    return [number = std::int64_t{0}](std::span<void* const> to) mutable {
      if (number == kExamples) return false;
      write_pair(number++, to);
      return true;
    };
  };
  return std::make_unique<GeneratorIterator>(kPair, kExamples, std::move(begin),
                                             GeneratorOptions{.batch = dealing.batch, .source = dealing.source});
}

struct Kind {
  const char* name;
  Make make;
  bool shuffles = true;
};

class WithoutRecords : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<DataIterator> make(Dealing dealing) {
    if (!GetParam().shuffles) dealing.shuffle.reset();
    return GetParam().make(dealing, folder_);
  }
  TemporaryFolder folder_;
};

// Which example stood at which position.
using Seen = std::map<std::int64_t, std::int32_t>;

void add(Seen& seen, const Batch& batch) {
  const auto labels = batch.label.to_vector<std::int32_t>();
  const auto data = batch.data.to_vector<float>();
  ASSERT_EQ(batch.examples, static_cast<std::int64_t>(labels.size()));
  ASSERT_EQ(data.size(), 2 * labels.size());
  std::size_t i = 0;
  for (const Range& range : batch.positions) {
    for (std::int64_t position = range.begin; position < range.end; ++position, ++i) {
      EXPECT_EQ(data.at(2 * i), static_cast<float>(labels.at(i)));
      EXPECT_EQ(data.at(2 * i + 1), static_cast<float>(2 * labels.at(i)));
      EXPECT_TRUE(seen.emplace(position, labels.at(i)).second) << "position " << position << " twice";
    }
  }
  EXPECT_EQ(i, labels.size());
}

void expect_complete(const Seen& seen) {
  ASSERT_EQ(seen.size(), static_cast<std::size_t>(kExamples));
  std::vector<int> times(kExamples);
  for (const auto& [position, example] : seen) ++times.at(static_cast<std::size_t>(example));
  EXPECT_THAT(times, testing::Each(1));
}

Seen drain(DataIterator& data) {
  Seen seen;
  for (Batch batch; data.next(batch);) add(seen, batch);
  return seen;
}

TEST_P(WithoutRecords, APositionNamesTheSameExampleForEveryNumberOfPartsAndThreads) {
  Seen reference;
  for (const int count : {1, 2, 3, 7}) {
    Seen seen;
    for (int index = 0; index < count; ++index) {
      const auto data = make({.shuffle = 5, .source = fixed_source({index, count}), .threads = 1 + index});
      EXPECT_EQ(data->size(), kExamples);
      EXPECT_EQ(data->batch_shape(), (Shape{8, 2}));
      EXPECT_TRUE(data->has_source());
      data->start(3);
      seen.merge(drain(*data));
      EXPECT_FALSE(data->take_over());
    }
    expect_complete(seen);
    if (count == 1) reference = seen;
    EXPECT_EQ(seen, reference);
  }
}

TEST_P(WithoutRecords, ShufflesByEpochAndResumesFromWhatWasCommitted) {
  const auto whole = make({.shuffle = 5});
  whole->start(0);
  const Seen first = drain(*whole);
  whole->start(1);
  const Seen second = drain(*whole);
  EXPECT_EQ(first != second, GetParam().shuffles);
  std::mt19937_64 random(test_seed());
  for (int attempt = 0; attempt < 5; ++attempt) {
    const auto data = make({.shuffle = 5});
    data->start(1);
    Seen seen;
    Batch batch;
    for (std::uint64_t i = random() % 14; i > 0 && data->next(batch); --i) {
      add(seen, batch);
      data->commit(batch);
    }
    const RangeSet saved = RangeSet::parse(data->committed().text());
    const int parts = 1 + static_cast<int>(random() % 3);
    for (int index = 0; index < parts; ++index) {
      const auto rest = make({.shuffle = 5, .source = fixed_source({index, parts})});
      rest->start(1, saved);
      seen.merge(drain(*rest));
    }
    EXPECT_EQ(seen, second);
  }
}

// The first half is this process's, then what the other left.
class HalfSource final : public Source {
 public:
  Part part(std::int64_t) override { return {0, 2}; }
  void begin(std::int64_t, const EpochPlan& plan) override {
    left_ = plan.all;
    for (const Range& range : plan.mine.ranges()) left_.subtract(range);
  }
  void commit(std::int64_t, const std::vector<Range>&, const std::string&) override {}
  RangeSet take_over(std::int64_t, std::int64_t, bool) override { return std::exchange(left_, {}); }

 private:
  RangeSet left_;
};

TEST_P(WithoutRecords, TakesOverWhatLostWorkersLeft) {
  const auto data = make({.shuffle = 2, .source = std::make_shared<HalfSource>()});
  data->start(0);
  Seen seen = drain(*data);
  EXPECT_LT(seen.size(), 60u);
  ASSERT_TRUE(data->take_over());
  seen.merge(drain(*data));
  expect_complete(seen);
  EXPECT_FALSE(data->take_over());
}

TEST_P(WithoutRecords, SaysWhereItsTimeWent) {
  const auto data = make({.threads = 1});
  EXPECT_EQ(data->timing().batches, 0);
  data->start(0);
  drain(*data);
  const LoaderTiming timing = data->timing();
  EXPECT_EQ(timing.batches, 13);
  EXPECT_EQ(timing.examples, kExamples);
  EXPECT_GT(timing.seconds, 0);
  EXPECT_GT(timing.work(), 0);
  EXPECT_GE(timing.seconds, timing.waited);
  EXPECT_EQ(timing.threads, 1);
  EXPECT_EQ(data->timing().seconds, timing.seconds) << "the part has ended";
  std::ostringstream text;
  text << timing;
  EXPECT_THAT(text.str(), HasSubstr(" for data; 1 thread, busy "));
  EXPECT_THAT(text.str(), HasSubstr("; bound by the "));
}

INSTANTIATE_TEST_SUITE_P(All, WithoutRecords,
                         testing::Values(Kind{"Csv", csv}, Kind{"Libsvm", libsvm}, Kind{"Memory", memory},
                                         Kind{"Generator", generator}, Kind{"Stream", stream, false}),
                         [](const auto& info) { return info.param.name; });

TEST(MemoryIterator, KeepsTypesAndNames) {
  const NDArray pixels = NDArray::from(std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6}, {3, 2, 1});
  const NDArray label = NDArray::from(std::vector<std::int64_t>{7, 8, 9}, {3});
  const NDArray weight = NDArray::from(std::vector<double>{0.1, 0.2, 0.3}, {3, 1});
  for (const int threads : {0, 2}) {
    MemoryIterator data({{"weight", weight}, {"label", label}, {"data", pixels}},
                        {.batch = 2, .copy_threads = threads});
    EXPECT_EQ(data.batch_shape(), (Shape{2, 2, 1}));
    data.start(0);
    Batch batch;
    ASSERT_TRUE(data.next(batch));
    ASSERT_TRUE(data.next(batch));
    EXPECT_EQ(batch.data.shape(), (Shape{1, 2, 1}));
    EXPECT_THAT(batch.data.to_vector<std::uint8_t>(), ElementsAre(5, 6));
    EXPECT_THAT(batch.label.to_vector<std::int64_t>(), ElementsAre(9));
    EXPECT_THAT(batch.array("weight").to_vector<double>(), ElementsAre(0.3));
    EXPECT_EQ(batch.array("weight").shape(), (Shape{1, 1}));
    EXPECT_FALSE(data.next(batch));
  }
  MemoryIterator data({{"data", pixels}}, {.batch = 3});
  pixels.fill(0);
  data.start(0);
  Batch batch;
  ASSERT_TRUE(data.next(batch));
  EXPECT_THAT(batch.data.to_vector<std::uint8_t>(), ElementsAre(1, 2, 3, 4, 5, 6)) << "they were read once";
  const auto refused = [](const NamedArrays& arrays) {
    return error_of<InvalidArgument>([&] { MemoryIterator none(arrays); });
  };
  EXPECT_THAT(refused({}), HasSubstr("needs an array"));
  EXPECT_THAT(refused({{"a", label}, {"b", NDArray::zeros({2})}}), HasSubstr("'b' has 2 rows and 'a' has 3"));
  EXPECT_THAT(refused({{"a", label}, {"a", label}}), HasSubstr("two arrays 'a'"));
  EXPECT_THAT(refused({{"a", NDArray::zeros({})}}), HasSubstr("expected one with examples"));
}

TEST(LibsvmIterator, GivesSparseRows) {
  TemporaryFolder folder;
  write_all(folder / "a.svm", "1 3:0.5 1:2\n# nothing\n0\n\n-1.5 2:1\nx\n4 1:1 3:-1");
  LibsvmIteratorOptions options{.batch = 9, .features = 3, .sparse = true, .on_damage = OnDamage::kSkip};
  LibsvmIterator data(folder / "a.svm", options);
  EXPECT_EQ(data.size(), 5);
  data.start(0);
  Batch batch;
  ASSERT_TRUE(data.next(batch));
  EXPECT_EQ(batch.examples, 4);
  EXPECT_TRUE(batch.data.is_none());
  EXPECT_THAT(batch.label.to_vector<float>(), ElementsAre(1, 0, -1.5, 4));
  const SparseRows rows = data.sparse_rows(batch);
  EXPECT_EQ(rows.shape, (Shape{4, 3}));
  EXPECT_THAT(rows.starts.to_vector<std::int64_t>(), ElementsAre(0, 2, 2, 3, 5));
  EXPECT_THAT(rows.columns.to_vector<std::int64_t>(), ElementsAre(2, 0, 1, 0, 2));
  EXPECT_THAT(rows.values.to_vector<float>(), ElementsAre(0.5, 2, 1, 1, -1));
  EXPECT_EQ(data.damaged(), 1);

  options.on_damage = OnDamage::kFail;
  LibsvmIterator strict(folder / "a.svm", options);
  strict.start(0);
  EXPECT_THAT(error_of<Corrupt>([&] { strict.next(batch); }), HasSubstr("a.svm:6: 'x' is no label"));
  options.sparse = false;
  LibsvmIterator dense(folder / "a.svm", options);
  dense.start(0);
  EXPECT_THAT(error_of<Corrupt>([&] { dense.next(batch); }), HasSubstr("a.svm:6: 'x' is no label"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { LibsvmIterator none(folder / "a.svm", {}); }),
              HasSubstr("features is 0"));
}

// Batches of rows without elements, as the first ones of a file may be.
TEST(LibsvmIterator, ABatchMayHaveNoElements) {
  TemporaryFolder folder;
  write_all(folder / "a.svm", "1\n2\n3 1:1\n");
  LibsvmIterator data(folder / "a.svm", {.batch = 2, .features = 3, .sparse = true});
  data.start(0);
  Batch batch;
  ASSERT_TRUE(data.next(batch));
  EXPECT_EQ(data.sparse_rows(batch).values.size(), 0);
  EXPECT_THAT(data.sparse_rows(batch).starts.to_vector<std::int64_t>(), ElementsAre(0, 0, 0));
}

TEST(GeneratorIterator, HandsOnWhatItsFunctionThrows) {
  GeneratorIterator data(kPair, 100,
                         [](std::int64_t number, std::uint64_t, std::span<void* const> to) {
                           if (number == 33) throw std::runtime_error("no example 33");
                           write_pair(number, to);
                         },
                         {.batch = 10});
  data.start(0);
  Batch batch;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(data.next(batch));
  EXPECT_THAT(error_of<std::runtime_error>([&] { data.next(batch); }), HasSubstr("no example 33"));
  EXPECT_THAT(error_of<std::runtime_error>([&] { data.next(batch); }), HasSubstr("no example 33"));
  EXPECT_THAT(error_of<InvalidArgument>([] {
                GeneratorIterator(kPair, 5, GeneratorIterator::Begin([](std::int64_t) { return nullptr; }),
                                  {.shuffle = 1});
              }),
              HasSubstr("are not shuffled"));
}

TEST(GeneratorIterator, SaysWhereAStreamIsTooShort) {
  GeneratorIterator data(kPair, 100, GeneratorIterator::Begin([](std::int64_t) {
                           return [number = 0](std::span<void* const> to) mutable {
                             if (number == 15) return false;
                             write_pair(number++, to);
                             return true;
                           };
                         }),
                         {.batch = 10});
  data.start(0);
  Batch batch;
  ASSERT_TRUE(data.next(batch));
  EXPECT_THAT(error_of<InvalidArgument>([&] { data.next(batch); }), HasSubstr("ended after 15 examples of 100"));
}

TEST(GeneratorIterator, SeedsFollowFromSeedEpochAndPosition) {
  const auto seeds = [](std::uint64_t shuffle, std::int64_t epoch, int threads) {
    GeneratorIterator data(
        {{"data", {}, DType::kInt64}}, 50,
        [](std::int64_t, std::uint64_t seed, std::span<void* const> to) { std::memcpy(to[0], &seed, sizeof seed); },
        {.batch = 7, .shuffle = shuffle, .decode_threads = threads});
    data.start(epoch);
    std::vector<std::int64_t> all;
    for (Batch batch; data.next(batch);) {
      const auto more = batch.data.to_vector<std::int64_t>();
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  };
  EXPECT_EQ(seeds(1, 0, 1), seeds(1, 0, 4));
  EXPECT_NE(seeds(1, 0, 1), seeds(1, 1, 1));
  EXPECT_NE(seeds(1, 0, 1), seeds(2, 0, 1));
}

TEST(Pipeline, WantsAThreadWhereItIsWaitedForAndACoreIsIdle) {
  EXPECT_TRUE(io::wants_thread(1, 0.5, 1, 2));
  EXPECT_FALSE(io::wants_thread(1, 0.05, 1, 2)) << "hardly waited";
  EXPECT_FALSE(io::wants_thread(1, 0.5, 1.8, 2)) << "all cores work";
  EXPECT_FALSE(io::wants_thread(1, 1, 0.9, 1));
  EXPECT_TRUE(io::wants_thread(10, 2, 30, 4));
}

// Batches come only once all threads of the budget make one: the pipeline has to start them by itself.
TEST(Pipeline, GrowsToTheBudgetWhileItIsWaitedFor) {
  if (core_budget() < 2) GTEST_SKIP() << "one core has one thread";
  const int budget = core_budget();
  std::atomic<int> most = 0;
  std::atomic<bool> stop = false;
  {
    // Each example takes two milliseconds of waiting, as those from a slow disk do.
    GeneratorIterator data({{"data", {}}}, 200'000,
                           [&](std::int64_t, std::uint64_t, std::span<void* const> to) {
                             *static_cast<float*>(to[0]) = 0;
                             if (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(2));
                           },
                           {.batch = 1});
    data.start(0);
    Batch batch;
    while (most < budget && data.next(batch)) most = std::max(most.load(), data.timing().threads);
    stop = true;
    EXPECT_EQ(data.timing().prefetch, std::max(budget + 2, 4));
    data.start(1);
    ASSERT_TRUE(data.next(batch));
    EXPECT_EQ(data.timing().threads, budget) << "they stay";
  }
  EXPECT_EQ(most, budget);
}

TEST(Pipeline, MakesNoMoreBatchesThanMayBeReady) {
  std::atomic<std::int64_t> made = 0;
  GeneratorIterator data({{"data", {}}}, 1000,
                         [&](std::int64_t, std::uint64_t, std::span<void* const> to) {
                           *static_cast<float*>(to[0]) = 0;
                           ++made;
                         },
                         {.batch = 1, .decode_threads = 2, .prefetch = 5});
  data.start(0);
  Batch batch;
  for (std::int64_t taken = 1; taken <= 200; ++taken) {
    ASSERT_TRUE(data.next(batch));
    EXPECT_LE(made, taken + 5);
  }
}

TEST(StageClock, GivesEachSecondToOneStage) {
  using io::Stage;
  const auto spin = [] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
    while (std::chrono::steady_clock::now() < end) {
    }
  };
  const io::StageScope outside(Stage::kCopy);  // without a clock: nothing
  io::StageSeconds seconds = {};
  const auto began = std::chrono::steady_clock::now();
  {
    io::StageClock clock;
    const io::StageScope decode(Stage::kDecode);
    spin();
    {
      const io::StageScope read(Stage::kRead);
      spin();
    }
    spin();
    seconds = clock.seconds();
  }
  const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  EXPECT_GE(seconds[static_cast<std::size_t>(Stage::kDecode)], 400e-6);
  EXPECT_GE(seconds[static_cast<std::size_t>(Stage::kRead)], 200e-6);
  EXPECT_EQ(seconds[static_cast<std::size_t>(Stage::kCopy)], 0);
  EXPECT_LE(std::accumulate(seconds.begin(), seconds.end(), 0.0), all);
}

TEST(LoaderTiming, NamesWhatBindsIt) {
  LoaderTiming timing{.seconds = 10, .waited = 4, .read = 1, .decode = 6, .augment = 2, .copy = 1, .threads = 2};
  EXPECT_EQ(bound_of(timing), LoaderBound::kDecoder);
  std::ostringstream text;
  text << timing;
  EXPECT_EQ(text.str(),
            "waited 4.00 s of 10.00 s (40 %) for data; 2 threads, busy 50 %: read 10 %, decode 60 %, augment 20 %, "
            "copy 10 %; bound by the decoder");
  timing.read = 9;
  EXPECT_EQ(bound_of(timing), LoaderBound::kDisk);
  timing.fetch = 10;
  EXPECT_STREQ(name_of(bound_of(timing)), "network");
  timing.copy = 11;
  EXPECT_STREQ(name_of(bound_of(timing)), "copy");
  timing.waited = 0.5;
  EXPECT_STREQ(name_of(bound_of(timing)), "consumer");
}

}  // namespace
}  // namespace paceline::test

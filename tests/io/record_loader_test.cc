#include <paceline/record_loader.h>

#include <gmock/gmock.h>
#include <paceline/error.h>
#include <paceline/memory_iterator.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "fixtures.h"

namespace paceline::test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// What a loader delivered: record numbers by position.
using Seen = std::map<std::int64_t, int>;

std::vector<std::int64_t> positions_of(const Batch& batch) {
  std::vector<std::int64_t> positions;
  for (const Range& range : batch.positions) {
    for (std::int64_t p = range.begin; p < range.end; ++p) positions.push_back(p);
  }
  return positions;
}

// The record numbers of a batch of write_data_set's images, read back from the pixels.
std::vector<int> numbers_of(const Batch& batch) {
  const std::vector<float> values = batch.data.to_vector<float>();
  const std::vector<std::int32_t> labels = batch.label.to_vector<std::int32_t>();
  std::vector<int> numbers;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    numbers.push_back(static_cast<int>(std::lround(values[6 * i] * 255) + 256 * std::lround(values[6 * i + 1] * 255)));
    EXPECT_EQ(labels[i], numbers.back() % 10);
  }
  return numbers;
}

// Adds the batch; every record is new.
void add(Seen& seen, const Batch& batch) {
  const std::vector<std::int64_t> positions = positions_of(batch);
  const std::vector<int> numbers = numbers_of(batch);
  ASSERT_EQ(positions.size(), numbers.size());
  ASSERT_EQ(batch.examples, static_cast<std::int64_t>(numbers.size()));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_TRUE(seen.emplace(positions[i], numbers[i]).second) << "position " << positions[i] << " twice";
  }
}

Seen drain(DataIterator& data) {
  Seen seen;
  Batch batch;
  while (data.next(batch)) add(seen, batch);
  return seen;
}

// Every record of 0 .. count-1 once.
void expect_complete(const Seen& seen, int count) {
  ASSERT_EQ(seen.size(), static_cast<std::size_t>(count));
  std::vector<int> times(static_cast<std::size_t>(count));
  for (const auto& [position, number] : seen) ++times.at(static_cast<std::size_t>(number));
  EXPECT_THAT(times, Each(1));
}

TEST(RecordLoader, DeliversImagesAndLabels) {
  TemporaryFolder folder;
  RecordLoader loader(write_data_set(folder, 300, 2), {.batch = 64});
  EXPECT_EQ(loader.size(), 300);
  loader.start(0);
  Batch batch;
  ASSERT_TRUE(loader.next(batch));
  EXPECT_EQ(batch.data.shape(), (Shape{64, 1, 2, 3}));
  EXPECT_EQ(batch.data.dtype(), DType::kFloat32);
  EXPECT_EQ(batch.label.shape(), (Shape{64}));
  EXPECT_EQ(batch.label.dtype(), DType::kInt32);
  EXPECT_THAT(batch.positions, ElementsAre(Range{0, 64}));
  EXPECT_EQ(numbers_of(batch).front(), 0);
  EXPECT_EQ(numbers_of(batch).back(), 63);
  Seen seen;
  add(seen, batch);
  while (loader.next(batch)) add(seen, batch);
  EXPECT_EQ(batch.examples, 300 % 64);
  expect_complete(seen, 300);
  EXPECT_FALSE(loader.next(batch));
  EXPECT_FALSE(loader.take_over());
}

class LoaderPartition : public testing::TestWithParam<Partition> {};

TEST_P(LoaderPartition, DeliversEveryRecordOnceOverAllParts) {
  TemporaryFolder folder;
  const std::string manifest = write_data_set(folder, 301, 4);
  Seen reference;
  for (const int count : {1, 2, 3, 7}) {
    Seen seen;
    for (int index = 0; index < count; ++index) {
      RecordLoader loader(manifest,
                          {.batch = 16, .shuffle = 5, .source = fixed_source({index, count}), .partition = GetParam()});
      loader.start(2);
      seen.merge(drain(loader));
    }
    expect_complete(seen, 301);
    if (count == 1) reference = seen;
    EXPECT_EQ(seen, reference) << "positions name the same records for " << count << " parts";
  }
}

TEST_P(LoaderPartition, OrderDependsOnSeedAndEpochOnly) {
  TemporaryFolder folder;
  const std::string manifest = write_data_set(folder, 200, 2);
  const auto order = [&](std::uint64_t seed, std::int64_t epoch, int threads) {
    RecordLoader loader(manifest, {.batch = 7, .shuffle = seed, .partition = GetParam(), .decode_threads = threads});
    loader.start(epoch);
    std::vector<int> numbers;
    Batch batch;
    while (loader.next(batch)) {
      const std::vector<int> more = numbers_of(batch);
      numbers.insert(numbers.end(), more.begin(), more.end());
    }
    return numbers;
  };
  EXPECT_EQ(order(1, 0, 1), order(1, 0, 4));
  EXPECT_NE(order(1, 0, 1), order(1, 1, 1));
  EXPECT_NE(order(1, 0, 1), order(2, 0, 1));
}

TEST_P(LoaderPartition, ResumesFromWhatWasCommitted) {
  TemporaryFolder folder;
  const std::string manifest = write_data_set(folder, 230, 3);
  for (const int batches : {0, 1, 5, 11}) {
    Seen seen;
    RangeSet committed;
    for (int index = 0; index < 2; ++index) {
      RecordLoader loader(manifest,
                          {.batch = 9, .shuffle = 3, .source = fixed_source({index, 2}), .partition = GetParam()});
      loader.start(1);
      Batch batch;
      for (int i = 0; i < batches && loader.next(batch); ++i) {
        loader.commit(batch);
        add(seen, batch);
      }
      for (const Range& range : loader.committed().ranges()) committed.add(range);
    }
    EXPECT_EQ(committed.count(), static_cast<std::int64_t>(seen.size()));
    // In another number of parts, after a trip through a checkpoint's text.
    const RangeSet saved = RangeSet::parse(committed.text());
    for (int index = 0; index < 3; ++index) {
      RecordLoader loader(manifest,
                          {.batch = 9, .shuffle = 3, .source = fixed_source({index, 3}), .partition = GetParam()});
      loader.start(1, saved);
      EXPECT_EQ(loader.committed(), saved);
      seen.merge(drain(loader));
    }
    expect_complete(seen, 230);
  }
}

INSTANTIATE_TEST_SUITE_P(Both, LoaderPartition, testing::Values(Partition::kShards, Partition::kRecords),
                         [](const auto& info) { return info.param == Partition::kShards ? "Shards" : "Records"; });

// One part of two; after it, what the other left.
class LossySource final : public Source {
 public:
  explicit LossySource(RangeSet left) : left_(std::move(left)) {}
  Part part(std::int64_t) override { return {0, 2}; }
  void begin(std::int64_t, const EpochPlan& plan) override { mine_ = plan.mine, all_ = plan.all; }
  void commit(std::int64_t, const std::vector<Range>& positions, const std::string& note) override {
    note_ = note;
    for (const Range& range : positions) committed_.add(range);
  }
  RangeSet take_over(std::int64_t, std::int64_t, bool) override { return std::exchange(left_, {}); }

  RangeSet left_, mine_, all_, committed_;
  std::string note_;
};

// As Trainer::evaluate() commits: a batch's positions with a note.
void expect_note(DataIterator& data, const LossySource& source) {
  data.start(0);
  Batch batch;
  ASSERT_TRUE(data.next(batch));
  EXPECT_EQ(batch.note, "");
  batch.note = "told";
  data.commit(batch);
  EXPECT_EQ(source.note_, "told");
  ASSERT_TRUE(data.next(batch));
  data.commit(batch);
  EXPECT_EQ(source.note_, "");
}

TEST(RecordLoader, HandsANoteToItsSource) {
  TemporaryFolder folder;
  const auto source = std::make_shared<LossySource>(RangeSet());
  RecordLoader loader(write_data_set(folder, 100, 2), {.batch = 8, .source = source});
  expect_note(loader, *source);
}

TEST(MemoryIterator, HandsANoteToItsSource) {
  const auto source = std::make_shared<LossySource>(RangeSet());
  MemoryIterator iterator(NDArray::zeros({100, 2}), NDArray::zeros({100}), {.batch = 8, .source = source});
  expect_note(iterator, *source);
}

TEST(RecordLoader, TakesOverWhatLostWorkersLeft) {
  TemporaryFolder folder;
  const std::string manifest = write_data_set(folder, 100, 2);
  RangeSet left;
  left.add({70, 100});
  auto source = std::make_shared<LossySource>(left);
  RecordLoader loader(manifest, {.batch = 8, .shuffle = 1, .source = source, .window = 1});
  loader.start(0);
  EXPECT_EQ(source->mine_.text(), "0-50");
  EXPECT_EQ(source->all_.text(), "0-100");
  EXPECT_THAT(loader.open_shards(), SizeIs(1));
  Seen seen = drain(loader);
  EXPECT_EQ(seen.size(), 50u);
  ASSERT_TRUE(loader.take_over());
  Batch batch;
  while (loader.next(batch)) {
    add(seen, batch);
    loader.commit(batch);
  }
  EXPECT_EQ(seen.size(), 80u);
  EXPECT_EQ(source->committed_.text(), "70-100");
  EXPECT_FALSE(loader.take_over());
}

TEST(RecordLoader, OpensOnlyItsShards) {
  TemporaryFolder folder;
  const std::string manifest = write_data_set(folder, 100, 4);
  std::filesystem::remove(folder / "set-00003-of-00004.rec");
  RecordLoader first(manifest, {.batch = 8, .source = fixed_source({0, 2})});
  first.start(0);
  EXPECT_EQ(drain(first).size(), 50u);
  EXPECT_THAT(first.open_shards(), ElementsAre(folder / "set-00000-of-00004.rec", folder / "set-00001-of-00004.rec"));
  RecordLoader second(manifest, {.batch = 8, .source = fixed_source({1, 2})});
  const std::string message = error_of<IoError>([&] { second.start(0); });
  EXPECT_THAT(message, HasSubstr(folder / "set-00003-of-00004.rec on host "));
}

TEST(RecordLoader, NamesTheDamagedRecordAndKeepsFailing) {
  TemporaryFolder folder;
  const std::string manifest = write_data_set(folder, 100, 1);
  const std::string shard = folder / "set-00000-of-00001.rec";
  const std::uint64_t offset = read_index(index_path(shard))[33].offset;
  flip_bit(shard, offset + 40);
  RecordLoader loader(manifest, {.batch = 10});
  loader.start(0);
  Batch batch;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(loader.next(batch));
  const std::string expected = str(shard, ": record 33 at offset ", offset, " is damaged: its CRC32C differs");
  EXPECT_THAT(error_of<Corrupt>([&] { loader.next(batch); }), HasSubstr(expected));
  EXPECT_THAT(error_of<Corrupt>([&] { loader.next(batch); }), HasSubstr(expected));
  loader.start(1);
  EXPECT_TRUE(loader.next(batch));
}

TEST(RecordLoader, SkipsAndCountsDamageIfAsked) {
  TemporaryFolder folder;
  const std::string manifest = write_data_set(folder, 100, 1);
  const std::string shard = folder / "set-00000-of-00001.rec";
  const RecordIndex index = read_index(index_path(shard));
  flip_bit(shard, index[33].offset + 40);
  for (std::size_t i = 50; i < 60; ++i) flip_bit(shard, index[i].offset);
  auto source = std::make_shared<LossySource>(RangeSet());
  RecordLoader loader(manifest, {.batch = 10, .on_damage = OnDamage::kSkip});
  loader.start(0);
  std::size_t batches = 0;
  std::int64_t examples = 0;
  Batch batch;
  while (loader.next(batch)) {
    ++batches;
    examples += batch.examples;
    EXPECT_EQ(batch.data.size(0), batch.examples);
    EXPECT_THAT(positions_of(batch), SizeIs(10));
    loader.commit(batch);
  }
  EXPECT_EQ(batches, 9u);
  EXPECT_EQ(examples, 89);
  EXPECT_EQ(loader.committed().text(), "0-100");
  EXPECT_EQ(loader.damaged(), 11);
  ASSERT_THAT(loader.damage(), SizeIs(11));
  EXPECT_EQ(loader.damage()[0].record, 33);
}

TEST(RecordLoader, ReadsRunsOfEveryOrderAlike) {
  TemporaryFolder folder;
  DatasetWriter writer(folder / "set", 3);
  constexpr std::int64_t kCount = 3000;
  const auto text = [](std::int64_t number) { return std::to_string(number) + std::string(500, ','); };
  for (std::int64_t i = 0; i < kCount; ++i) writer.write(static_cast<int>(3 * i / kCount), i, text(i));
  Manifest manifest;
  manifest.payload = "bytes";
  writer.finish(manifest);
  const std::string shard = folder / "set-00001-of-00003.rec";
  flip_bit(shard, read_index(index_path(shard))[500].offset + 100);
  const auto read = [](std::string_view record, std::uint64_t, std::span<void* const> to) {
    *static_cast<std::int32_t*>(to[0]) = std::stoi(std::string(record));
  };
  RecordLoaderOptions options{.batch = 700,  // over the borders of shards
                              .on_damage = OnDamage::kSkip,
                              .decoder = decoders::function({{"data", {}, DType::kInt32}}, read)};
  for (const bool shuffle : {false, true}) {
    if (shuffle) options.shuffle = 1;
    RecordLoader loader(folder / "set.manifest", options);
    loader.start(0);
    std::vector<std::int32_t> got;
    for (Batch batch; loader.next(batch);)
      std::ranges::copy(batch.data.to_vector<std::int32_t>(), std::back_inserter(got));
    std::vector<std::int32_t> expected(kCount);
    std::iota(expected.begin(), expected.end(), 0);
    expected.erase(expected.begin() + 1500);
    EXPECT_EQ(std::ranges::is_sorted(got), !shuffle);
    std::ranges::sort(got);
    EXPECT_EQ(got, expected);
    ASSERT_THAT(loader.damage(), SizeIs(1));
    EXPECT_EQ(loader.damage()[0].file, shard);
    EXPECT_EQ(loader.damage()[0].record, 500);
  }
}

TEST(RecordLoader, NamesTruncatedShards) {
  TemporaryFolder folder;
  const std::string manifest = write_data_set(folder, 40, 1);
  const std::string shard = folder / "set-00000-of-00001.rec";
  std::filesystem::resize_file(shard, read_index(index_path(shard))[30].offset + 16);
  RecordLoader strict(manifest, {.batch = 10});
  EXPECT_THAT(error_of<Corrupt>([&] { strict.start(0); }), HasSubstr("bytes, the manifest"));
  RecordLoader lenient(manifest, {.batch = 10, .on_damage = OnDamage::kSkip});
  lenient.start(0);
  EXPECT_EQ(drain(lenient).size(), 30u);
  EXPECT_EQ(lenient.damaged(), 10);
}

TEST(RecordLoader, NamesDamagedIndexes) {
  TemporaryFolder folder;
  const std::string manifest = write_data_set(folder, 40, 1);
  for (const std::string ending : {".idx", ".crc"}) {
    const std::string companion = folder / "set-00000-of-00001" + ending;
    const std::string bytes = read_all(companion);
    flip_bit(companion, 20);
    RecordLoader loader(manifest, {.on_damage = OnDamage::kSkip});
    EXPECT_THAT(error_of<Corrupt>([&] { loader.start(0); }), HasSubstr(companion + " is damaged"));
    std::filesystem::remove(companion);
    EXPECT_THAT(error_of<IoError>([&] { loader.start(0); }), HasSubstr(companion));
    write_all(companion, bytes);
    loader.start(0);
  }
}

TEST(RecordLoader, RefusesMoreWorkersThanRecords) {
  TemporaryFolder folder;
  const std::string manifest = write_data_set(folder, 3, 1);
  RecordLoader loader(manifest, {.source = fixed_source({1, 4})});
  EXPECT_THAT(error_of<InvalidArgument>([&] { loader.start(0); }), HasSubstr("4 workers share the 3 records"));
}

TEST(RecordLoader, RefusesOptionsThatCannotWork) {
  TemporaryFolder folder;
  const std::string manifest = write_data_set(folder, 3, 1);
  const auto message = [&](RecordLoaderOptions options) {
    return error_of<InvalidArgument>([&] { RecordLoader loader(manifest, options); });
  };
  EXPECT_THAT(message({.batch = 0}), HasSubstr("batch size is at least 1, not 0"));
  EXPECT_THAT(message({.prefetch = -1}), HasSubstr("prefetch cannot be -1"));
  EXPECT_THAT(message({.image = {.channels = 2}}), HasSubstr("1 or 3 channels, not 2"));
  EXPECT_THAT(message({.image = {.mean = {1, 2}}}), HasSubstr("one number or 1"));
  EXPECT_THAT(message({.image = {.deviation = {0}}}), HasSubstr("deviation of channel 0 is 0"));
  RecordLoader loader(manifest);
  Batch batch;
  EXPECT_THAT(error_of<InvalidArgument>([&] { loader.next(batch); }), HasSubstr("call start()"));
}

TEST(RecordLoader, CanBeAbandonedAndRestartedAnyTime) {
  TemporaryFolder folder;
  const std::string manifest = write_data_set(folder, 500, 2);
  std::vector<Batch> kept;
  {
    RecordLoader loader(manifest, {.batch = 3, .shuffle = 1, .decode_threads = 3, .prefetch = 6});
    for (int epoch = 0; epoch < 20; ++epoch) {
      loader.start(epoch);
      Batch batch;
      for (int i = 0; i < epoch; ++i) ASSERT_TRUE(loader.next(batch));
      if (epoch > 0) kept.push_back(batch);
    }
    loader.start(20);
    expect_complete(drain(loader), 500);
    loader.start(21);
  }
  for (const Batch& batch : kept) EXPECT_EQ(numbers_of(batch).size(), 3u);  // outlive the loader
}

TEST(RecordLoader, CommitsFromOtherThreads) {
  TemporaryFolder folder;
  RecordLoader loader(write_data_set(folder, 200, 2), {.batch = 5, .shuffle = 1});
  std::vector<std::thread> threads;
  for (Batch& batch : EpochRange(loader, 0, {})) threads.emplace_back([&loader, batch] { loader.commit(batch); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(loader.committed().text(), "0-200");
}

std::string write_one_image(const TemporaryFolder& folder, const Image& image, const std::vector<float>& labels) {
  DatasetWriter writer(folder / "one", 1);
  writer.write(0, 0, pack_image_record(labels, 0, ImageCodec().encode(image, ImageEncoding::kPng)));
  Manifest manifest;
  manifest.encoding = "png";
  manifest.image = {image.height, image.width, image.channels};
  manifest.label_width = static_cast<int>(labels.size());
  manifest.class_labels = labels.size() == 1;
  return writer.finish(manifest);
}

Batch only_batch(const std::string& manifest, RecordLoaderOptions options) {
  RecordLoader loader(manifest, std::move(options));
  loader.start(0);
  Batch batch;
  EXPECT_TRUE(loader.next(batch));
  return batch;
}

TEST(RecordLoader, ScalesAndSeparatesChannels) {
  TemporaryFolder folder;
  const std::string manifest = write_one_image(folder, {1, 2, 3, {10, 20, 30, 40, 50, 60}}, {4});
  const ImageOptions options{.scale = 1, .mean = {0, 10, 20}, .deviation = {2}};
  EXPECT_THAT(only_batch(manifest, {.image = options}).data.to_vector<float>(), ElementsAre(5, 20, 5, 20, 5, 20));
  const Batch grey = only_batch(manifest, {.image = {.channels = 1, .height = 2, .width = 4, .scale = 1}});
  EXPECT_EQ(grey.data.shape(), (Shape{1, 1, 2, 4}));
  EXPECT_NEAR(grey.data.to_vector<float>()[0], 18, 1);
}

TEST(RecordLoader, DeliversSeveralLabelsAsNumbers) {
  TemporaryFolder folder;
  const std::string manifest = write_one_image(folder, {1, 1, 1, {1}}, {0.5f, -3, 8});
  const Batch batch = only_batch(manifest, {});
  EXPECT_EQ(batch.label.shape(), (Shape{1, 3}));
  EXPECT_THAT(batch.label.to_vector<float>(), ElementsAre(0.5f, -3, 8));
}

TEST(RecordLoader, RefusesLabelsThatAreNoClass) {
  TemporaryFolder folder;
  const std::string manifest = write_one_image(folder, {1, 1, 1, {1}}, {0.5f});
  RecordLoader loader(manifest);
  loader.start(0);
  Batch batch;
  EXPECT_THAT(error_of<Corrupt>([&] { loader.next(batch); }),
              HasSubstr("record 0 at offset 0 is damaged: its label 0.5"));
}

TEST(RecordLoader, CropsAndFlipsByPosition) {
  TemporaryFolder folder;
  const std::string manifest = write_one_image(folder, {3, 3, 1, {1, 2, 3, 4, 5, 6, 7, 8, 9}}, {0});
  const ImageOptions options{.scale = 1, .random_crop = 1, .random_flip = true};
  RecordLoader loader(manifest, {.shuffle = 1, .image = options});
  std::map<std::vector<float>, int> seen;
  for (int epoch = 0; epoch < 400; ++epoch) {
    std::vector<float> values[2];
    for (auto& v : values) {
      loader.start(epoch);
      Batch batch;
      ASSERT_TRUE(loader.next(batch));
      v = batch.data.to_vector<float>();
    }
    ASSERT_EQ(values[0], values[1]);
    ++seen[values[0]];
  }
  EXPECT_EQ(seen.size(), 18u);  // nine places, two directions
  EXPECT_TRUE(seen.count({1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_TRUE(seen.count({3, 2, 1, 6, 5, 4, 9, 8, 7}));
  EXPECT_TRUE(seen.count({0, 0, 0, 0, 1, 2, 0, 4, 5}));
  EXPECT_TRUE(seen.count({0, 6, 5, 0, 9, 8, 0, 0, 0}));
}

TEST(MemoryIterator, DealsTheSameStepsToEveryNumberOfParts) {
  std::vector<float> values(6 * 50);
  std::vector<std::int32_t> labels(50);
  for (std::size_t i = 0; i < 50; ++i) {
    values[6 * i] = static_cast<float>(i) / 255;
    labels[i] = static_cast<std::int32_t>(i % 10);
  }
  const NDArray data = NDArray::from(values, {50, 1, 2, 3}), label = NDArray::from(labels, {50});
  std::map<int, std::vector<std::set<int>>> steps;
  for (const int count : {1, 2, 4}) {
    Seen seen;
    for (int index = 0; index < count; ++index) {
      MemoryIterator iterator(data, label, {.batch = 16 / count, .shuffle = 9, .source = fixed_source({index, count})});
      std::size_t step = 0;
      for (Batch& batch : EpochRange(iterator, 0, {})) {
        add(seen, batch);
        if (steps[count].size() <= step) steps[count].resize(step + 1);
        for (const int number : numbers_of(batch)) steps[count][step].insert(number);
        iterator.commit(batch);
        ++step;
      }
      EXPECT_FALSE(iterator.committed().empty());
      EXPECT_FALSE(iterator.take_over());
    }
    expect_complete(seen, 50);
  }
  EXPECT_EQ(steps[1], steps[2]);
  EXPECT_EQ(steps[1], steps[4]);
}

TEST(MemoryIterator, RefusesArraysThatDoNotMatch) {
  EXPECT_THAT(error_of<InvalidArgument>([] {
                MemoryIterator(NDArray::zeros({3, 2}), NDArray::zeros({4}));
              }),
              HasSubstr("shapes (3, 2) and (4,)"));
}

}  // namespace
}  // namespace paceline::test

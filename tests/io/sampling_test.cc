#include <paceline/sampling.h>

#include <gmock/gmock.h>
#include <paceline/convert_sources.h>
#include <paceline/error.h>
#include <paceline/memory_iterator.h>
#include <paceline/record_loader.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "epoch_order.h"
#include "fixtures.h"
#include "mixture.h"

namespace paceline::test {
namespace {

using io::EpochOrder;
using io::Order;
using testing::HasSubstr;

TEST(Sampling, DrawsByWeights) {
  const std::vector<double> weights = {0, 1, 2, 3, 0, 4, 90};
  const Order order({0, 3, 7}, {.seed = test_seed(), .sampling = {.weights = weights, .epoch_size = 100000}}, "x");
  ASSERT_EQ(order.size(), 100000);
  std::vector<double> counts(7);
  const EpochOrder epoch = order.epoch(1);
  for (std::int64_t p = 0; p < order.size(); ++p) ++counts[static_cast<std::size_t>(epoch.record(p))];
  for (std::size_t i = 0; i < 7; ++i) {
    const double expected = 1000 * weights[i];
    EXPECT_NEAR(counts[i], expected, 6 * std::sqrt(expected)) << "record " << i;
  }
}

// Against a plain sum: the table may put what a record has too much of anywhere, but the sums must be the weights.
TEST(Sampling, TheTableOfWeightsIsExact) {
  std::mt19937_64 random(test_seed());
  std::vector<double> weights;
  for (int i = 0; i < 50; ++i) weights.push_back(random() % 4 == 0 ? 0 : static_cast<double>(random() % 1000));
  weights.push_back(1);
  double total = 0;
  for (const double weight : weights) total += weight;
  const io::WeightTable table(weights);
  io::Random draws(random());
  std::vector<double> counts(weights.size());
  constexpr int kDraws = 400000;
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<std::size_t>(table.draw(draws))];
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double expected = kDraws * weights[i] / total;
    EXPECT_NEAR(counts[i], expected, 6 * std::sqrt(expected) + 1e-9);
  }
}

TEST(Sampling, BalancesClasses) {
  const std::vector<std::int64_t> classes = {0, 0, 0, 0, 0, 0, 7, 7, -3};
  const std::vector<double> weights = balanced_weights(classes);
  EXPECT_EQ(weights.size(), 9u);
  std::map<std::int64_t, double> sums;
  for (std::size_t i = 0; i < 9; ++i) sums[classes[i]] += weights[i];
  for (const auto& [one, sum] : sums) EXPECT_NEAR(sum, 1, 1e-12) << one;
}

TEST(Sampling, ReadsTheClassesOfImages) {
  TemporaryFolder folder;
  const std::string manifest = write_data_set(folder, 103, 4);
  for (const int threads : {1, 3}) {
    const std::vector<std::int64_t> classes = read_classes(manifest, threads);
    ASSERT_EQ(classes.size(), 103u);
    for (std::size_t i = 0; i < 103; ++i) EXPECT_EQ(classes[i], static_cast<std::int64_t>(i % 10));
  }
  std::atomic<std::int64_t> sum = 0, bytes = 0;
  visit_records(
      manifest,
      [&](std::int64_t number, std::string_view record) {
        sum += number;
        bytes += static_cast<std::int64_t>(record.size());
      },
      2);
  EXPECT_EQ(sum, 102 * 103 / 2);
  EXPECT_GT(bytes, 103 * 24);
  const auto failing = [&] { visit_records(manifest, [](auto, auto) { throw Error("enough"); }); };
  EXPECT_THAT(error_of<Error>(failing), HasSubstr("enough"));
  Manifest other = Manifest::load(manifest);
  other.payload = "bytes";
  other.save(folder / "other.manifest");
  EXPECT_THAT(error_of<InvalidArgument>([&] { read_classes(folder / "other.manifest"); }),
              HasSubstr("visit_records()"));
}

TEST(Sampling, ABatchHoldsRecordsOfOneKey) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 50; ++round) {
    const std::int64_t size = 100 + static_cast<std::int64_t>(random() % 300),
                       batch = 1 + static_cast<std::int64_t>(random() % 16);
    std::vector<std::int64_t> keys;
    std::map<std::int64_t, std::int64_t> counts;
    while (static_cast<std::int64_t>(keys.size()) < size)
      ++counts[keys.emplace_back(static_cast<std::int64_t>(random() % 7) - 3)];
    std::int64_t full = 0;
    for (const auto& [key, count] : counts) full += count / batch * batch;
    const Order order({0, size}, {.batch = batch, .seed = random(), .sampling = {.groups = keys}}, "x");
    const EpochOrder epoch = order.epoch(2);
    const auto key_at = [&](std::int64_t position) { return keys[static_cast<std::size_t>(epoch.record(position))]; };
    const io::Share share = epoch.share({0, 1});
    io::Batches batches(share.positions, share.batch, share.boundary);
    std::vector<std::int64_t> positions;
    std::vector<std::int64_t> rests;
    while (batches.next(positions)) {
      for (const std::int64_t p : positions) {
        if (p < full) {
          EXPECT_EQ(key_at(p), key_at(positions.front()));
        } else {
          rests.push_back(key_at(p));
        }
      }
    }
    EXPECT_TRUE(std::is_sorted(rests.begin(), rests.end()));
  }
}

TEST(Sampling, GroupsExamplesInMemory) {
  std::vector<float> values;
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 64; ++i) {
    values.push_back(static_cast<float>(i % 4));
    lengths.push_back(i % 4);
  }
  const NDArray data = NDArray::from(values, {64, 1});
  MemoryIterator iterator(data, data, {.shuffle = 3, .global_batch = 8, .sampling = {.groups = lengths}});
  EXPECT_EQ(iterator.batch_shape(), (Shape{8, 1}));
  std::vector<float> order;
  for (const Batch& batch : EpochRange(iterator, 0, {})) {
    const std::vector<float> here = batch.data.to_vector<float>();
    EXPECT_EQ(std::set<float>(here.begin(), here.end()).size(), 1u);
    order.push_back(here.front());
  }
  EXPECT_EQ(order.size(), 8u);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
}

TEST(Sampling, ExamplesInMemoryHaveAnOrder) {
  const NDArray ones = NDArray::full({10, 2}, 1.0), label = NDArray::zeros({10});
  const MemoryIterator one(ones, label, {.shuffle = 1}), other(NDArray::full({10, 2}, 2.0), label, {.shuffle = 1}),
      seed(ones, label, {.batch = 3, .shuffle = 2}), same(ones.clone(), label, {.batch = 3, .shuffle = 1});
  EXPECT_THAT(one.order(), testing::StartsWith("seed=1 "));
  EXPECT_EQ(one.order(), same.order());
  EXPECT_NE(one.order(), other.order());
  EXPECT_NE(one.order(), seed.order());
}

// Three sets of 100, 1,000 and 5,000 records.
class Mixture : public testing::Test {
 protected:
  Mixture()
      : sets_{{write_data_set(folder_, 100, 1, "a"), 1},
              {write_data_set(folder_, 1000, 3, "b"), 2},
              {write_data_set(folder_, 5000, 4, "c"), 5}} {}

  // How often each record of each set came in some epochs.
  std::vector<std::vector<int>> count(const Order& order, int epochs) const {
    std::vector<std::vector<int>> counts = {std::vector<int>(100), std::vector<int>(1000), std::vector<int>(5000)};
    for (int number = 0; number < epochs; ++number) {
      const EpochOrder epoch = order.epoch(number);
      for (std::int64_t p = 0; p < order.size(); ++p) {
        const auto record = static_cast<std::size_t>(epoch.record(p));
        if (record < 100)
          ++counts[0][record];
        else if (record < 1100)
          ++counts[1][record - 100];
        else
          ++counts[2][record - 1100];
      }
    }
    return counts;
  }

  TemporaryFolder folder_;
  std::vector<MixedDataSet> sets_;
};

TEST_F(Mixture, HasRoomForTheLongestLabels) {
  const auto describe = [&](std::size_t set, int width, bool variable) {
    Manifest manifest = Manifest::load(sets_[set].manifest);
    manifest.class_labels = false;
    manifest.label_width = width;
    manifest.variable_labels = variable;
    manifest.save(sets_[set].manifest);
  };
  describe(0, 7, true);
  describe(1, 12, true);
  describe(2, 3, false);
  EXPECT_EQ(io::mixture_of(sets_).manifest.label_width, 12);
  std::swap(sets_[0], sets_[2]);  // the set of one width first
  EXPECT_EQ(io::mixture_of(sets_).manifest.label_width, 12);
  std::swap(sets_[0], sets_[2]);
  describe(0, 12, false);
  sets_.pop_back();
  EXPECT_TRUE(io::mixture_of(sets_).manifest.variable_labels);
}

TEST_F(Mixture, HasItsSharesInEveryPartOfAnEpoch) {
  const Order order({0, 100, 433, 766, 1100, 6100}, {.seed = test_seed(), .mixture = {{0, 1}, {1, 2}, {4, 5}}}, "x");
  const EpochOrder epoch = order.epoch(0);
  for (std::int64_t begin = 0; begin + 2000 <= order.size(); begin += 500) {
    double counts[3] = {};
    for (std::int64_t p = begin; p < begin + 2000; ++p) {
      const std::int64_t record = epoch.record(p);
      ++counts[record < 100 ? 0 : record < 1100 ? 1 : 2];
    }
    EXPECT_NEAR(counts[0], 250, 90);
    EXPECT_NEAR(counts[1], 500, 120);
    EXPECT_NEAR(counts[2], 1250, 140);
  }
}

TEST_F(Mixture, GoesThroughEachSetAgainAndAgain) {
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{800}, std::int64_t{24000}}) {
    const Order order({0, 100, 433, 766, 1100, 6100},
                      {.seed = 4, .window = 2, .sampling = {.epoch_size = size}, .mixture = {{0, 1}, {1, 2}, {4, 5}}},
                      "x");
    const std::int64_t positions = size > 0 ? size : 6100;
    for (const int epochs : {1, 2, 7}) {
      const auto counts = count(order, epochs);
      std::int64_t sum = 0;
      for (const auto& set : counts) {
        const auto [least, most] = std::minmax_element(set.begin(), set.end());
        EXPECT_LE(*most - *least, 1) << "a record came again before all had come";
        for (const int times : set) sum += times;
      }
      EXPECT_EQ(sum, positions * epochs);
      const auto first = std::accumulate(counts[0].begin(), counts[0].end(), std::int64_t{0});
      EXPECT_NEAR(static_cast<double>(first), static_cast<double>(positions * epochs) / 8, epochs);
    }
  }
}

TEST_F(Mixture, IsLoadedAsOneSet) {
  RecordLoader loader(sets_, {.batch = 50, .shuffle = 1, .sampling = {.epoch_size = 1600}});
  EXPECT_EQ(loader.size(), 1600);
  EXPECT_THAT(loader.order(), HasSubstr("weight=1 weight=2 weight=5 epoch_size=1600 data="));
  std::int64_t examples = 0;
  for (const Batch& batch : EpochRange(loader, 0, {})) examples += batch.examples;
  EXPECT_EQ(examples, 1600);
  EXPECT_THAT(error_of<InvalidArgument>([&] { RecordLoader(sets_, {}); }), HasSubstr("need the seed `shuffle`"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { RecordLoader(std::vector<MixedDataSet>{}, {}); }),
              HasSubstr("names none"));
  Manifest other = Manifest::load(sets_[1].manifest);
  other.payload = "bytes";
  other.save(folder_ / "other.manifest");
  sets_[1].manifest = folder_ / "other.manifest";
  EXPECT_THAT(error_of<InvalidArgument>([&] { RecordLoader(sets_, {.shuffle = 1}); }),
              HasSubstr("cannot be mixed with " + sets_[0].manifest + ": its records hold 'bytes', not 'image'"));
}

TEST_F(Mixture, OfTablesNeedsTheSameColumns) {
  const auto table = [&](const std::string& name, const std::string& header) {
    write_all(folder_ / name + ".csv", header + "\n1,2,0\n3,4,1\n");
    convert(folder_ / name, *csv_source({folder_ / name + ".csv"}, {.table = {.label = "kind"}}));
    return MixedDataSet{folder_ / name + ".manifest", 1};
  };
  const MixedDataSet set = table("set", "a,b,kind"), alike = table("alike", "a,b,kind"),
                     swapped = table("swapped", "b,a,kind"), unknown = table("unknown", "b,a,kind");
  Manifest manifest = Manifest::load(unknown.manifest);
  manifest.columns_crc32c.reset();
  manifest.save(unknown.manifest);
  const auto columns_of = [](const std::vector<MixedDataSet>& sets) {
    return RecordLoader(sets, {.shuffle = 1}).manifest().columns_crc32c;
  };
  EXPECT_NE(columns_of({set, alike}), std::nullopt);
  EXPECT_EQ(columns_of({set, unknown}), std::nullopt);
  EXPECT_EQ(columns_of({unknown, set}), std::nullopt);
  for (const auto& sets : {std::vector{set, swapped}, std::vector{unknown, set, swapped}})
    EXPECT_THAT(error_of<InvalidArgument>([&] { columns_of(sets); }),
                HasSubstr("swapped.manifest has other columns or categories than the sources before it"));
}

}  // namespace
}  // namespace paceline::test

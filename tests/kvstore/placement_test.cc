// How evenly keys are placed on servers (T3.4 of algorithms), and what Placement refuses.
#include <gtest/gtest.h>
#include <paceline/error.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "key_partition.h"
#include "placement.h"
#include "placement_policy.h"
#include "store.pb.h"

namespace paceline {
namespace {

// ResNet-50: 161 keys, 25.6 million elements.
std::vector<KeyInfo> resnet50() {
  std::vector<KeyInfo> keys;
  const auto add = [&keys](const std::string& name, const Shape& shape) {
    keys.push_back({name, DType::kFloat32, shape, false});
  };
  const auto convolution = [&add](const std::string& name, std::int64_t out, std::int64_t in, std::int64_t width) {
    add(name + ".weight", {out, in, width, width});
    add(name + ".norm.gamma", {out});
    add(name + ".norm.beta", {out});
  };
  convolution("first", 64, 3, 7);
  std::int64_t in = 64;
  const int blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const std::int64_t narrow = std::int64_t{64} << stage, out = 4 * narrow;
    for (int block = 0; block < blocks[stage]; ++block) {
      const std::string name = "stage" + std::to_string(stage) + "." + std::to_string(block);
      convolution(name + ".reduce", narrow, in, 1);
      convolution(name + ".spatial", narrow, narrow, 3);
      convolution(name + ".expand", out, narrow, 1);
      if (block == 0) convolution(name + ".shortcut", out, in, 1);
      in = out;
    }
  }
  add("classifier.weight", {1000, 2048});
  add("classifier.bias", {1000});
  return keys;
}

std::int64_t bytes_of(const std::vector<KeyInfo>& keys) {
  return std::accumulate(keys.begin(), keys.end(), std::int64_t{0},
                         [](std::int64_t sum, const KeyInfo& key) { return sum + key.bytes(); });
}

double imbalance(const std::vector<std::int64_t>& loads) {
  const double mean = static_cast<double>(std::accumulate(loads.begin(), loads.end(), std::int64_t{0})) /
                      static_cast<double>(loads.size());
  return static_cast<double>(*std::max_element(loads.begin(), loads.end())) / mean;
}

// MXNet: whole keys below a million elements by (key * 9973) % servers, larger ones in equal parts on all.
double mxnet_imbalance(const std::vector<KeyInfo>& keys, std::size_t servers) {
  std::vector<std::int64_t> loads(servers, 0);
  for (std::size_t k = 0; k < keys.size(); ++k) {
    if (keys[k].shape.size() < 1000000)
      loads[k * 9973 % servers] += keys[k].bytes();
    else
      for (std::int64_t& load : loads) load += keys[k].bytes() / static_cast<std::int64_t>(servers);
  }
  return imbalance(loads);
}

// Bytes of each server.
std::vector<std::int64_t> loads_of(const Layout& layout, std::size_t servers) {
  std::vector<std::int64_t> loads(servers, 0);
  const std::vector<std::int64_t> bytes = partition_bytes(layout);
  const std::vector<int> places = make_balanced_placement(static_cast<int>(servers))->place_keys(bytes);
  for (std::size_t p = 0; p < bytes.size(); ++p) loads[static_cast<std::size_t>(places[p])] += bytes[p];
  return loads;
}

void expect_even(const std::vector<KeyInfo>& keys, std::size_t servers) {
  const Layout layout = make_layout(keys, static_cast<int>(servers), 0, 0);
  const std::vector<std::int64_t> loads = loads_of(layout, servers);
  EXPECT_LE(imbalance(loads), 1.05) << keys.size() << " keys on " << servers << " servers";

  // Every element of every key is in one slice.
  std::map<int, std::vector<std::pair<std::int64_t, std::int64_t>>> ranges;
  for (const KeyPartition& partition : layout.partitions) {
    for (const SliceRange& slice : partition.slices) {
      ranges[slice.key].emplace_back(slice.begin, slice.end);
      EXPECT_LE(4 * (slice.end - slice.begin), kSliceBytes + 256);  // lengths are multiples of 64 elements
    }
  }
  ASSERT_EQ(ranges.size(), keys.size());
  for (auto& [key, parts] : ranges) {
    std::sort(parts.begin(), parts.end());
    std::int64_t end = 0;
    for (const auto& [begin, next] : parts) {
      EXPECT_EQ(begin, end);
      end = next;
    }
    EXPECT_EQ(end, layout.keys[static_cast<std::size_t>(key)].shape.size());
  }
}

TEST(Placement, OfResnet50IsEven) {
  const std::vector<KeyInfo> keys = resnet50();
  ASSERT_EQ(keys.size(), 161u);
  ASSERT_EQ(bytes_of(keys), 4 * 25557032);
  for (const std::size_t servers : {1, 2, 3, 4, 8, 16, 64}) {
    expect_even(keys, servers);
    const Layout layout = make_layout(keys, static_cast<int>(servers), 0, 0);
    std::printf("%zu servers, fullest over mean: %.4f; by MXNet's rule %.4f\n", servers,
                imbalance(loads_of(layout, servers)), mxnet_imbalance(keys, servers));
  }
}

TEST(Placement, OfAwkwardSizesIsEven) {
  std::vector<KeyInfo> many, one_large{{"table", DType::kFloat32, {100000, 64}, false}};
  for (int k = 0; k < 10000; ++k) many.push_back({"key" + std::to_string(k), DType::kFloat32, {256}, false});
  for (int k = 0; k < 300; ++k)
    one_large.push_back({"small" + std::to_string(k), DType::kFloat32, {1 + 37 * k % 101}, false});
  for (const std::size_t servers : {2, 4, 16}) {
    expect_even(many, servers);
    expect_even(one_large, servers);
  }
}

TEST(Placement, OfLaterKeysEvensOutTheFirst) {
  const auto policy = make_balanced_placement(4);
  std::vector<std::int64_t> loads(4, 0);
  const std::vector<KeyInfo> first{{"first", DType::kFloat32, {1000}, false}};
  for (const std::vector<KeyInfo>& keys : {first, resnet50()}) {
    const auto held = std::accumulate(loads.begin(), loads.end(), std::int64_t{0});
    const std::vector<std::int64_t> bytes = partition_bytes(make_layout(keys, 4, held, 0));
    const std::vector<int> places = policy->place_keys(bytes);
    for (std::size_t p = 0; p < bytes.size(); ++p) loads[static_cast<std::size_t>(places[p])] += bytes[p];
  }
  EXPECT_LE(imbalance(loads), 1.05);
}

// A matrix is cut between rows, in pieces as large as partitions.
TEST(Placement, MatricesAreCutBetweenRows) {
  const Layout layout = make_layout({{"large", DType::kFloat32, {3000, 1001}, false, 1001},
                                     {"small", DType::kFloat32, {300, 500}, false, 500},
                                     {"vector", DType::kFloat32, {300000}, false, 0}},
                                    2, 0, 0);
  std::vector<std::int64_t> elements(3), slices(3);
  for (const KeyPartition& partition : layout.partitions) {
    for (const SliceRange& slice : partition.slices) {
      const auto key = static_cast<std::size_t>(slice.key);
      elements[key] += slice.end - slice.begin;
      ++slices[key];
      const std::int64_t row = layout.keys[key].row;
      EXPECT_TRUE(row == 0 || slice.begin % row == 0);
    }
  }
  EXPECT_EQ(elements, (std::vector<std::int64_t>{3003000, 150000, 300000}));
  EXPECT_EQ(slices[0], 3);
  EXPECT_EQ(slices[1], 1);
  EXPECT_GT(slices[2], 2);
}

TEST(Placement, SaysWhatItWasTold) {
  constexpr PartitionGroup kTable = 17;
  Placement placement(3);
  placement.add(kDenseKeys, 0, std::array{2, 0});
  placement.add(kTable, 0, std::array{1});
  placement.add(kDenseKeys, 1, std::array{0, 2, 1});  // what is known may be said again
  EXPECT_EQ(placement.partitions(kDenseKeys), 4);
  EXPECT_EQ(placement.partitions(kTable), 1);
  EXPECT_EQ(placement.partitions(18), 0);
  EXPECT_EQ(placement.server_of(kDenseKeys, 2), 2);
  EXPECT_EQ(placement.server_of(kTable, 0), 1);
  EXPECT_EQ(placement.find(kTable, 1), std::nullopt);
  EXPECT_EQ(placement.find(18, 0), std::nullopt);
  EXPECT_THROW(placement.server_of(kDenseKeys, 4), InvalidArgument);
  EXPECT_THROW(placement.server_of(kDenseKeys, -1), InvalidArgument);

  Placement other(3);
  wire::Placement message;
  placement.write(kDenseKeys, 0, 4, &message);
  other.add(message);
  for (int p = 0; p < 4; ++p) EXPECT_EQ(other.server_of(kDenseKeys, p), placement.server_of(kDenseKeys, p));
}

TEST(Placement, ChangesNothingThatItRefuses) {
  Placement placement(3);
  placement.add(kDenseKeys, 0, std::array{2, 0});
  EXPECT_THROW(placement.add(kDenseKeys, 2, std::array{1, 3}), InvalidArgument);  // no server 3
  EXPECT_THROW(placement.add(kDenseKeys, 2, std::array{1, -1}), InvalidArgument);
  EXPECT_THROW(placement.add(kDenseKeys, 1, std::array{1, 1}), InvalidArgument);  // partition 1 is on server 0
  EXPECT_THROW(placement.add(kDenseKeys, 3, std::array{1}), Corrupt);             // partition 2 has no place
  wire::Placement message;
  message.add_servers(~0U);
  EXPECT_THROW(placement.add(message), Corrupt);
  message.set_servers(0, 0);
  message.set_first(~0U);
  EXPECT_THROW(placement.add(message), Corrupt);
  EXPECT_EQ(placement.partitions(kDenseKeys), 2);
}

}  // namespace
}  // namespace paceline

#include "key_partition.h"

#include <algorithm>
#include <limits>

#include "store.pb.h"

namespace paceline {
namespace {

// More partitions per server than this do not improve the balance.
constexpr std::int64_t kPartitionsPerServer = 16;
constexpr std::int64_t kSmallestPartition = 16 << 10;
constexpr std::int64_t kMostPartitions = 1 << 20;

std::int64_t bytes_of(const SliceRange& slice, const std::vector<KeyInfo>& keys) {
  return (slice.end - slice.begin) *
         static_cast<std::int64_t>(size_of(keys[static_cast<std::size_t>(slice.key)].dtype));
}

std::int64_t target_bytes(std::int64_t total, std::int64_t servers) {
  const std::int64_t balanced =
      std::clamp(total / (servers * kPartitionsPerServer), kSmallestPartition, kPartitionBytes);
  return std::max(balanced, total / kMostPartitions);
}

// Cuts a range into equal pieces of at most about `most` bytes.
std::vector<SliceRange> cut(const SliceRange& range, const KeyInfo& key, std::int64_t most) {
  const std::int64_t elements = range.end - range.begin;
  const std::int64_t bytes = elements * static_cast<std::int64_t>(size_of(key.dtype));
  if (bytes <= most) return {range};
  const std::int64_t pieces = (bytes + most - 1) / most;
  const std::int64_t row_bytes = key.row * static_cast<std::int64_t>(size_of(key.dtype));
  const std::int64_t aligned = key.row > 0 && row_bytes <= kSliceBytes ? key.row : 64;
  const std::int64_t length = ((elements + pieces - 1) / pieces + aligned - 1) / aligned * aligned;
  std::vector<SliceRange> cuts;
  for (std::int64_t begin = range.begin; begin < range.end; begin += length)
    cuts.push_back({range.key, begin, std::min(begin + length, range.end)});
  return cuts;
}

}  // namespace

std::string KeyInfo::describe() const { return name_of(dtype) + " " + shape.text() + (average ? " (average)" : ""); }

Layout make_layout(std::vector<KeyInfo> keys, int servers, std::int64_t held, int first_partition) {
  Layout layout;
  std::sort(keys.begin(), keys.end(), [](const KeyInfo& a, const KeyInfo& b) { return a.name < b.name; });
  layout.keys = std::move(keys);
  std::int64_t total = held;
  for (const KeyInfo& key : layout.keys) total += key.bytes();
  const std::int64_t target = target_bytes(total, servers);

  KeyPartition group;
  std::int64_t grouped = 0;
  const auto close_group = [&] {
    if (!group.slices.empty()) layout.partitions.push_back(std::move(group));
    group = {};
    grouped = 0;
  };
  for (int k = 0; k < static_cast<int>(layout.keys.size()); ++k) {
    const KeyInfo& key = layout.keys[static_cast<std::size_t>(k)];
    const SliceRange whole{k, 0, key.shape.size()};
    if (key.row > 0 && key.bytes() > target / 2) {
      for (const SliceRange& piece : cut(whole, key, kPartitionBytes)) layout.partitions.push_back({0, {piece}});
      continue;
    }
    if (key.bytes() > target + target / 2) {
      // Each piece is a partition of its own.
      for (const SliceRange& piece : cut(whole, key, target))
        layout.partitions.push_back({0, cut(piece, key, kSliceBytes)});
      continue;
    }
    if (grouped + key.bytes() > target + target / 2) close_group();
    for (const SliceRange& slice : cut(whole, key, key.row > 0 ? kPartitionBytes : kSliceBytes))
      group.slices.push_back(slice);
    grouped += key.bytes();
    if (grouped >= target) close_group();
  }
  close_group();

  for (KeyPartition& partition : layout.partitions) partition.id = first_partition++;
  return layout;
}

std::vector<std::int64_t> partition_bytes(const Layout& layout) {
  std::vector<std::int64_t> bytes;
  for (const KeyPartition& partition : layout.partitions) {
    std::int64_t& sum = bytes.emplace_back(0);
    for (const SliceRange& slice : partition.slices) sum += bytes_of(slice, layout.keys);
  }
  return bytes;
}

KeyInfo parse_key(const wire::KeyDeclaration& message) {
  KeyInfo key;
  key.name = message.name();
  if (key.name.empty() || key.name.size() > 4096) throw Corrupt("a key's name is empty or longer than 4096 bytes");
  if (!is_valid(message.dtype())) throw Corrupt(str("key '", key.name, "' has the unknown type ", message.dtype()));
  key.dtype = static_cast<DType>(message.dtype());
  if (message.shape_size() > Shape::kMaxDims) throw Corrupt(str("key '", key.name, "' has too many dimensions"));
  std::int64_t size = 1;
  for (const std::int64_t extent : message.shape()) {
    constexpr std::int64_t kMost = std::int64_t{1} << 50;
    if (extent < 0 || (extent > 0 && size > kMost / extent))
      throw Corrupt(str("key '", key.name, "' has an impossible shape"));
    size *= extent;
    key.shape.push_back(extent);
  }
  key.average = message.average();
  if (message.row() < 0 || message.row() > key.shape.size())
    throw Corrupt(str("key '", key.name, "' has rows of ", message.row(), " elements"));
  key.row = message.row();
  return key;
}

void write_key(const KeyInfo& key, wire::KeyDeclaration* message) {
  message->set_name(key.name);
  message->set_dtype(static_cast<int>(key.dtype));
  for (const std::int64_t extent : key.shape) message->add_shape(extent);
  message->set_average(key.average);
  message->set_row(key.row);
}

KeyPartition parse_partition(const wire::PartitionPlan& message, const std::vector<KeyInfo>& keys) {
  constexpr std::uint32_t kLargestId = std::numeric_limits<int>::max();
  KeyPartition partition;
  if (message.id() > kLargestId) throw Corrupt("a partition's number is too large");
  partition.id = static_cast<int>(message.id());
  for (const wire::SliceRange& range : message.slices()) {
    if (range.key() >= keys.size()) throw Corrupt(str("a slice names key ", range.key(), " of ", keys.size()));
    const KeyInfo& key = keys[range.key()];
    if (range.begin() < 0 || range.begin() > range.end() || range.end() > key.shape.size())
      throw Corrupt(str("a slice [", range.begin(), ", ", range.end(), ") is outside key '", key.name, "'"));
    partition.slices.push_back({static_cast<int>(range.key()), range.begin(), range.end()});
  }
  return partition;
}

void write_partition(const KeyPartition& partition, wire::PartitionPlan* message) {
  message->set_id(static_cast<std::uint32_t>(partition.id));
  for (const SliceRange& slice : partition.slices) {
    wire::SliceRange* range = message->add_slices();
    range->set_key(static_cast<std::uint32_t>(slice.key));
    range->set_begin(slice.begin);
    range->set_end(slice.end);
  }
}

Layout parse_layout(const wire::InitReply& message) {
  Layout layout;
  for (const auto& key : message.keys()) layout.keys.push_back(parse_key(key));
  for (const auto& plan : message.partitions()) layout.partitions.push_back(parse_partition(plan, layout.keys));
  return layout;
}

void write_layout(const Layout& layout, wire::InitReply* message) {
  for (const KeyInfo& key : layout.keys) write_key(key, message->add_keys());
  for (const KeyPartition& partition : layout.partitions) write_partition(partition, message->add_partitions());
}

}  // namespace paceline

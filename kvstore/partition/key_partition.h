#pragma once
// How keys are cut: large keys into slices, slices grouped into partitions of a few megabytes. Decided once, by the
// scheduler, from what the workers declare. Where a partition is, placement.h says.

#include <paceline/dtype.h>
#include <paceline/shape.h>

#include <cstdint>
#include <string>
#include <vector>

namespace paceline {

namespace wire {
class InitReply;
class KeyDeclaration;
class PartitionPlan;
}  // namespace wire

struct KeyInfo {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
  bool average = false;
  std::int64_t row =
      0;  // elements; not 0: slices are as large as a partition, and consist of whole rows if rows are short

  std::int64_t bytes() const { return shape.size() * static_cast<std::int64_t>(size_of(dtype)); }
  std::string describe() const;  // "float32 (2, 3)"
  friend bool operator==(const KeyInfo&, const KeyInfo&) = default;
};

struct SliceRange {
  int key = 0;  // index into Layout::keys
  std::int64_t begin = 0, end = 0;
};

struct KeyPartition {
  int id = 0;
  std::vector<SliceRange> slices;
};

struct Layout {
  std::vector<KeyInfo> keys;  // by name
  std::vector<KeyPartition> partitions;
};

constexpr std::int64_t kPartitionBytes = std::int64_t{4} << 20;
// The size of a slice of a large key. A message holds at least one slice. A worker packs as many slices into a message
// as are fastest on its link.
constexpr std::int64_t kSliceBytes = std::int64_t{512} << 10;

// Cuts `keys` into enough partitions that `servers` servers, which hold `held` bytes already, can share them evenly.
// Partitions are numbered from `first_partition`.
Layout make_layout(std::vector<KeyInfo> keys, int servers, std::int64_t held, int first_partition);
// Of each partition.
std::vector<std::int64_t> partition_bytes(const Layout& layout);

// Convert from and to messages. parse_key() throws Corrupt for values that no worker declares (shape, type, empty
// name).
KeyInfo parse_key(const wire::KeyDeclaration& message);
void write_key(const KeyInfo& key, wire::KeyDeclaration* message);
// Throws Corrupt on ranges outside the keys.
KeyPartition parse_partition(const wire::PartitionPlan& message, const std::vector<KeyInfo>& keys);
void write_partition(const KeyPartition& partition, wire::PartitionPlan* message);
Layout parse_layout(const wire::InitReply& message);
void write_layout(const Layout& layout, wire::InitReply* message);

}  // namespace paceline

#pragma once
// Cuts large keys into slices, and groups slices into partitions of at most a few megabytes. The scheduler does this
// once for each call of init, from the keys that the workers declare. placement.h says on which server a partition is.

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
  // Elements per row if slices should hold whole rows, or 0. Slices of such a key have up to about kPartitionBytes
  // bytes. A row of more than kSliceBytes bytes may be cut.
  std::int64_t row = 0;

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
  std::vector<KeyInfo> keys;  // ordered by name
  std::vector<KeyPartition> partitions;
};

constexpr std::int64_t kPartitionBytes = std::int64_t{4} << 20;
// A large key without rows is cut into slices of at most about this size. A message holds at least one slice. A worker
// adds further slices, up to the best message size for its link (FlowWindow in send/outbox.h).
constexpr std::int64_t kSliceBytes = std::int64_t{512} << 10;

// Cuts `keys` into enough partitions that `servers` servers can share them evenly. The servers already hold `held`
// bytes. Partitions are numbered from `first_partition`.
Layout make_layout(std::vector<KeyInfo> keys, int servers, std::int64_t held, int first_partition);
// The bytes of each partition.
std::vector<std::int64_t> partition_bytes(const Layout& layout);

// Convert from and to messages. parse_key() throws Corrupt for an impossible name, type, shape or row size.
KeyInfo parse_key(const wire::KeyDeclaration& message);
void write_key(const KeyInfo& key, wire::KeyDeclaration* message);
// Throws Corrupt for an unknown key, for a range outside its key, or for a partition number that is too large.
KeyPartition parse_partition(const wire::PartitionPlan& message, const std::vector<KeyInfo>& keys);
void write_partition(const KeyPartition& partition, wire::PartitionPlan* message);
Layout parse_layout(const wire::InitReply& message);
void write_layout(const Layout& layout, wire::InitReply* message);

}  // namespace paceline

#pragma once
// Which record stands at which position of an epoch.

#include <paceline/data_iterator.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "permutation.h"

namespace paceline::io {

// The shards that some positions need, each once, in the order of their first use.
class ShardUse {
 public:
  explicit ShardUse(std::size_t shards) : seen_(shards) {}
  void add(std::size_t shard) {
    if (!seen_[shard]) shards_.push_back(shard);
    seen_[shard] = true;
  }
  const std::vector<std::size_t>& shards() const { return shards_; }

 private:
  std::vector<bool> seen_;
  std::vector<std::size_t> shards_;
};

// Immutable, so every function is thread-safe.
class RecordOrder {
 public:
  explicit RecordOrder(std::size_t shards) : shard_count_(shards) {}
  virtual ~RecordOrder() = default;

  // The number of positions.
  virtual std::int64_t size() const = 0;
  // The record at `position`, by its number in the data set.
  virtual std::int64_t record(std::int64_t position) const = 0;
  // Adds the shards that hold the records of these positions. It may add others of the same windows.
  virtual void add_shards(Range positions, ShardUse& use) const;
  // Positions that follow each other need at most so many shards.
  virtual std::size_t spread() const { return shard_count_; }

 protected:
  std::size_t shard_count_;
};

// Shards in a random order, and in it windows of at most `window` shards, whose records are in a random order. With
// nodes the shards of one node follow those of the other, each in an order of its own.
class ShuffledShards final : public RecordOrder {
 public:
  // `starts`: the first record of each shard, and the number of records at the end. `nodes`: the first shard of each,
  // and the number of shards at the end. Without a seed everything keeps its place. The shards are numbered from
  // `first_shard`.
  ShuffledShards(std::vector<std::int64_t> starts, const std::vector<std::size_t>& nodes, std::size_t window,
                 std::optional<std::uint64_t> seed, std::size_t first_shard = 0);

  std::int64_t size() const override { return at_.back(); }
  std::int64_t record(std::int64_t position) const override;
  void add_shards(Range positions, ShardUse& use) const override;
  std::size_t spread() const override { return std::min(shard_count_, 2 * largest_window_); }

 private:
  struct Window {
    std::size_t begin, end;  // of its shards, as places in `shards_`
    Permutation records;
  };
  const Window& window_at(std::int64_t position) const;

  std::vector<std::int64_t> starts_;
  std::size_t first_shard_;
  bool shuffled_;
  std::vector<std::size_t> shards_;  // in their order
  std::vector<std::int64_t> at_;     // the first position of each of them, and the number of positions at the end
  std::vector<Window> windows_;
  std::size_t largest_window_ = 1;
};

// Each step of the nodes' common batches has the same number of records of each node, one node after the other. So a
// part of the workers reads the shards of some nodes only. The rests, where nodes differ in records, follow at the end.
class InterleavedNodes final : public RecordOrder {
 public:
  // `edges`: the first position of each node in `nodes`, and the number of positions at the end. A step has `grain`
  // records of each node.
  InterleavedNodes(std::unique_ptr<RecordOrder> nodes, std::vector<std::int64_t> edges, std::int64_t grain,
                   std::size_t shards);

  std::int64_t size() const override { return nodes_->size(); }
  std::int64_t record(std::int64_t position) const override { return nodes_->record(place(position).begin); }
  void add_shards(Range positions, ShardUse& use) const override;
  std::size_t spread() const override { return nodes_->spread() * node_count(); }

 private:
  std::size_t node_count() const { return edges_.size() - 1; }
  // Where a position is in `nodes_`, and how far the positions behind it follow there.
  Range place(std::int64_t position) const;

  std::unique_ptr<RecordOrder> nodes_;
  std::vector<std::int64_t> edges_;
  std::int64_t grain_;
  std::int64_t steps_ = 0;           // that all nodes have in full
  std::vector<std::int64_t> rests_;  // the first position of each node's rest, and the number of positions at the end
};

// The range that holds `value` of those that begin at `starts`, which ends with the end of the last.
inline std::size_t range_of(const std::vector<std::int64_t>& starts, std::int64_t value) {
  return static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), value) - starts.begin()) - 1;
}

}  // namespace paceline::io

#pragma once
// Orders of epochs that are drawn: by weights, of several data sets, in batches of one key.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "record_order.h"

namespace paceline::io {

// Draws numbers in proportion to weights, in constant time (Walker's and Vose's alias method).
class WeightTable {
 public:
  explicit WeightTable(const std::vector<double>& weights);
  std::int64_t draw(Random& random) const;

 private:
  std::vector<std::int64_t> others_;
  std::vector<float> keep_;  // the probability of the number itself, else the other one
};

// Each position draws a record.
class WeightedOrder final : public RecordOrder {
 public:
  WeightedOrder(std::shared_ptr<const WeightTable> table, std::int64_t size, std::uint64_t seed, std::size_t shards)
      : RecordOrder(shards), table_(std::move(table)), size_(size), seed_(seed) {}
  std::int64_t size() const override { return size_; }
  std::int64_t record(std::int64_t position) const override {
    Random random(mix(seed_, static_cast<std::uint64_t>(position)));
    return table_->draw(random);
  }

 private:
  std::shared_ptr<const WeightTable> table_;
  std::int64_t size_;
  std::uint64_t seed_;
};

// The records of each key together.
struct GroupTable {
  // Batches have `grain` records.
  GroupTable(const std::vector<std::int64_t>& keys, std::int64_t grain);

  std::int64_t grain;
  std::vector<std::int64_t> records;  // by key
  std::vector<std::int64_t> runs;     // the first of each key in `records`, and their number at the end
  std::vector<std::int64_t> full;     // the first full batch of each key, and their number at the end
  std::vector<std::int64_t> rests;    // the first position of what is left of each key, and the end
};

// Full batches of one key in a random order, then what is left of each key.
class GroupedOrder final : public RecordOrder {
 public:
  GroupedOrder(std::shared_ptr<const GroupTable> table, std::optional<std::uint64_t> seed, std::size_t shards);
  std::int64_t size() const override { return static_cast<std::int64_t>(table_->records.size()); }
  std::int64_t record(std::int64_t position) const override;

 private:
  std::shared_ptr<const GroupTable> table_;
  std::optional<std::uint64_t> seed_;
  std::optional<Permutation> batches_;
};

// A data set of a mixture.
struct MixturePart {
  std::vector<std::int64_t> starts;  // of its shards in the whole, and its end
  std::size_t first_shard = 0;
  std::int64_t share = 0;  // positions of an epoch
};

// Cuts `size` in proportion to the weights.
std::vector<std::int64_t> shares_of(const std::vector<double>& weights, std::int64_t size);

// Several data sets, each with its share in every kBlock positions. Each is gone through again and again, whatever the
// epochs: so each of its records comes once in every pass.
class MixedOrder final : public RecordOrder {
 public:
  MixedOrder(std::shared_ptr<const std::vector<MixturePart>> parts, std::size_t window, std::uint64_t seed,
             std::int64_t epoch, std::size_t shards);
  std::int64_t size() const override { return size_; }
  std::int64_t record(std::int64_t position) const override;
  std::size_t spread() const override { return std::min(shard_count_, spread_); }

 private:
  static constexpr std::int64_t kBlock = 1024;

  // Where a data set is in its passes.
  struct Place {
    std::uint64_t pass;
    std::int64_t position;
  };
  Place place(const MixturePart& part, std::int64_t drawn) const;
  ShuffledShards pass_of(std::size_t part, std::uint64_t pass) const;
  std::int64_t begin_of(std::int64_t block) const;
  // How many of a part's positions come before a block.
  std::int64_t before(const MixturePart& part, std::int64_t block) const {
    return block * (part.share / blocks_) + block * (part.share % blocks_) / blocks_;
  }

  std::shared_ptr<const std::vector<MixturePart>> parts_;
  std::size_t window_;
  std::uint64_t seed_, epoch_seed_;
  std::int64_t epoch_, size_ = 0, blocks_ = 1;
  std::vector<std::vector<ShuffledShards>> passes_;  // of each part, the first of this epoch
  std::size_t spread_ = 0;
};

}  // namespace paceline::io

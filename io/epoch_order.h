#pragma once
// The order of an epoch: which record stands at which position, which positions a part delivers, cut into batches how.
// A position names the same record for every number of parts.

#include <paceline/data_iterator.h>
#include <paceline/record_loader.h>
#include <paceline/sampling.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "permutation.h"
#include "record_order.h"
#include "sampled_order.h"

namespace paceline::io {

// Cuts positions into batches. Copyable state, no threads.
class Batches {
 public:
  Batches() = default;
  // Batches have at most `batch` positions, and none on both sides of a multiple of `boundary` (0: no boundary).
  Batches(const RangeSet& positions, std::int64_t batch, std::int64_t boundary)
      : left_(positions.ranges()), batch_(batch), boundary_(boundary) {}
  // Is there no further batch?
  bool empty() const { return current_ == left_.size(); }
  // The positions of the next batch in ascending order; false at the end.
  bool next(std::vector<std::int64_t>& positions);

 private:
  std::vector<Range> left_;
  std::size_t current_ = 0;
  std::int64_t batch_ = 1;
  std::int64_t boundary_ = 0;
};

// The positions of a part, and how it cuts them.
struct Share {
  RangeSet positions;
  std::int64_t batch = 1;     // the most positions of a batch
  std::int64_t boundary = 0;  // as Batches takes it
  std::size_t spread = 0;     // positions that follow each other need at most so many shards

  // What is left of the share after `done`.
  RangeSet without(const RangeSet& done) const;
};

// What the orders of all epochs have in common.
struct OrderOptions {
  std::int64_t batch = 1;
  std::optional<std::uint64_t> seed = {};
  Partition partition = Partition::kShards;
  int window = 0;  // shards; 0: all
  int virtual_nodes = 0;
  std::int64_t global_batch = 0;
  Sampling sampling = {};
  // Data sets of a mixture: the first shard of each, and its weight. None: there is one.
  std::vector<std::pair<std::size_t, double>> mixture = {};
};

class EpochOrder;

// Makes the orders of epochs. Immutable, but for what it computes once.
class Order {
 public:
  // `starts`: the first record of each shard, and the number of records at the end. `what` names the data set in
  // errors. Throws InvalidArgument where options do not go together.
  Order(std::vector<std::int64_t> starts, OrderOptions options, std::string what);

  // The number of positions of an epoch.
  std::int64_t size() const { return size_; }
  EpochOrder epoch(std::int64_t epoch) const;
  // Everything that decides which record stands where, but for the data set.
  std::string text() const;

 private:
  friend class EpochOrder;
  void check() const;
  void check_sampling() const;
  void make_nodes();
  void make_mixture();
  bool by_steps() const { return options_.global_batch > 0 || options_.partition == Partition::kRecords; }
  std::unique_ptr<RecordOrder> records(std::int64_t epoch) const;

  std::vector<std::int64_t> starts_;
  OrderOptions options_;
  std::string what_;
  std::int64_t size_ = 0;
  std::int64_t grain_ = 0;  // length of the steps for which groups and interleaved nodes are made; 0: for none
  std::string sampling_text_;
  std::vector<std::size_t> nodes_;   // the first shard of each, and the number of shards
  std::vector<std::int64_t> edges_;  // the first position of each, and the number of positions
  std::shared_ptr<const WeightTable> weights_;
  std::shared_ptr<const GroupTable> groups_;
  std::shared_ptr<const std::vector<MixturePart>> mixture_;
};

// The order of one epoch. The Order must outlive it.
class EpochOrder {
 public:
  EpochOrder(const Order& order, std::int64_t epoch) : order_(&order), records_(order.records(epoch)) {}

  std::int64_t size() const { return order_->size(); }
  // All positions but those that are done. Throws InvalidArgument where some of these do not exist.
  RangeSet all_but(const RangeSet& done) const;
  // The record (its number in the data set) at `position`.
  std::int64_t record(std::int64_t position) const { return records_->record(position); }
  // The share of a part. Throws InvalidArgument where it would be empty.
  Share share(Part part) const;
  // Batches of positions that lost workers left.
  Batches taken_over(const RangeSet& left) const;
  // The shards of these positions, in the order of their first use.
  std::vector<std::size_t> shards(const RangeSet& positions) const;
  // Positions that follow each other, of all parts, need at most so many shards.
  std::size_t spread() const { return records_->spread(); }

 private:
  std::int64_t edge(int index, int count) const;

  const Order* order_;
  std::unique_ptr<RecordOrder> records_;
};

// 8 hexadecimal digits.
std::string checksum_text(std::uint32_t checksum);

// Sorted positions as ranges.
std::vector<Range> to_ranges(const std::vector<std::int64_t>& positions);

}  // namespace paceline::io

#pragma once
// The order of an epoch: which record stands at which position, which positions a part delivers, cut into batches how.
// Depends on seed and epoch only; a position names the same record for every number of parts.

#include <paceline/data_iterator.h>
#include <paceline/record_loader.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "permutation.h"

namespace paceline::io {

// Deals positions out, each once. Copyable state, no threads.
class Batches {
 public:
  // The positions of the next batch in ascending order; false at the end.
  bool next(std::vector<std::int64_t>& positions);

 private:
  friend class EpochOrder;
  Range& choose_lane();

  std::vector<Range> lanes_;  // what is left; several are drawn from at random, in proportion to what is left
  bool interleaved_ = false;
  bool step_aligned_ = false;
  std::size_t current_ = 0;
  std::int64_t left_ = 0;
  std::int64_t batch_ = 1;
  RangeSet done_;
  Random random_{0};
};

class EpochOrder {
 public:
  // `starts`: the first record of each shard, and the number of records at the end.
  EpochOrder(std::vector<std::int64_t> starts, Partition partition, std::optional<std::uint64_t> seed,
             std::int64_t epoch);

  std::int64_t size() const { return starts_.back(); }
  // The record (its number in the data set) at `position`.
  std::int64_t record(std::int64_t position) const;
  // The positions of a part. Throws InvalidArgument where it would be empty, naming `what`.
  RangeSet part(Part part, std::int64_t batch, const std::string& what) const;
  // Batches of `positions` less `done`. `step_aligned`: each batch is what is left of one step of kRecords, so that the
  // parts keep step with each other.
  Batches batches(const RangeSet& positions, const RangeSet& done, std::int64_t batch, bool step_aligned) const;

 private:
  std::vector<std::int64_t> starts_;
  Partition partition_;
  bool shuffled_;
  std::uint64_t seed_;
  std::vector<Permutation> permutations_;  // of the whole (kRecords) or of each shard (kShards); none unshuffled
};

// Sorted positions as ranges.
std::vector<Range> to_ranges(const std::vector<std::int64_t>& positions);

}  // namespace paceline::io

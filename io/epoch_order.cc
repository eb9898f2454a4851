#include "epoch_order.h"

#include <paceline/error.h>

#include <algorithm>

namespace paceline::io {

EpochOrder::EpochOrder(std::vector<std::int64_t> starts, Partition partition, std::optional<std::uint64_t> seed,
                       std::int64_t epoch)
    : starts_(std::move(starts)),
      partition_(partition),
      shuffled_(seed.has_value()),
      seed_(mix(seed.value_or(0), static_cast<std::uint64_t>(epoch))) {
  if (!shuffled_) return;
  if (partition_ == Partition::kRecords) {
    permutations_.emplace_back(size(), seed_);
    return;
  }
  for (std::size_t shard = 0; shard + 1 < starts_.size(); ++shard) {
    permutations_.emplace_back(starts_[shard + 1] - starts_[shard], mix(seed_, shard));
  }
}

std::int64_t EpochOrder::record(std::int64_t position) const {
  if (!shuffled_) return position;
  if (partition_ == Partition::kRecords) return permutations_.front()(position);
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), position);
  const std::size_t shard = static_cast<std::size_t>(after - starts_.begin()) - 1;
  return starts_[shard] + permutations_[shard](position - starts_[shard]);
}

RangeSet EpochOrder::part(Part part, std::int64_t batch, const std::string& what) const {
  const std::int64_t count = size();
  if (part.count == 0) return {};
  require(part.count >= 1 && part.index >= 0 && part.index < part.count, "there is no part ", part.index, " of ",
          part.count);
  require(part.count <= count, part.count, " workers share the ", count, " records of ", what,
          "; each needs at least one: start fewer workers");
  RangeSet result;
  if (partition_ == Partition::kShards) {
    const auto edge = [&](int index) { return count / part.count * index + count % part.count * index / part.count; };
    result.add({edge(part.index), edge(part.index + 1)});
    return result;
  }
  const std::int64_t step = std::min(batch, count) * part.count;  // a huge batch takes all
  for (std::int64_t begin = 0; begin < count; begin += step) {
    // The last step may be short: all parts share it alike.
    const std::int64_t here = std::min(step, count - begin);
    result.add({begin + here * part.index / part.count, begin + here * (part.index + 1) / part.count});
  }
  return result;
}

Batches EpochOrder::batches(const RangeSet& positions, const RangeSet& done, std::int64_t batch,
                            bool step_aligned) const {
  Batches result;
  result.batch_ = batch;
  result.done_ = done;
  result.step_aligned_ = step_aligned;
  result.interleaved_ = shuffled_ && partition_ == Partition::kShards;
  for (Range range : positions.ranges()) {
    require(range.begin >= 0 && range.end <= size(), "there are no positions ", range.begin, " to ", range.end,
            " in a data set of ", size(), " records");
    result.left_ += range.end - range.begin;
    if (!result.interleaved_) {
      result.lanes_.push_back(range);
      continue;
    }
    while (range.begin < range.end) {
      const std::int64_t edge = *std::upper_bound(starts_.begin(), starts_.end(), range.begin);
      result.lanes_.push_back({range.begin, std::min(edge, range.end)});
      range.begin = result.lanes_.back().end;
    }
  }
  const std::int64_t first = positions.empty() ? 0 : positions.ranges().front().begin;
  result.random_ = Random(mix(seed_ + 1, static_cast<std::uint64_t>(first)));
  return result;
}

Range& Batches::choose_lane() {
  if (!interleaved_) {
    while (lanes_[current_].begin == lanes_[current_].end) ++current_;
    return lanes_[current_];
  }
  std::int64_t ticket = static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(left_)));
  for (current_ = 0;; ++current_) {
    const std::int64_t length = lanes_[current_].end - lanes_[current_].begin;
    if (ticket < length) return lanes_[current_];
    ticket -= length;
  }
}

bool Batches::next(std::vector<std::int64_t>& positions) {
  positions.clear();
  // What is done is drawn all the same, so that a resumed epoch keeps the order and the steps of the whole one.
  while (left_ > 0 && (step_aligned_ ? positions.empty() : static_cast<std::int64_t>(positions.size()) < batch_)) {
    Range& lane = choose_lane();
    const std::int64_t count = step_aligned_ ? std::min(batch_, lane.end - lane.begin) : 1;
    for (const std::int64_t end = lane.begin + count; lane.begin < end; ++lane.begin) {
      if (!done_.contains(lane.begin)) positions.push_back(lane.begin);
    }
    left_ -= count;
  }
  std::sort(positions.begin(), positions.end());
  return !positions.empty();
}

std::vector<Range> to_ranges(const std::vector<std::int64_t>& positions) {
  std::vector<Range> ranges;
  for (const std::int64_t position : positions) {
    if (!ranges.empty() && ranges.back().end == position) {
      ++ranges.back().end;
    } else {
      ranges.push_back({position, position + 1});
    }
  }
  return ranges;
}

}  // namespace paceline::io

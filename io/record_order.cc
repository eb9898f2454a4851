#include "record_order.h"

#include <numeric>
#include <utility>

namespace paceline::io {

void RecordOrder::add_shards(Range positions, ShardUse& use) const {
  if (positions.begin >= positions.end) return;
  for (std::size_t shard = 0; shard < shard_count_; ++shard) use.add(shard);
}

ShuffledShards::ShuffledShards(std::vector<std::int64_t> starts, const std::vector<std::size_t>& nodes,
                               std::size_t window, std::optional<std::uint64_t> seed, std::size_t first_shard)
    : RecordOrder(starts.size() - 1),
      starts_(std::move(starts)),
      first_shard_(first_shard),
      shuffled_(seed.has_value()),
      shards_(shard_count_),
      at_{0} {
  std::iota(shards_.begin(), shards_.end(), std::size_t{0});
  if (shuffled_) {
    for (std::size_t node = 0; node + 1 < nodes.size(); ++node) {
      const std::size_t count = nodes[node + 1] - nodes[node];
      if (count <= window) continue;  // one window mixes them
      const Permutation order(static_cast<std::int64_t>(count), mix(*seed, node));
      for (std::size_t i = 0; i < count; ++i)
        shards_[nodes[node] + i] = nodes[node] + static_cast<std::size_t>(order(static_cast<std::int64_t>(i)));
    }
  }
  for (const std::size_t shard : shards_) at_.push_back(at_.back() + starts_[shard + 1] - starts_[shard]);
  for (std::size_t node = 0; node + 1 < nodes.size(); ++node) {
    // Windows of about the same size: a short last one would mix less.
    const std::size_t count = nodes[node + 1] - nodes[node], parts = (count + window - 1) / window;
    for (std::size_t i = 0; i < parts; ++i) {
      const std::size_t begin = nodes[node] + count * i / parts, end = nodes[node] + count * (i + 1) / parts;
      // Where one window has all, this is the order of earlier versions, and their checkpoints go on with it.
      const std::uint64_t own = begin == 0 ? seed.value_or(0) : mix(seed.value_or(0) + 1, begin);
      windows_.push_back({begin, end, Permutation(at_[end] - at_[begin], own)});
      largest_window_ = std::max(largest_window_, end - begin);
    }
  }
}

const ShuffledShards::Window& ShuffledShards::window_at(std::int64_t position) const {
  const std::size_t place = range_of(at_, position);
  const auto after = std::upper_bound(windows_.begin(), windows_.end(), place,
                                      [](std::size_t shard, const Window& window) { return shard < window.begin; });
  return *(after - 1);
}

std::int64_t ShuffledShards::record(std::int64_t position) const {
  if (!shuffled_) return starts_.front() + position;
  const Window& window = window_at(position);
  const std::int64_t begin = at_[window.begin];
  const std::int64_t drawn = begin + window.records(position - begin);
  const std::size_t place = range_of(at_, drawn);
  return starts_[shards_[place]] + drawn - at_[place];
}

void ShuffledShards::add_shards(Range positions, ShardUse& use) const {
  while (positions.begin < positions.end) {
    std::size_t place = range_of(at_, positions.begin), end = place + 1;
    if (shuffled_) {
      const Window& window = window_at(positions.begin);
      place = window.begin;
      end = window.end;
    }
    for (; place < end; ++place) use.add(first_shard_ + shards_[place]);
    positions.begin = at_[end];
  }
}

InterleavedNodes::InterleavedNodes(std::unique_ptr<RecordOrder> nodes, std::vector<std::int64_t> edges,
                                   std::int64_t grain, std::size_t shards)
    : RecordOrder(shards), nodes_(std::move(nodes)), edges_(std::move(edges)), grain_(grain) {
  std::int64_t shortest = edges_.back();
  for (std::size_t node = 0; node < node_count(); ++node)
    shortest = std::min(shortest, edges_[node + 1] - edges_[node]);
  steps_ = shortest / grain_;
  rests_.push_back(steps_ * grain_ * static_cast<std::int64_t>(node_count()));
  for (std::size_t node = 0; node < node_count(); ++node)
    rests_.push_back(rests_.back() + edges_[node + 1] - edges_[node] - steps_ * grain_);
}

Range InterleavedNodes::place(std::int64_t position) const {
  const auto count = static_cast<std::int64_t>(node_count());
  if (position >= rests_.front()) {
    const std::size_t node = range_of(rests_, position);
    return {edges_[node] + steps_ * grain_ + position - rests_[node], edges_[node + 1]};
  }
  const std::int64_t begin =
      edges_[static_cast<std::size_t>(position / grain_ % count)] + position / (grain_ * count) * grain_;
  return {begin + position % grain_, begin + grain_};
}

void InterleavedNodes::add_shards(Range positions, ShardUse& use) const {
  while (positions.begin < positions.end) {
    Range piece = place(positions.begin);
    piece.end = std::min(piece.end, piece.begin + positions.end - positions.begin);
    nodes_->add_shards(piece, use);
    positions.begin += piece.end - piece.begin;
  }
}

}  // namespace paceline::io

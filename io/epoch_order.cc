#include "epoch_order.h"

#include <paceline/crc32c.h>
#include <paceline/error.h>
#include <paceline/number.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace paceline::io {
namespace {

template <class T>
std::string checksum_of(const std::vector<T>& values) {
  return checksum_text(crc32c({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)}));
}

}  // namespace

bool Batches::next(std::vector<std::int64_t>& positions) {
  positions.clear();
  while (current_ < left_.size() && static_cast<std::int64_t>(positions.size()) < batch_) {
    Range& range = left_[current_];
    const std::int64_t room = batch_ - static_cast<std::int64_t>(positions.size());
    std::int64_t end = range.begin + std::min(room, range.end - range.begin);
    if (boundary_ > 0) {
      if (!positions.empty() && positions.front() / boundary_ != range.begin / boundary_) break;
      end = std::min(end, range.begin - range.begin % boundary_ + boundary_);
    }
    for (; range.begin < end; ++range.begin) positions.push_back(range.begin);
    if (range.begin == range.end) ++current_;
  }
  return !positions.empty();
}

RangeSet Share::without(const RangeSet& done) const {
  RangeSet left = positions;
  for (const Range& range : done.ranges()) left.subtract(range);
  return left;
}

Order::Order(std::vector<std::int64_t> starts, OrderOptions options, std::string what)
    : starts_(std::move(starts)), options_(std::move(options)), what_(std::move(what)), size_(starts_.back()) {
  check();
  check_sampling();
  if (options_.sampling.epoch_size > 0) size_ = options_.sampling.epoch_size;
  const auto shards = static_cast<int>(starts_.size() - 1);
  if (options_.window == 0 || options_.window > shards) options_.window = std::max(1, shards);
  make_nodes();
  if (!options_.mixture.empty()) make_mixture();
  Sampling& sampling = options_.sampling;
  if (!sampling.weights.empty()) {
    weights_ = std::make_shared<WeightTable>(sampling.weights);
    sampling_text_ = " weights=" + checksum_of(sampling.weights);
  }
  if (!sampling.groups.empty()) {
    grain_ = by_steps() ? options_.global_batch : options_.batch;
    groups_ = std::make_shared<GroupTable>(sampling.groups, std::min(grain_, size_));
    sampling_text_ = " groups=" + checksum_of(sampling.groups);
  }
  sampling = {};  // the tables stand for them
  if (options_.virtual_nodes > 0 && by_steps()) grain_ = options_.global_batch;
}

void Order::check() const {
  require(options_.batch >= 1, "the batch size is at least 1, not ", options_.batch);
  require(options_.window >= 0, "the window is a number of shards, or 0 for all, not ", options_.window);
  require(options_.global_batch >= 0, "the global batch is at least 1 example, or 0 for none, not ",
          options_.global_batch);
  const std::int64_t shards = static_cast<std::int64_t>(starts_.size()) - 1;
  const int nodes = options_.virtual_nodes;
  require(nodes >= 0 && nodes <= shards, "the ", shards, " shards of ", what_, " cannot be dealt to ", nodes,
          " virtual nodes; each needs one: choose 0 to ", shards, ", or pack more shards");
  if (nodes == 0) return;
  require(options_.global_batch > 0 || options_.partition == Partition::kShards,
          "virtual nodes need a global_batch where positions are dealt step by step (Partition::kRecords)");
  require(options_.global_batch % nodes == 0, "a global batch of ", options_.global_batch,
          " cannot be shared alike by ", nodes, " virtual nodes; choose a multiple");
}

void Order::check_sampling() const {
  const Sampling& sampling = options_.sampling;
  const bool weighted = !sampling.weights.empty(), grouped = !sampling.groups.empty();
  const bool mixed = !options_.mixture.empty();
  require(weighted + grouped + mixed <= 1,
          "weights, groups and a mixture of data sets exclude each other; choose one of them");
  require(options_.virtual_nodes == 0 || weighted + grouped + mixed == 0,
          "virtual nodes go with neither weights nor groups nor a mixture of data sets; leave virtual_nodes out");
  require(options_.seed || !(weighted || mixed), "records that are drawn by weights need the seed `shuffle`");
  require(sampling.epoch_size >= 0, "an epoch has at least 1 position, not ", sampling.epoch_size);
  require(sampling.epoch_size == 0 || weighted || mixed,
          "epoch_size is for records that are drawn by weights or mixed; others come once each, so leave it out");
  for (const auto& [name, count] :
       {std::pair{"weights", sampling.weights.size()}, std::pair{"groups", sampling.groups.size()}})
    require(count == 0 || static_cast<std::int64_t>(count) == starts_.back(), "there are ", count, ' ', name,
            " for the ", starts_.back(), " records of ", what_, "; each record needs one");
  require(!grouped || options_.global_batch > 0 || options_.partition == Partition::kShards,
          "groups need a global_batch where positions are dealt step by step (Partition::kRecords, MemoryIterator)");
}

// Whole shards, so that each node has about the same number of records.
void Order::make_nodes() {
  const auto shards = starts_.size() - 1, nodes = static_cast<std::size_t>(std::max(1, options_.virtual_nodes));
  nodes_.push_back(0);
  for (std::size_t node = 1; node < nodes; ++node) {
    const std::int64_t part = static_cast<std::int64_t>(node), all = static_cast<std::int64_t>(nodes);
    const std::int64_t wanted = starts_.back() / all * part + starts_.back() % all * part / all;
    auto shard = static_cast<std::size_t>(std::lower_bound(starts_.begin(), starts_.end(), wanted) - starts_.begin());
    if (shard > 0 && wanted - starts_[shard - 1] < starts_[shard] - wanted) --shard;
    // Each has a shard at least, and leaves one for each that follows.
    nodes_.push_back(std::clamp(shard, nodes_.back() + 1, shards - (nodes - node)));
  }
  nodes_.push_back(shards);
  for (const std::size_t shard : nodes_) edges_.push_back(starts_[shard]);
  edges_.back() = size_;  // which differs where records are drawn; then there is one node
}

void Order::make_mixture() {
  std::vector<double> weights;
  for (const auto& [shard, weight] : options_.mixture) weights.push_back(weight);
  const std::vector<std::int64_t> shares = shares_of(weights, size_);
  auto parts = std::make_shared<std::vector<MixturePart>>();
  for (std::size_t i = 0; i < shares.size(); ++i) {
    require(shares[i] > 0, "an epoch of ", size_, " positions has no place for data set ", i, " of the mixture, whose ",
            "weight is ", weights[i], "; raise epoch_size or the weight");
    const std::size_t first = options_.mixture[i].first;
    const std::size_t end = i + 1 < shares.size() ? options_.mixture[i + 1].first : starts_.size() - 1;
    const auto at = [&](std::size_t shard) { return starts_.begin() + static_cast<std::ptrdiff_t>(shard); };
    parts->push_back({{at(first), at(end) + 1}, first, shares[i]});
  }
  mixture_ = std::move(parts);
}

std::unique_ptr<RecordOrder> Order::records(std::int64_t epoch) const {
  const std::size_t shards = starts_.size() - 1, window = static_cast<std::size_t>(options_.window);
  std::optional<std::uint64_t> seed = options_.seed;
  if (seed) seed = mix(*seed, static_cast<std::uint64_t>(epoch));
  if (weights_) return std::make_unique<WeightedOrder>(weights_, size_, *seed, shards);
  if (groups_) return std::make_unique<GroupedOrder>(groups_, seed, shards);
  if (mixture_) return std::make_unique<MixedOrder>(mixture_, window, *options_.seed, epoch, shards);
  auto plain = std::make_unique<ShuffledShards>(starts_, nodes_, window, seed);
  if (grain_ == 0) return plain;
  return std::make_unique<InterleavedNodes>(std::move(plain), edges_, grain_ / options_.virtual_nodes, shards);
}

EpochOrder Order::epoch(std::int64_t epoch) const { return EpochOrder(*this, epoch); }

std::string Order::text() const {
  std::string text = options_.seed ? str("seed=", *options_.seed) : "unshuffled";
  if (options_.seed && !weights_ && !groups_) text += str(" window=", options_.window);
  if (options_.virtual_nodes > 0) text += str(" virtual_nodes=", options_.virtual_nodes);
  if (grain_ > 0) text += str(by_steps() ? " global_batch=" : " batch=", grain_);
  text += sampling_text_;
  for (const auto& [shard, weight] : options_.mixture) {
    // Checkpoints of 0.1.0 have six digits.
    const std::string six_digits = str(weight);
    text += " weight=" + (std::stod(six_digits) == weight ? six_digits : exact_text(weight));
  }
  if (size_ != starts_.back()) text += str(" epoch_size=", size_);
  return text;
}

RangeSet EpochOrder::all_but(const RangeSet& done) const {
  const std::int64_t end = done.empty() ? 0 : done.ranges().back().end;
  require(end <= size(), "the positions up to ", end, " cannot be done in an epoch of ", order_->what_, ", which has ",
          size(), "; they are of another data set: resume with the one that the checkpoint was made with");
  RangeSet all;
  all.add({0, size()});
  for (const Range& range : done.ranges()) all.subtract(range);
  return all;
}

// The first position of a part of `count`, where parts are in a row: as many nodes, or as much of one, as the others.
std::int64_t EpochOrder::edge(int index, int count) const {
  const auto& edges = order_->edges_;
  const std::int64_t nodes = static_cast<std::int64_t>(edges.size()) - 1, scaled = nodes * index;
  const auto node = static_cast<std::size_t>(scaled / count);
  if (scaled % count == 0) return edges[node];
  const std::int64_t length = edges[node + 1] - edges[node], part = scaled % count;
  return edges[node] + length / count * part + length % count * part / count;
}

Share EpochOrder::share(Part part) const {
  if (part.count == 0) return {};
  require(part.count >= 1 && part.index >= 0 && part.index < part.count, "there is no part ", part.index, " of ",
          part.count);
  require(part.count <= size(), part.count, " workers share the ", size(), " records of ", order_->what_,
          "; each needs at least one: start fewer workers");
  const OrderOptions& options = order_->options_;
  Share share;
  share.spread = spread();
  if (!order_->by_steps()) {
    share.batch = options.batch;
    share.boundary = order_->grain_;
    // Batches of groups stay whole.
    const std::int64_t whole = std::max<std::int64_t>(1, share.boundary);
    const auto begin = [&](int index) {
      return index == part.count ? size() : edge(index, part.count) / whole * whole;
    };
    for (int index = 0; index < part.count; ++index)
      require(begin(index) < begin(index + 1), part.count, " workers cannot share the records of ", order_->what_,
              ", as there would be none for some; start fewer workers");
    share.positions.add({begin(part.index), begin(part.index + 1)});
    return share;
  }
  require(options.global_batch == 0 || part.count <= options.global_batch, part.count,
          " workers cannot share a global batch of ", options.global_batch, "; each needs an example: start fewer");
  const std::int64_t batch = std::min(options.batch, size());  // a huge one takes all
  const std::int64_t step = options.global_batch > 0 ? std::min(options.global_batch, size()) : batch * part.count;
  if (const int nodes = options.virtual_nodes; nodes > 0) {
    // A part may begin and end within nodes.
    const int mine = std::min(nodes, nodes / part.count + (nodes % part.count == 0 ? 0 : 2));
    share.spread = spread() / static_cast<std::size_t>(nodes) * static_cast<std::size_t>(mine);
  }
  share.batch = (step + part.count - 1) / part.count;
  share.boundary = step;
  for (std::int64_t begin = 0; begin < size(); begin += step) {
    // The last step may be short: all parts share it alike.
    const std::int64_t here = std::min(step, size() - begin);
    share.positions.add({begin + here * part.index / part.count, begin + here * (part.index + 1) / part.count});
  }
  return share;
}

Batches EpochOrder::taken_over(const RangeSet& left) const {
  const std::int64_t end = left.empty() ? 0 : left.ranges().back().end;
  require(end <= size(), "there are no positions up to ", end, " in an epoch of ", order_->what_, ", which has ",
          size());
  return Batches(left, order_->options_.batch, order_->groups_ ? order_->grain_ : 0);
}

std::vector<std::size_t> EpochOrder::shards(const RangeSet& positions) const {
  ShardUse use(order_->starts_.size() - 1);
  for (const Range& range : positions.ranges()) records_->add_shards(range, use);
  return use.shards();
}

std::string checksum_text(std::uint32_t checksum) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", checksum);
  return text;
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

#include "sampled_order.h"

#include <paceline/error.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace paceline::io {

WeightTable::WeightTable(const std::vector<double>& weights) {
  double total = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    require(std::isfinite(weights[i]) && weights[i] >= 0, "the weight of record ", i, " is ", weights[i],
            ", expected a finite number, 0 or more");
    total += weights[i];
  }
  require(std::isfinite(total) && total > 0, "the weights of the records add up to ", total,
          ", expected more than 0 and a finite number");
  // Numbers that are drawn less often than the mean give the rest of their place to one that is drawn more often.
  const double mean = total / static_cast<double>(weights.size());
  others_.resize(weights.size());
  keep_.resize(weights.size());
  std::vector<std::int64_t> few, many;
  std::vector<double> left(weights);
  for (std::size_t i = 0; i < weights.size(); ++i)
    (left[i] < mean ? few : many).push_back(static_cast<std::int64_t>(i));
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  while (!few.empty() && !many.empty()) {
    const std::int64_t low = few.back(), high = many.back();
    few.pop_back();
    keep_[at(low)] = static_cast<float>(left[at(low)] / mean);
    others_[at(low)] = high;
    left[at(high)] -= mean - left[at(low)];
    if (left[at(high)] >= mean) continue;
    many.pop_back();
    few.push_back(high);
  }
  // Those that are left have the mean, but for rounding. One without a weight is never drawn.
  const auto heaviest = std::max_element(weights.begin(), weights.end()) - weights.begin();
  for (const auto& rest : {few, many})
    for (const std::int64_t i : rest) {
      keep_[at(i)] = weights[at(i)] > 0 ? 1 : 0;
      others_[at(i)] = heaviest;
    }
}

std::int64_t WeightTable::draw(Random& random) const {
  const std::size_t number = random.below(others_.size());
  constexpr double kOne = 1.0 / 9007199254740992.0;  // 2^-53
  const double where = static_cast<double>(random.next() >> 11) * kOne;
  return where < static_cast<double>(keep_[number]) ? static_cast<std::int64_t>(number) : others_[number];
}

GroupTable::GroupTable(const std::vector<std::int64_t>& keys, std::int64_t batch)
    : grain(batch), records(keys.size()), full{0} {
  std::iota(records.begin(), records.end(), std::int64_t{0});
  const auto key = [&](std::int64_t record) { return keys[static_cast<std::size_t>(record)]; };
  std::stable_sort(records.begin(), records.end(), [&](auto a, auto b) { return key(a) < key(b); });
  for (std::size_t i = 0; i < records.size(); ++i)
    if (i == 0 || key(records[i]) != key(records[i - 1])) runs.push_back(static_cast<std::int64_t>(i));
  runs.push_back(static_cast<std::int64_t>(records.size()));
  for (std::size_t g = 0; g + 1 < runs.size(); ++g) full.push_back(full.back() + (runs[g + 1] - runs[g]) / grain);
  rests.push_back(full.back() * grain);
  for (std::size_t g = 0; g + 1 < runs.size(); ++g) rests.push_back(rests.back() + (runs[g + 1] - runs[g]) % grain);
}

GroupedOrder::GroupedOrder(std::shared_ptr<const GroupTable> table, std::optional<std::uint64_t> seed,
                           std::size_t shards)
    : RecordOrder(shards), table_(std::move(table)), seed_(seed) {
  if (seed_ && table_->full.back() > 0) batches_.emplace(table_->full.back(), *seed_);
}

std::int64_t GroupedOrder::record(std::int64_t position) const {
  const GroupTable& table = *table_;
  std::size_t group = 0;
  std::int64_t place = 0;  // in the group
  if (position < table.rests.front()) {
    std::int64_t batch = position / table.grain;
    if (batches_) batch = (*batches_)(batch);
    group = range_of(table.full, batch);
    place = (batch - table.full[group]) * table.grain + position % table.grain;
  } else {
    group = range_of(table.rests, position);
    place = (table.full[group + 1] - table.full[group]) * table.grain + position - table.rests[group];
  }
  const std::int64_t begin = table.runs[group], size = table.runs[group + 1] - begin;
  if (seed_) place = Permutation(size, mix(*seed_ + 1, group))(place);
  return table.records[static_cast<std::size_t>(begin + place)];
}

std::vector<std::int64_t> shares_of(const std::vector<double>& weights, std::int64_t size) {
  double total = 0;
  for (const double weight : weights) {
    require(std::isfinite(weight) && weight > 0, "a data set has the weight ", weight,
            ", expected a finite number above 0");
    total += weight;
  }
  require(std::isfinite(total), "the weights of the data sets add up to no finite number");
  std::vector<std::int64_t> shares;
  std::vector<std::pair<double, std::size_t>> fractions;
  std::int64_t left = size;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double share = static_cast<double>(size) * (weights[i] / total);
    shares.push_back(std::min(left, static_cast<std::int64_t>(share)));
    left -= shares.back();
    fractions.emplace_back(std::floor(share) - share, i);
  }
  std::sort(fractions.begin(), fractions.end());
  for (std::size_t i = 0; left > 0; ++i, --left) ++shares[fractions[i % fractions.size()].second];
  return shares;
}

MixedOrder::MixedOrder(std::shared_ptr<const std::vector<MixturePart>> parts, std::size_t window, std::uint64_t seed,
                       std::int64_t epoch, std::size_t shards)
    : RecordOrder(shards),
      parts_(std::move(parts)),
      window_(window),
      seed_(seed),
      epoch_seed_(mix(seed, static_cast<std::uint64_t>(epoch))),
      epoch_(epoch) {
  for (const MixturePart& part : *parts_) size_ += part.share;
  blocks_ = (size_ + kBlock - 1) / kBlock;
  constexpr std::uint64_t kMostPasses = 16;  // others, of data sets that are tiny, are made again for each record
  for (std::size_t i = 0; i < parts_->size(); ++i) {
    const MixturePart& part = (*parts_)[i];
    const std::uint64_t first = place(part, 0).pass, count = place(part, part.share - 1).pass - first + 1;
    passes_.emplace_back();
    for (std::uint64_t pass = 0; pass < std::min(count, kMostPasses); ++pass)
      passes_.back().push_back(pass_of(i, first + pass));
    spread_ += passes_.back().front().spread();
  }
}

MixedOrder::Place MixedOrder::place(const MixturePart& part, std::int64_t drawn) const {
  // epoch * share + drawn, without the product, which may be too large for the position.
  const auto size = static_cast<std::uint64_t>(part.starts.back() - part.starts.front());
  const auto share = static_cast<std::uint64_t>(part.share), epoch = static_cast<std::uint64_t>(epoch_);
  const std::uint64_t place = epoch % size * (share % size) + static_cast<std::uint64_t>(drawn);
  return {epoch * (share / size) + epoch / size * (share % size) + place / size,
          static_cast<std::int64_t>(place % size)};
}

ShuffledShards MixedOrder::pass_of(std::size_t part, std::uint64_t pass) const {
  const MixturePart& which = (*parts_)[part];
  return ShuffledShards(which.starts, {0, which.starts.size() - 1}, window_, mix(mix(seed_, part), pass),
                        which.first_shard);
}

std::int64_t MixedOrder::begin_of(std::int64_t block) const {
  std::int64_t begin = 0;
  for (const MixturePart& part : *parts_) begin += before(part, block);
  return begin;
}

std::int64_t MixedOrder::record(std::int64_t position) const {
  std::int64_t block = std::min(blocks_ - 1, position / kBlock);
  while (begin_of(block) > position) --block;
  while (begin_of(block + 1) <= position) ++block;
  const std::int64_t begin = begin_of(block);
  const Permutation mixed(begin_of(block + 1) - begin, mix(epoch_seed_, static_cast<std::uint64_t>(block)));
  std::int64_t drawn = mixed(position - begin);
  for (std::size_t i = 0;; ++i) {
    const MixturePart& part = (*parts_)[i];
    const std::int64_t first = before(part, block), count = before(part, block + 1) - first;
    if (drawn >= count) {
      drawn -= count;
      continue;
    }
    const Place at = place(part, first + drawn);
    const std::uint64_t pass = at.pass - place(part, 0).pass;
    return pass < passes_[i].size() ? passes_[i][pass].record(at.position) : pass_of(i, at.pass).record(at.position);
  }
}

}  // namespace paceline::io

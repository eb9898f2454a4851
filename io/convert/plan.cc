#include "convert/plan.h"

#include <paceline/error.h>

#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "permutation.h"
#include "shard_writer.h"

namespace paceline::io {
namespace {

void check(const std::vector<Split>& splits) {
  std::set<std::string> names;
  for (const auto& [name, share] : splits) {
    require(!name.empty() && name.find('/') == std::string::npos, "a split needs a name without a slash, not '", name,
            "'");
    require(names.insert(name).second, "two splits are named '", name, "'");
    require(std::isfinite(share) && share > 0, "the share of the split '", name, "' is ", share,
            ", expected a number above 0");
  }
}

// The split of an entry with this key.
std::size_t split_of(std::uint64_t key, const std::vector<Split>& splits, double total) {
  constexpr double kKeys = 18446744073709551616.0;  // 2^64
  double left = static_cast<double>(key) / kKeys * total;
  for (std::size_t i = 0; i + 1 < splits.size(); ++i) {
    if (left < splits[i].share) return i;
    left -= splits[i].share;
  }
  return splits.size() - 1;
}

void shuffle(std::vector<std::int64_t>& entries, std::uint64_t seed) {
  // Written out, because the standard does not fix what std::shuffle does.
  std::mt19937_64 random(seed);
  for (std::size_t i = entries.size(); i > 1; --i) std::swap(entries[i - 1], entries[random() % i]);
}

}  // namespace

std::span<const std::int64_t> PlannedSet::of_shard(int shard) const {
  const auto first = [&](int s) {
    return entries.size() * static_cast<std::size_t>(s) / static_cast<std::size_t>(shards);
  };
  return std::span(entries).subspan(first(shard), first(shard + 1) - first(shard));
}

std::vector<PlannedSet> plan_conversion(const std::string& prefix, const RecordSource& source,
                                        const ConvertOptions& options) {
  check(options.splits);
  std::vector<PlannedSet> sets;
  for (const Split& split : options.splits) sets.push_back({prefix + "-" + split.name, {}, options.shards});
  if (sets.empty()) {
    sets.push_back({prefix, std::vector<std::int64_t>(static_cast<std::size_t>(source.size())), options.shards});
    std::iota(sets[0].entries.begin(), sets[0].entries.end(), std::int64_t{0});
  } else {
    double total = 0;
    for (const Split& split : options.splits) total += split.share;
    std::int64_t entry = 0;
    for (const std::uint64_t key : source.keys()) sets[split_of(key, options.splits, total)].entries.push_back(entry++);
  }
  for (PlannedSet& set : sets) {
    check_data_set(set.prefix, set.shards);
    require(static_cast<std::size_t>(set.shards) <= set.entries.size(), set.entries.size(), " ", source.unit(),
            sets.size() > 1 ? " of " + set.prefix : "", " cannot fill ", set.shards, " shards");
    if (options.shuffle) shuffle(set.entries, options.seed);
  }
  return sets;
}

}  // namespace paceline::io

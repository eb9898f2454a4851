#include <paceline/sampling.h>

#include <paceline/crc32c.h>
#include <paceline/detail/in_parallel.h>
#include <paceline/detail/remote.h>
#include <paceline/error.h>
#include <paceline/image.h>
#include <paceline/manifest.h>

#include <map>
#include <memory>
#include <optional>

#include "class_label.h"
#include "epoch_order.h"
#include "mixture.h"
#include "remote/fetch_shard.h"
#include "said_by.h"

namespace paceline {

std::vector<double> balanced_weights(const std::vector<std::int64_t>& classes) {
  std::map<std::int64_t, std::int64_t> counts;
  for (const std::int64_t one : classes) ++counts[one];
  std::vector<double> weights;
  weights.reserve(classes.size());
  for (const std::int64_t one : classes) weights.push_back(1 / static_cast<double>(counts[one]));
  return weights;
}

void visit_records(const std::string& manifest,
                   const std::function<void(std::int64_t number, std::string_view record)>& visit, int threads) {
  const Manifest data = Manifest::load(manifest);
  const std::vector<std::int64_t> starts = io::starts_of(data);
  std::optional<io::ShardCache> cache;
  if (is_remote(data.folder)) cache.emplace(detail::CacheSettings::from_environment());
  detail::in_parallel(data.shards.size(), threads, [&](std::size_t shard) {
    io::CachedShard cached;
    if (cache) cached = io::open_in_cache(*cache, data, redacted(manifest), data.shards[shard], OnDamage::kFail);
    // A shard that has no room there is read in a copy without a name.
    const auto file = cached.file ? cached.file : std::make_shared<const RecordFile>(data.path_of(data.shards[shard]));
    if (file->size() != data.shards[shard].records)
      throw Corrupt(str(file->path(), " has ", file->size(), " records, the manifest ", redacted(manifest), " says ",
                        data.shards[shard].records));
    RecordBuffer buffer;
    file->visit(0, file->size(), buffer, [&](std::int64_t place, std::string_view record, const RecordDamage* damage) {
      if (damage) throw Corrupt(damage->text());
      visit(starts[shard] + place, record);
    });
  });
}

std::vector<std::int64_t> read_classes(const std::string& manifest, int threads) {
  const Manifest data = Manifest::load(manifest);
  require(data.payload == "image" && data.class_labels && data.label_width == 1, "the records of ", manifest,
          " have no class numbers; find the classes with visit_records()");
  std::vector<std::int64_t> classes(static_cast<std::size_t>(data.records()));
  visit_records(
      manifest,
      [&](std::int64_t number, std::string_view record) {
        try {
          const ImageRecord parts(record);
          if (parts.label_count() != 1) throw Corrupt(str("it has ", parts.label_count(), " labels, expected one"));
          classes[static_cast<std::size_t>(number)] = io::class_number(parts.label(0), data.labels.size());
        } catch (const Corrupt& error) {
          throw Corrupt(str(manifest, ": record ", number, " is damaged: ", error.what()));
        }
      },
      threads);
  return classes;
}

io::Mixture io::mixture_of(const std::vector<MixedDataSet>& sets) {
  require(!sets.empty(), "a mixture of data sets names none");
  Mixture result;
  Manifest& all = result.manifest;
  CommonColumns columns;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    Manifest one = Manifest::load(sets[i].manifest);
    result.parts.emplace_back(all.shards.size(), sets[i].weight);
    result.path += (i > 0 ? " and " : "") + redacted(sets[i].manifest);
    for (Shard& shard : one.shards) shard.path = one.path_of(shard);
    columns.add(redacted(sets[i].manifest), one.columns_crc32c);
    if (i == 0) {
      all = std::move(one);
      all.folder.clear();
      continue;
    }
    const std::string first = redacted(sets.front().manifest), other = redacted(sets[i].manifest);
    require(one.payload == all.payload, other, " cannot be mixed with ", first, ": its records hold '", one.payload,
            "', not '", all.payload, "'");
    require(one.class_labels == all.class_labels &&
                (one.label_width == all.label_width || all.variable_labels || one.variable_labels),
            other, " cannot be mixed with ", first, ": their labels are of different kinds");
    require(one.labels.empty() || all.labels.empty() || one.labels == all.labels, other, " cannot be mixed with ",
            first, ": they name other classes, or in another order");
    if (all.labels.empty()) all.labels = std::move(one.labels);
    // The loader then needs a decoder of the caller's.
    if (one.decoder != all.decoder) all.decoder = {};
    all.statistics = {};
    if (one.encoding != all.encoding) all.encoding = "mixed";
    all.label_width = std::max(all.label_width, one.label_width);
    all.variable_labels |= one.variable_labels;
    // As in one set, 0 says that images differ.
    if (one.image.height != all.image.height || one.image.width != all.image.width)
      all.image.height = all.image.width = 0;
    if (one.image.channels != all.image.channels) all.image.channels = 0;
    for (Shard& shard : one.shards) all.shards.push_back(std::move(shard));
  }
  all.columns_crc32c = columns.checksum();
  return result;
}

std::vector<std::int64_t> io::starts_of(const Manifest& manifest) {
  std::vector<std::int64_t> starts{0};
  for (const Shard& shard : manifest.shards) starts.push_back(starts.back() + shard.records);
  return starts;
}

std::string io::identity_of(const Manifest& manifest) {
  std::uint32_t sum = 0;
  for (const Shard& shard : manifest.shards) sum = crc32c(str(shard.records, ' ', shard.crc32c, '\n'), sum);
  return checksum_text(sum);
}

}  // namespace paceline

#include <paceline/record_tools.h>

#include <paceline/crc32c.h>
#include <paceline/detail/in_parallel.h>
#include <paceline/error.h>

#include <algorithm>
#include <map>
#include <utility>

#include "examine.h"
#include "said_by.h"
#include "work_progress.h"

namespace paceline {
namespace {

// What the manifests among the sources say. Throws InvalidArgument where they contradict each other, or some records
// could not be decoded.
Manifest agreed_by(const std::vector<std::string>& sources) {
  io::SaidBy said = io::said_by(sources);
  require(said.manifest.decoder.name.empty() || said.without.empty(), said.without,
          " has no manifest that says how to decode it, as ", said.first,
          " has; add it to that data set with `rec append`");
  return std::move(said.manifest);
}

// Adds to the manifest what the records say themselves.
void describe(Manifest& manifest, const RecordStatistics& statistics) {
  const bool class_labels = manifest.class_labels;
  statistics.describe(manifest);
  if (!manifest.decoder.name.empty()) manifest.class_labels = class_labels;
}

// All records of some files, in order.
class Records {
 public:
  explicit Records(const std::vector<std::string>& sources) {
    for (const std::string& source : sources)
      for (const std::string& file : record_files(source)) files_.push_back(std::make_unique<RecordFile>(file));
    for (const auto& file : files_) {
      starts_.push_back(size());
      count_ += file->size();
    }
    number_anew_ = !keys_differ();
  }

  std::int64_t size() const { return count_; }
  // Reads record `number` and returns its key in the copy.
  std::int64_t read(std::int64_t number, std::string& record) const {
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), number);
    const RecordFile& file = *files_[static_cast<std::size_t>(next - starts_.begin()) - 1];
    const std::int64_t place = number - *(next - 1);
    file.read(place, record);
    return number_anew_ ? number : file.key(place);
  }

 private:
  bool keys_differ() const {
    std::vector<std::int64_t> keys;
    for (const auto& file : files_)
      for (std::int64_t place = 0; place < file->size(); ++place) keys.push_back(file->key(place));
    std::sort(keys.begin(), keys.end());
    return std::adjacent_find(keys.begin(), keys.end()) == keys.end();
  }

  std::vector<std::unique_ptr<RecordFile>> files_;
  std::vector<std::int64_t> starts_;
  std::int64_t count_ = 0;
  bool number_anew_ = false;
};

// Copies one file's sound records.
void repair_file(const std::string& path, DatasetWriter& writer, int shard, RepairReport& report,
                 RecordStatistics& statistics, const RecordWork& work) {
  std::map<std::uint64_t, std::size_t> places;  // of the index, by offset
  io::Companions beside;
  try {
    beside = io::read_companions(path);
  } catch (const Corrupt&) {
    // Records are found without them.
  }
  std::int64_t next_key = 0;
  for (std::size_t i = 0; beside.index && i < beside.index->size(); ++i) {
    places[(*beside.index)[i].offset] = i;
    next_key = std::max(next_key, (*beside.index)[i].key + 1);
  }
  RecordReader reader(path, OnDamage::kSkip);
  io::Survey survey(statistics);
  io::WorkProgress progress(work);
  std::string record;
  std::int64_t number = 0;
  for (; reader.next(record); ++number) {
    const auto place = places.find(reader.offset());
    const bool known = place != places.end();
    if (known && beside.checksums && (*beside.checksums)[place->second].crc32c != crc32c(record)) {
      report.lost.push_back({path, reader.offset(), number + static_cast<std::int64_t>(reader.damage().size()),
                             "its CRC32C differs from the one kept beside the index"});
      report.bytes += record.size();
      continue;
    }
    writer.write(shard, known ? (*beside.index)[place->second].key : next_key++, record);
    survey.add(record);
    ++report.records;
    progress.add(record.size());
  }
  require(report.records > 0, path, " holds no record that can be read");
  for (const RecordDamage& damage : reader.damage()) {
    report.bytes += damage.skipped;
    report.lost.push_back(damage);
  }
  std::sort(report.lost.begin(), report.lost.end(),
            [](const RecordDamage& a, const RecordDamage& b) { return a.offset < b.offset; });
  progress.finish();
}

}  // namespace

Manifest copy_records(const std::vector<std::string>& sources, const std::string& prefix, int shards,
                      const RecordWork& work) {
  Manifest manifest = agreed_by(sources);
  const bool same_records = sources.size() == 1 && record_files(sources[0]) != sources;
  if (same_records) manifest.statistics = Manifest::load(sources[0]).statistics;
  const Records records(sources);
  require(shards >= 1 && shards <= records.size(), records.size(), " records cannot fill ", shards, " shards");
  DatasetWriter writer(prefix, shards);
  std::vector<RecordStatistics> parts(static_cast<std::size_t>(shards));
  detail::in_parallel(parts.size(), work.threads, [&](std::size_t shard) {
    const auto first = [&](std::size_t s) {
      return records.size() * static_cast<std::int64_t>(s) / static_cast<std::int64_t>(shards);
    };
    io::Survey survey(parts[shard]);
    io::WorkProgress progress(work);
    std::string record;
    for (std::int64_t number = first(shard); number < first(shard + 1); ++number) {
      const std::int64_t key = records.read(number, record);
      writer.write(static_cast<int>(shard), key, record);
      survey.add(record);
      progress.add(record.size());
    }
    progress.finish();
  });
  RecordStatistics all;
  for (const RecordStatistics& part : parts) all.add(part);
  describe(manifest, all);
  io::require_names_for(all, manifest);
  return Manifest::load(writer.finish(std::move(manifest)));
}

RepairReport repair_records(const std::string& source, const std::string& prefix, const RecordWork& work) {
  const std::vector<std::string> files = record_files(source);
  Manifest manifest = agreed_by({source});
  DatasetWriter writer(prefix, static_cast<int>(files.size()));
  std::vector<RepairReport> reports(files.size());
  std::vector<RecordStatistics> parts(files.size());
  detail::in_parallel(files.size(), work.threads, [&](std::size_t i) {
    repair_file(files[i], writer, static_cast<int>(i), reports[i], parts[i], work);
  });
  RecordStatistics all;
  RepairReport report;
  for (std::size_t i = 0; i < files.size(); ++i) {
    all.add(parts[i]);
    report.records += reports[i].records;
    report.bytes += reports[i].bytes;
    report.lost.insert(report.lost.end(), reports[i].lost.begin(), reports[i].lost.end());
  }
  describe(manifest, all);
  writer.finish(std::move(manifest));
  return report;
}

}  // namespace paceline

// Record files and data sets as they are, to be divided, shuffled and written anew.

#include <paceline/convert_sources.h>
#include <paceline/error.h>
#include <paceline/image.h>
#include <paceline/record_tools.h>

#include <algorithm>
#include <utility>

#include "convert/source.h"
#include "examine.h"
#include "said_by.h"

namespace paceline {
namespace io {
namespace {

// The file, with its damaged places as records that cannot be read.
std::unique_ptr<RecordFile> open_examined(const Examined& file) {
  if (!file.problem.empty()) throw Corrupt(file.problem);
  if (file.beside.index || file.damage.empty()) return std::make_unique<RecordFile>(file.path);
  RecordIndex index = file.index;
  for (const RecordDamage& damage : file.damage) index.push_back({0, damage.offset});
  std::sort(index.begin(), index.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  for (std::size_t i = 0; i < index.size(); ++i) index[i].key = static_cast<std::int64_t>(i);
  return std::make_unique<RecordFile>(file.path, std::move(index));
}

class StoredRecords final : public RecordSource {
 public:
  explicit StoredRecords(const std::vector<std::string>& sources) {
    require(!sources.empty(), "no files were given");
    std::vector<std::string> paths;
    RecordStatistics all;
    for (const std::string& source : sources) {
      for (const std::string& path : record_files(source)) {
        const Examined file = examine(path, {});
        all.add(file.statistics);
        paths.push_back(path);
        files_.push_back(open_examined(file));
        starts_.push_back(size_);
        size_ += files_.back()->size();
      }
      take_description(source, source == sources[0]);
    }
    const Manifest said = manifest_;
    all.describe(manifest_);
    if (!said.decoder.name.empty()) manifest_.class_labels = said.class_labels;
    if (manifest_.payload == "image") manifest_.decoder = {};
    require_names_for(all, manifest_);
    identity_ = identity_of(paths);
    std::vector<std::int64_t> keys;
    for (std::int64_t entry = 0; entry < size_; ++entry) keys.push_back(key_of(entry));
    std::sort(keys.begin(), keys.end());
    number_anew_ = std::adjacent_find(keys.begin(), keys.end()) != keys.end();
  }

  std::int64_t size() const override { return size_; }
  const char* unit() const override { return "records"; }
  std::string place(std::int64_t entry) const override {
    return str(file_of(entry).path(), ": record ", place_of(entry));
  }
  std::int64_t id(std::int64_t entry) const override { return number_anew_ ? entry : key_of(entry); }
  std::vector<std::uint64_t> keys() const override {
    std::vector<std::uint64_t> keys;
    std::string record;
    RecordDamage damage;
    for (std::int64_t entry = 0; entry < size_; ++entry) {
      // A damaged one is a bad record wherever it goes.
      if (!file_of(entry).try_read(place_of(entry), record, damage)) record.clear();
      keys.push_back(stable_hash(record));
    }
    return keys;
  }
  std::unique_ptr<EntryEncoder> encoder(const std::function<void()>&) const override;
  Manifest description() const override { return manifest_; }
  std::string identity() const override { return "records\n" + identity_; }

  void read(std::int64_t entry, std::string& record, Tally& tally) const {
    RecordDamage damage;
    if (!file_of(entry).try_read(place_of(entry), record, damage)) throw Corrupt(damage.reason);
    tally.lengths.add(static_cast<double>(record.size()));
    if (manifest_.payload == "image" && manifest_.class_labels)
      ++tally.classes[static_cast<std::int64_t>(ImageRecord(record).label(0))];
  }

 private:
  // What the manifest of a data set says.
  void take_description(const std::string& source, bool first) {
    if (record_files(source) == std::vector{source}) {
      columns_.add(source, {});
      manifest_.columns_crc32c.reset();
      return;
    }
    const Manifest said = Manifest::load(source);
    require(first || (said.labels == manifest_.labels && said.decoder == manifest_.decoder), source,
            " holds other records than the sources before it: its classes or its decoder differ");
    columns_.add(source, said.columns_crc32c);
    manifest_.columns_crc32c = columns_.checksum();
    manifest_.labels = said.labels;
    manifest_.decoder = said.decoder;
    manifest_.class_labels = said.class_labels;
  }

  std::size_t number_of_file(std::int64_t entry) const {
    return static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), entry) - starts_.begin()) - 1;
  }
  const RecordFile& file_of(std::int64_t entry) const { return *files_[number_of_file(entry)]; }
  std::int64_t place_of(std::int64_t entry) const { return entry - starts_[number_of_file(entry)]; }
  std::int64_t key_of(std::int64_t entry) const { return file_of(entry).key(place_of(entry)); }

  std::vector<std::unique_ptr<RecordFile>> files_;
  std::vector<std::int64_t> starts_;  // the first record of each file
  std::int64_t size_ = 0;
  bool number_anew_ = false;
  Manifest manifest_;
  CommonColumns columns_;
  std::string identity_;
};

class RecordCopier final : public EntryEncoder {
 public:
  explicit RecordCopier(const StoredRecords& source) : source_(source) {}
  void encode(std::int64_t entry, std::string& record, Tally& tally) override { source_.read(entry, record, tally); }

 private:
  const StoredRecords& source_;
};

std::unique_ptr<EntryEncoder> StoredRecords::encoder(const std::function<void()>&) const {
  return std::make_unique<RecordCopier>(*this);
}

}  // namespace
}  // namespace io

RecordSourceHandle record_source(const std::vector<std::string>& sources) {
  return std::make_shared<io::StoredRecords>(sources);
}

}  // namespace paceline

#include "examine.h"

#include <paceline/crc32c.h>
#include <paceline/detail/remote.h>
#include <paceline/error.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "work_progress.h"

namespace paceline {
namespace {

constexpr std::size_t kMostLabels = 1000;
constexpr float kMostClasses = 16777216.0f;  // from here on a float does not hold every number

void count_label(std::map<float, std::int64_t>& labels, float label, std::int64_t records) {
  if (labels.size() < kMostLabels || labels.contains(label)) labels[label] += records;
}

// Widens what a dimension of images spans.
void span(int& smallest, int& largest, int from, int to) {
  smallest = smallest == 0 ? from : std::min(smallest, from);
  largest = std::max(largest, to);
}

void span(RecordStatistics& into, const ImageSize& smallest, const ImageSize& largest) {
  span(into.smallest.height, into.largest.height, smallest.height, largest.height);
  span(into.smallest.width, into.largest.width, smallest.width, largest.width);
  span(into.smallest.channels, into.largest.channels, smallest.channels, largest.channels);
}

}  // namespace

std::int64_t RecordStatistics::images() const {
  std::int64_t count = 0;
  for (const auto& [encoding, records] : encodings) count += encoding == "none" ? 0 : records;
  return count;
}

void RecordStatistics::add(const RecordStatistics& other) {
  if (other.records == 0) return;
  const bool first = records == 0;
  shortest = first ? other.shortest : std::min(shortest, other.shortest);
  longest = std::max(longest, other.longest);
  fewest_labels = first ? other.fewest_labels : std::min(fewest_labels, other.fewest_labels);
  most_labels = std::max(most_labels, other.most_labels);
  class_labels &= other.class_labels;
  records += other.records;
  bytes += other.bytes;
  for (const auto& [encoding, count] : other.encodings) encodings[encoding] += count;
  for (const auto& [label, count] : other.labels) count_label(labels, label, count);
  largest_label = std::max(largest_label, other.largest_label);
  if (other.images() > 0) span(*this, other.smallest, other.largest);
}

void RecordStatistics::describe(Manifest& manifest) const {
  const auto common = [](int a, int b) { return a == b ? a : 0; };
  // A few records without an image are damage, not another kind of data set.
  const bool image = 2 * images() > records;
  manifest.payload = image ? "image" : "bytes";
  manifest.encoding = "mixed";
  if (image && encodings.size() == 1) manifest.encoding = encodings.begin()->first;
  manifest.label_width = image ? most_labels : 1;
  manifest.variable_labels = image && fewest_labels != most_labels;
  manifest.class_labels = image && class_labels && most_labels == 1;
  manifest.image = {common(smallest.height, largest.height), common(smallest.width, largest.width),
                    common(smallest.channels, largest.channels)};
}

namespace io {

void Survey::add(std::string_view record) {
  const bool first = into_.records++ == 0;
  into_.bytes += record.size();
  into_.shortest = first ? record.size() : std::min<std::uint64_t>(into_.shortest, record.size());
  into_.longest = std::max<std::uint64_t>(into_.longest, record.size());
  try {
    add_image(ImageRecord(record));
  } catch (const Corrupt&) {
    ++into_.encodings["none"];
  }
}

void Survey::add_image(const ImageRecord& record) {
  const ImageHeader header = codec_.header(record.image());
  const int count = record.label_count();
  into_.fewest_labels = into_.images() == 0 ? count : std::min(into_.fewest_labels, count);
  into_.most_labels = std::max(into_.most_labels, count);
  const float label = record.label(0);
  into_.class_labels &= count == 1 && label >= 0 && label < kMostClasses && label == std::floor(label);
  if (!std::isnan(label)) {
    count_label(into_.labels, label, 1);
    into_.largest_label = std::max(into_.largest_label, std::optional(label));
  }
  const ImageSize size{header.height, header.width, header.channels};
  span(into_, size, size);
  ++into_.encodings[name_of(header.encoding)];
}

namespace {

class Examination {
 public:
  Examination(const std::string& path, const RecordWork& work)
      : reader_(path, OnDamage::kSkip), progress_(work), survey_(found_.statistics) {
    found_.path = redacted(path);
    try {
      found_.beside = read_companions(path);
    } catch (const Corrupt& error) {
      found_.problem = error.what();
    }
  }

  Examined run() {
    std::string record;
    for (std::int64_t number = 0; reader_.next(record); ++number) {
      take(record, number + static_cast<std::int64_t>(reader_.damage().size()));
      tell(reader_.offset());
    }
    name_missing(reader_.bytes());
    for (const RecordDamage& damage : reader_.damage()) found_.damage.push_back(damage);
    number_by_index();
    found_.bytes = reader_.bytes();
    found_.crc32c = reader_.checksum();
    tell(reader_.bytes());
    progress_.finish();
    return std::move(found_);
  }

 private:
  void take(const std::string& record, std::int64_t number) {
    RecordIndexEntry entry{number, reader_.offset()};
    const std::uint32_t sum = crc32c(record);
    if (const auto& index = found_.beside.index) {
      name_missing(entry.offset);
      if (next_ == index->size() || (*index)[next_].offset != entry.offset) {
        ++found_.left_out;
        return;
      }
      const std::size_t place = next_++;
      entry = (*index)[place];
      if (found_.beside.checksums && (*found_.beside.checksums)[place].crc32c != sum) {
        found_.damage.push_back(
            {found_.path, entry.offset, number, "its CRC32C differs from the one kept beside the index"});
        return;
      }
    }
    found_.index.push_back(entry);
    found_.checksums.push_back({entry.key, sum, record.size()});
    survey_.add(record);
  }

  // The entries of the index before `offset` that no record was found for.
  void name_missing(std::uint64_t offset) {
    if (!found_.beside.index) return;
    const RecordIndex& index = *found_.beside.index;
    for (; next_ < index.size() && index[next_].offset < offset; ++next_) missing_.push_back(index[next_].offset);
    if (offset == reader_.bytes())
      for (; next_ < index.size(); ++next_) missing_.push_back(index[next_].offset);
  }

  // In an indexed file a record's number is its place in the index.
  void number_by_index() {
    std::set<std::uint64_t> named;
    for (const RecordDamage& damage : found_.damage) named.insert(damage.offset);
    for (const std::uint64_t offset : missing_) {
      if (!named.contains(offset)) {
        const char* reason = offset >= reader_.bytes() ? "the file ends before it" : "no record begins there";
        found_.damage.push_back({found_.path, offset, 0, reason});
      }
    }
    std::sort(found_.damage.begin(), found_.damage.end(),
              [](const RecordDamage& a, const RecordDamage& b) { return a.offset < b.offset; });
    if (!found_.beside.index) return;
    const RecordIndex& index = *found_.beside.index;
    for (RecordDamage& damage : found_.damage) {
      const auto entry = std::lower_bound(index.begin(), index.end(), damage.offset,
                                          [](const RecordIndexEntry& e, std::uint64_t at) { return e.offset < at; });
      damage.record = entry - index.begin();
    }
  }

  void tell(std::uint64_t offset) {
    progress_.add(offset - told_);
    told_ = offset;
  }

  RecordReader reader_;
  WorkProgress progress_;
  Examined found_;
  Survey survey_;
  std::size_t next_ = 0;  // entry of the index
  std::vector<std::uint64_t> missing_;
  std::uint64_t told_ = 0;
};

}  // namespace

Examined examine(const std::string& path, const RecordWork& work) {
  // A server that stalls does not keep a program from ending.
  const detail::TickScope scope([&work] {
    if (work.progress) work.progress(0);
  });
  return Examination(path, work).run();
}

void require_names_for(const RecordStatistics& statistics, const Manifest& manifest) {
  if (manifest.labels.empty() || !manifest.class_labels || !statistics.largest_label) return;
  require(*statistics.largest_label < static_cast<float>(manifest.labels.size()), "a record has the label ",
          static_cast<std::int64_t>(*statistics.largest_label), ", but only ", manifest.labels.size(),
          " classes are named; name the class of every label, with `rec index --classes` for record files");
}

void require_sound(const Examined& file) {
  if (!file.problem.empty()) throw Corrupt(file.problem);
  if (file.damage.empty()) return;
  const std::size_t more = file.damage.size() - 1;
  throw Corrupt(str(file.damage[0].text(), more ? str(", and ", more, " more") : "", "; `rec repair PREFIX ", file.path,
                    "` copies the records that can be read"));
}

}  // namespace io
}  // namespace paceline

#include <paceline/crc32c.h>
#include <paceline/detail/remote.h>
#include <paceline/error.h>
#include <paceline/recordio.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "companions.h"
#include "file.h"
#include "frame.h"

namespace paceline {
namespace {

constexpr std::uint64_t kLongestBlock = std::uint64_t{1} << 20;
constexpr std::uint64_t kLongestRun = std::uint64_t{1} << 18;  // of several records: it stays in a core's cache

}  // namespace

struct RecordBuffer::State {
  // Room for `count` bytes.
  char* room(std::size_t count) {
    if (count > capacity) {
      block.reset();  // before there are two
      capacity = 0;
      const std::size_t enough = std::max<std::size_t>(count, kLongestRun);
      block = std::make_unique_for_overwrite<char[]>(enough);
      capacity = enough;
    }
    return block.get();
  }

  std::unique_ptr<char[]> block;
  std::size_t capacity = 0;
  std::string record;  // what does not lie in the block as it is
};

RecordBuffer::RecordBuffer() : state_(std::make_unique<State>()) {}
RecordBuffer::~RecordBuffer() = default;
RecordBuffer::RecordBuffer(RecordBuffer&&) noexcept = default;
RecordBuffer& RecordBuffer::operator=(RecordBuffer&&) noexcept = default;

struct RecordFile::State {
  State(const std::string& path, const std::string& its_name)
      : file(path), name(its_name.empty() ? redacted(path) : its_name) {}

  // What index and checksums say of a record, side by side: a read anywhere touches one line of the cache.
  struct Place {
    std::uint64_t offset;
    std::uint32_t crc32c, length;
  };

  void take(RecordIndex index, std::optional<std::vector<RecordChecksum>> checksums) {
    checked = checksums && !checksums->empty();
    records.reserve(index.size());
    for (std::size_t i = 0; i < index.size(); ++i) {
      records.push_back({index[i].offset, 0, 0});
      if (!checksums) continue;
      const RecordChecksum& checksum = (*checksums)[i];
      records.back().crc32c = checksum.crc32c;
      records.back().length = static_cast<std::uint32_t>(std::min<std::uint64_t>(checksum.length, io::kLengthMask));
    }
    checksums.reset();  // before the keys take their memory
    keys.reserve(index.size());
    for (const RecordIndexEntry& entry : index) keys.push_back(entry.key);
  }

  // Where the next record begins that the index names.
  std::uint64_t end_of(std::size_t place) const {
    return std::min(place + 1 < records.size() ? records[place + 1].offset : file.size(), file.size());
  }
  // How many bytes the records [first, behind) take, with what is between them.
  std::uint64_t extent(std::size_t first, std::size_t behind) const {
    const std::uint64_t at = records[first].offset, end = end_of(behind - 1);
    return at < end ? end - at : 0;
  }
  // Are `count` bytes from `place` on read at once?
  bool fits_block(std::size_t place, std::uint64_t count) const {
    return count <= kLongestBlock || (checked && count <= records[place].length + 2 * io::kHeadBytes);
  }
  // Where a run ends that begins at `place`: it has one record, or as many as kLongestRun allows.
  std::size_t run_from(std::size_t place, std::size_t stop) const {
    std::size_t behind = place + 1;
    while (behind < stop && extent(place, behind + 1) <= kLongestRun) ++behind;
    return behind;
  }
  std::optional<std::string_view> sound(std::size_t place, std::string_view bytes) const;
  std::string_view bytes_at(std::size_t place, char* to, std::uint64_t count) const;
  template <class Read>
  bool finds_sound(std::size_t place, RecordDamage& damage, const Read& read) const;
  void read_at(std::size_t place, std::string& record) const;
  void parse_at(std::size_t place, std::string& record) const;

  io::InputFile file;
  const std::string name;
  std::vector<Place> records;
  std::vector<std::int64_t> keys;
  bool checked = false;  // against checksums
};

RecordFile::RecordFile(const std::string& path, const std::string& name) : state_(std::make_unique<State>(path, name)) {
  io::Companions beside = io::read_companions(path);
  state_->take(beside.index ? std::move(*beside.index) : scan_index(path), std::move(beside.checksums));
}
RecordFile::RecordFile(const std::string& path, RecordIndex index) : state_(std::make_unique<State>(path, "")) {
  state_->take(std::move(index), {});
}
RecordFile::~RecordFile() = default;

const std::string& RecordFile::path() const { return state_->name; }
std::int64_t RecordFile::size() const { return static_cast<std::int64_t>(state_->records.size()); }
std::uint64_t RecordFile::bytes() const { return state_->file.size(); }
bool RecordFile::has_checksums() const { return state_->checked; }
std::int64_t RecordFile::key(std::int64_t place) const { return state_->keys[static_cast<std::size_t>(place)]; }
std::uint64_t RecordFile::offset(std::int64_t place) const {
  return state_->records[static_cast<std::size_t>(place)].offset;
}

// The record at `place`, where these are all bytes from there to the next one. None where it is damaged, or in several
// parts.
std::optional<std::string_view> RecordFile::State::sound(std::size_t place, std::string_view bytes) const {
  if (bytes.size() != extent(place, place + 1)) return {};
  const std::optional<std::string_view> record = io::whole_record(bytes);
  if (record && checked && crc32c(*record) != records[place].crc32c) return {};
  return record;
}

// Reads from the record at `place` on. Fewer bytes than `count` where the file ends before, and none where the disk
// fails.
std::string_view RecordFile::State::bytes_at(std::size_t place, char* to, std::uint64_t count) const {
  try {
    return {to, file.read_at(records[place].offset, to, count)};
  } catch (const IoError&) {
    return {};  // parse_at() says what is wrong, if it still is
  }
}

void RecordFile::State::read_at(std::size_t place, std::string& record) const {
  if (const std::uint64_t count = extent(place, place + 1); fits_block(place, count)) {
    record.resize(count);
    if (const auto found = sound(place, bytes_at(place, record.data(), count))) {
      const std::size_t length = found->size();
      record.erase(0, io::kHeadBytes);
      record.resize(length);
      return;
    }
  }
  parse_at(place, record);
}

// Reads any record, part by part. Throws what is wrong with it.
void RecordFile::State::parse_at(std::size_t place, std::string& record) const {
  std::uint64_t at = records[place].offset;
  const std::uint64_t end = end_of(place);
  if (at >= file.size()) throw io::FrameError("the file ends before it");
  // In one piece, as a rule. What is behind the record may be records that the index leaves out.
  io::BlockReader source(file, std::min(end - at, kLongestBlock));
  // Else it would grow with each part, to more than it needs.
  if (checked) record.reserve(std::min<std::uint64_t>(end - at, records[place].length + io::kHeadBytes));
  io::parse_record(source, at, &record);
  if (at > end) throw io::FrameError("it runs into the record that the index names next");
  if (at < end && !io::is_head(source, at)) throw io::FrameError("bytes that are no record follow it");
  if (checked && crc32c(record) != records[place].crc32c)
    throw io::FrameError("its CRC32C differs from the one kept beside the index");
}

template <class Read>
bool RecordFile::State::finds_sound(std::size_t place, RecordDamage& damage, const Read& read) const {
  const auto damaged = [&](const char* reason) {
    damage = {name, records[place].offset, static_cast<std::int64_t>(place), reason};
    return false;
  };
  try {
    read();
    return true;
  } catch (const io::FrameError& error) {
    return damaged(error.what());
  } catch (const IoError& error) {  // of this place on the disk, perhaps
    return damaged(error.what());
  }
}

bool RecordFile::try_read(std::int64_t place, std::string& record, RecordDamage& damage) const {
  require(place >= 0 && place < size(), path(), " holds ", size(), " records; there is no record ", place);
  const auto at = static_cast<std::size_t>(place);
  return state_->finds_sound(at, damage, [&] { state_->read_at(at, record); });
}

void RecordFile::read(std::int64_t place, std::string& record) const {
  RecordDamage damage;
  if (!try_read(place, record, damage)) throw Corrupt(damage.text());
}

void RecordFile::visit(std::int64_t begin, std::int64_t end, RecordBuffer& buffer, const Visitor& visit) const {
  require(begin >= 0 && begin <= end && end <= size(), path(), " holds ", size(), " records; there are no records ",
          begin, " to ", end);
  if (!buffer.state_) buffer.state_ = std::make_unique<RecordBuffer::State>();  // it was moved from
  const State& state = *state_;
  const auto stop = static_cast<std::size_t>(end);
  for (auto place = static_cast<std::size_t>(begin); place < stop;) {
    const std::size_t behind = state.run_from(place, stop);
    const std::uint64_t start = state.records[place].offset, count = state.extent(place, behind);
    std::string_view bytes;
    if (state.fits_block(place, count)) bytes = state.bytes_at(place, buffer.state_->room(count), count);
    for (; place < behind; ++place) {
      const std::uint64_t from = std::min<std::uint64_t>(state.records[place].offset - start, bytes.size());
      const std::string_view own = bytes.substr(from, state.extent(place, place + 1));
      const auto number = static_cast<std::int64_t>(place);
      if (const auto record = state.sound(place, own)) {
        visit(number, *record, nullptr);
        continue;
      }
      std::string& record = buffer.state_->record;
      RecordDamage damage;
      if (state.finds_sound(place, damage, [&] { state.parse_at(place, record); })) {
        visit(number, record, nullptr);
      } else {
        record = std::string();  // it may be far longer than any record
        visit(number, {}, &damage);
      }
    }
  }
}

}  // namespace paceline

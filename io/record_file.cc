#include <paceline/crc32c.h>
#include <paceline/detail/remote.h>
#include <paceline/error.h>
#include <paceline/recordio.h>

#include <algorithm>
#include <utility>

#include "companions.h"
#include "file.h"
#include "frame.h"

namespace paceline {
namespace {

constexpr std::uint64_t kLongestBlock = std::uint64_t{1} << 20;

}  // namespace

struct RecordFile::State {
  State(const std::string& path, const std::string& its_name)
      : file(path), name(its_name.empty() ? redacted(path) : its_name) {}

  std::uint64_t end_of(std::size_t place) const {
    return place + 1 < index.size() ? index[place + 1].offset : file.size();
  }
  void read_at(std::size_t place, std::string& record) const;

  io::InputFile file;
  const std::string name;
  RecordIndex index;
  std::vector<RecordChecksum> checksums;  // empty where there are none
};

RecordFile::RecordFile(const std::string& path, const std::string& name) : state_(std::make_unique<State>(path, name)) {
  io::Companions beside = io::read_companions(path);
  state_->index = beside.index ? std::move(*beside.index) : scan_index(path);
  if (beside.checksums) state_->checksums = std::move(*beside.checksums);
}
RecordFile::RecordFile(const std::string& path, RecordIndex index) : state_(std::make_unique<State>(path, "")) {
  state_->index = std::move(index);
}
RecordFile::~RecordFile() = default;

const std::string& RecordFile::path() const { return state_->name; }
std::int64_t RecordFile::size() const { return static_cast<std::int64_t>(state_->index.size()); }
std::uint64_t RecordFile::bytes() const { return state_->file.size(); }
bool RecordFile::has_checksums() const { return !state_->checksums.empty(); }
std::int64_t RecordFile::key(std::int64_t place) const { return state_->index[static_cast<std::size_t>(place)].key; }
std::uint64_t RecordFile::offset(std::int64_t place) const {
  return state_->index[static_cast<std::size_t>(place)].offset;
}

void RecordFile::State::read_at(std::size_t place, std::string& record) const {
  std::uint64_t at = index[place].offset;
  const std::uint64_t end = std::min(end_of(place), file.size());
  if (at >= file.size()) throw io::FrameError("the file ends before it");
  // In one piece, as a rule. What is behind the record may be records that the index leaves out.
  io::BlockReader source(file, std::min(end - at, kLongestBlock));
  io::parse_record(source, at, &record);
  if (at > end) throw io::FrameError("it runs into the record that the index names next");
  if (at < end && !io::is_head(source, at)) throw io::FrameError("bytes that are no record follow it");
  if (!checksums.empty() && crc32c(record) != checksums[place].crc32c)
    throw io::FrameError("its CRC32C differs from the one kept beside the index");
}

bool RecordFile::try_read(std::int64_t place, std::string& record, RecordDamage& damage) const {
  require(place >= 0 && place < size(), path(), " holds ", size(), " records; there is no record ", place);
  try {
    state_->read_at(static_cast<std::size_t>(place), record);
    return true;
  } catch (const io::FrameError& error) {
    damage = {path(), offset(place), place, error.what()};
  } catch (const IoError& error) {  // of this place on the disk, perhaps
    damage = {path(), offset(place), place, error.what()};
  }
  return false;
}

void RecordFile::read(std::int64_t place, std::string& record) const {
  RecordDamage damage;
  if (!try_read(place, record, damage)) throw Corrupt(damage.text());
}

}  // namespace paceline

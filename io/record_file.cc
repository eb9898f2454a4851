#include <paceline/crc32c.h>
#include <paceline/error.h>
#include <paceline/recordio.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>

#include "file.h"
#include "frame.h"

namespace paceline {
namespace {

// The bytes of one record, read in one piece: from its head to the next one's.
class SpanSource final : public io::ByteSource {
 public:
  explicit SpanSource(const std::string& bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  void copy(std::uint64_t offset, void* to, std::size_t count) const override {
    std::memcpy(to, bytes_.data() + offset, count);
  }

 private:
  const std::string& bytes_;
};

// A record and its framing are shorter than this; a longer span means a damaged index.
constexpr std::uint64_t kLongestSpan = std::uint64_t{4} << 30;

}  // namespace

struct RecordFile::State {
  explicit State(const std::string& path) : file(path) {}

  void read_companions();
  std::uint64_t end_of(std::size_t place) const {
    return place + 1 < index.size() ? index[place + 1].offset : file.size();
  }

  io::InputFile file;
  RecordIndex index;
  std::vector<std::uint32_t> checksums;  // empty where there are none
};

void RecordFile::State::read_companions() {
  const std::string& path = file.path();
  index = read_index(index_path(path));
  // MXNet's readers sort by offset too: the place of a record is its place in the file.
  std::stable_sort(index.begin(), index.end(),
                   [](const RecordIndexEntry& a, const RecordIndexEntry& b) { return a.offset < b.offset; });
  for (std::size_t i = 0; i < index.size(); ++i) {
    if (index[i].offset % 4 != 0 || (i > 0 && index[i].offset == index[i - 1].offset)) {
      throw Corrupt(
          str(index_path(path), ": entry ", i, " is damaged: no record can start at offset ", index[i].offset));
    }
  }
  if (!std::filesystem::exists(checksum_path(path))) return;
  const std::vector<RecordChecksum> stored = read_checksums(checksum_path(path));
  if (stored.size() != index.size()) {
    throw Corrupt(str(checksum_path(path), " holds ", stored.size(), " checksums, but ", index_path(path), " ",
                      index.size(), " records"));
  }
  checksums.reserve(stored.size());
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (stored[i].key != index[i].key) {
      throw Corrupt(
          str(checksum_path(path), ": line ", i + 1, " has key ", stored[i].key, ", but the index has ", index[i].key));
    }
    checksums.push_back(stored[i].crc32c);
  }
}

RecordFile::RecordFile(const std::string& path) : state_(std::make_unique<State>(path)) { state_->read_companions(); }
RecordFile::~RecordFile() = default;

const std::string& RecordFile::path() const { return state_->file.path(); }
std::int64_t RecordFile::size() const { return static_cast<std::int64_t>(state_->index.size()); }
std::uint64_t RecordFile::bytes() const { return state_->file.size(); }
bool RecordFile::has_checksums() const { return !state_->checksums.empty(); }
std::int64_t RecordFile::key(std::int64_t place) const { return state_->index[static_cast<std::size_t>(place)].key; }
std::uint64_t RecordFile::offset(std::int64_t place) const {
  return state_->index[static_cast<std::size_t>(place)].offset;
}

bool RecordFile::try_read(std::int64_t place, std::string& record, RecordDamage& damage) const {
  require(place >= 0 && place < size(), path(), " holds ", size(), " records; there is no record ", place);
  const State& state = *state_;
  const std::size_t i = static_cast<std::size_t>(place);
  const std::uint64_t begin = state.index[i].offset;
  const std::uint64_t end = state.end_of(i);
  const char* reason = nullptr;
  std::string own_reason;
  if (begin >= state.file.size()) {
    reason = "the file ends before it";
  } else if (end - begin > kLongestSpan) {
    reason = "the index gives it more bytes than a record can have";
  } else {
    std::string span(std::min(end, state.file.size()) - begin, '\0');
    span.resize(state.file.read_at(begin, span.data(), span.size()));
    std::uint64_t used = 0;
    try {
      io::parse_record(SpanSource(span), used, record);
      if (used != span.size()) {
        reason = "bytes that the index does not know follow it";
      } else if (!state.checksums.empty() && crc32c(record) != state.checksums[i]) {
        reason = "its CRC32C differs from the one kept beside the index";
      }
    } catch (const io::FrameError& error) {
      own_reason = error.what();
    }
  }
  if (reason) own_reason = reason;
  if (own_reason.empty()) return true;
  damage = {path(), begin, place, std::move(own_reason)};
  return false;
}

void RecordFile::read(std::int64_t place, std::string& record) const {
  RecordDamage damage;
  if (!try_read(place, record, damage)) throw Corrupt(damage.text());
}

}  // namespace paceline

// A record file is a sequence of parts, each at a multiple of 4; integers are little-endian.
//
//   part   := magic:u32 lrec:u32 payload:byte[length] zero:byte[-length mod 4]
//   magic  := 0xced7230a
//   lrec   := cflag << 29 | length      cflag: 0 whole record, 1 first part, 2 middle part, 3 last part
//
// Where a record holds the magic number at a multiple of 4 from its start, it is cut there and the four bytes are left
// out; the reader puts one magic number between consecutive parts. So an aligned magic number in a file is always the
// head of a part, which is what makes resynchronising possible.

#include <paceline/recordio.h>

#include <paceline/crc32c.h>
#include <paceline/error.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "file.h"
#include "frame.h"

namespace paceline {

static_assert(std::endian::native == std::endian::little, "record files are written in host order");

std::string RecordDamage::text() const {
  return str(file, ": record ", record, " at offset ", offset, " is damaged: ", reason);
}

namespace io {

void parse_record(const ByteSource& source, std::uint64_t& offset, std::string& record) {
  record.clear();
  for (bool first = true;; first = false) {
    std::uint32_t head[2];
    if (source.size() - offset < sizeof head) throw FrameError("the file ends inside a part's header");
    source.copy(offset, head, sizeof head);
    if (head[0] != kMagic) throw FrameError(first ? "wrong magic number" : "wrong magic number between its parts");
    const std::uint32_t flag = head[1] >> kLengthBits;
    const std::uint32_t length = head[1] & kLengthMask;
    if (first ? (flag != kWhole && flag != kFirst) : (flag != kMiddle && flag != kLast)) {
      throw FrameError(str("a part with flag ", flag, " stands where ", first ? "0 or 1" : "2 or 3", " is expected"));
    }
    const bool more = flag == kFirst || flag == kMiddle;
    if (more && length % 4 != 0) throw FrameError("a part that is not the last has an odd length");
    const std::uint64_t padded = (std::uint64_t{length} + 3) & ~std::uint64_t{3};
    if (source.size() - offset - sizeof head < padded) throw FrameError("the file ends inside the record");

    if (!first) record.append(reinterpret_cast<const char*>(&kMagic), sizeof kMagic);
    const std::size_t before = record.size();
    record.resize(before + padded);
    source.copy(offset + sizeof head, record.data() + before, padded);
    for (std::uint64_t i = length; i < padded; ++i) {
      if (record[before + i] != 0) throw FrameError("the padding is not zero");
    }
    record.resize(before + length);
    offset += sizeof head + padded;
    if (!more) return;
    if (offset == source.size()) throw FrameError("the file ends before the record's last part");
  }
}

}  // namespace io

using io::FrameError;

struct RecordWriter::State {
  explicit State(const std::string& path) : file(path) {}

  void append(std::string_view bytes) {
    file.append(bytes);
    checksum = crc32c(bytes, checksum);
  }

  void append_part(std::uint32_t flag, std::string_view payload) {
    const std::uint32_t head[2] = {io::kMagic, flag << io::kLengthBits | static_cast<std::uint32_t>(payload.size())};
    append({reinterpret_cast<const char*>(head), sizeof head});
    append(payload);
    append({"\0\0\0", (4 - payload.size() % 4) % 4});
  }

  io::OutputFile file;
  std::uint32_t checksum = 0;
};

RecordWriter::RecordWriter(const std::string& path) : state_(std::make_unique<State>(path)) {}
RecordWriter::~RecordWriter() = default;

std::uint64_t RecordWriter::write(std::string_view record) {
  require(record.size() <= io::kLengthMask, "a record of ", record.size(), " bytes is too long; the format allows ",
          io::kLengthMask, " bytes");
  const std::uint64_t offset = state_->file.size();
  std::size_t begin = 0;
  for (std::size_t at = 0; at + sizeof io::kMagic <= record.size(); at += sizeof io::kMagic) {
    if (std::memcmp(record.data() + at, &io::kMagic, sizeof io::kMagic) != 0) continue;
    state_->append_part(begin == 0 ? io::kFirst : io::kMiddle, record.substr(begin, at - begin));
    begin = at + sizeof io::kMagic;
  }
  state_->append_part(begin == 0 ? io::kWhole : io::kLast, record.substr(begin));
  return offset;
}

std::uint64_t RecordWriter::bytes() const { return state_->file.size(); }
std::uint32_t RecordWriter::checksum() const { return state_->checksum; }
void RecordWriter::close() { state_->file.close(); }

namespace {

// Reads ahead in large blocks; for the sequential reader.
class BufferedSource final : public io::ByteSource {
 public:
  explicit BufferedSource(const std::string& path) : file_(path) {}

  const std::string& path() const { return file_.path(); }
  std::uint64_t size() const override { return file_.size(); }
  void copy(std::uint64_t offset, void* to, std::size_t count) const override {
    if (offset < begin_ || offset + count > begin_ + buffer_.size()) {
      begin_ = offset;
      buffer_.resize(std::min<std::uint64_t>(std::max(count, kBlock), size() - offset));
      buffer_.resize(file_.read_at(offset, buffer_.data(), buffer_.size()));
      if (buffer_.size() < count) throw IoError(str(path(), " became shorter while it was read"));
    }
    std::memcpy(to, buffer_.data() + (offset - begin_), count);
  }

 private:
  static constexpr std::size_t kBlock = 1 << 20;
  io::InputFile file_;
  mutable std::string buffer_;
  mutable std::uint64_t begin_ = 0;
};

// The next offset at or after `offset` where a record may start, else the end of the file.
std::uint64_t find_head(const io::ByteSource& source, std::uint64_t offset) {
  offset = (offset + 3) & ~std::uint64_t{3};
  for (; offset + 8 <= source.size(); offset += 4) {
    std::uint32_t word = 0;
    source.copy(offset, &word, sizeof word);
    if (word != io::kMagic) continue;
    source.copy(offset + 4, &word, sizeof word);
    const std::uint32_t flag = word >> io::kLengthBits;
    if (flag == io::kWhole || flag == io::kFirst) return offset;
  }
  return source.size();
}

}  // namespace

struct RecordReader::State {
  State(const std::string& path, OnDamage policy) : source(path), on_damage(policy) {}

  BufferedSource source;
  OnDamage on_damage;
  std::uint64_t next = 0;
  std::uint64_t offset = 0;
  std::int64_t record = 0;
  std::vector<RecordDamage> damage;
};

RecordReader::RecordReader(const std::string& path, OnDamage on_damage)
    : state_(std::make_unique<State>(path, on_damage)) {}
RecordReader::~RecordReader() = default;

bool RecordReader::next(std::string& record) {
  State& state = *state_;
  while (state.next < state.source.size()) {
    state.offset = state.next;
    const std::int64_t number = state.record++;
    try {
      io::parse_record(state.source, state.next, record);
      return true;
    } catch (const FrameError& error) {
      RecordDamage damage{state.source.path(), state.offset, number, error.what()};
      if (state.on_damage == OnDamage::kFail) throw Corrupt(damage.text());
      state.damage.push_back(std::move(damage));
      state.next = find_head(state.source, state.offset + 4);
    }
  }
  return false;
}

std::uint64_t RecordReader::offset() const { return state_->offset; }
const std::vector<RecordDamage>& RecordReader::damage() const { return state_->damage; }

}  // namespace paceline

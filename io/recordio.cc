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
#include <paceline/log.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>

#include "file.h"
#include "frame.h"

namespace paceline {

static_assert(std::endian::native == std::endian::little, "record files are written in host order");

std::string RecordDamage::text() const {
  return str(file, ": record ", record, " at offset ", offset, " is damaged: ", reason);
}

namespace io {

void BlockReader::load(std::uint64_t offset, std::size_t count) {
  begin_ = offset;
  count_ = 0;
  const std::size_t wanted = std::min<std::uint64_t>(std::max(count, least_), size() - offset);
  if (capacity_ < wanted) {
    block_.reset();  // before there are two
    capacity_ = 0;
    block_ = std::make_unique_for_overwrite<char[]>(wanted);
    capacity_ = wanted;
  }
  count_ = file_.read_at(offset, block_.get(), wanted);
  if (count_ < count) throw IoError(str(file_.path(), " became shorter while it was read"));
  if (!summing_ || summed_ < begin_ || summed_ >= begin_ + count_) return;
  checksum_ = crc32c(std::string_view(block_.get(), count_).substr(summed_ - begin_), checksum_);
  summed_ = begin_ + count_;
}

void BlockReader::copy(std::uint64_t offset, void* to, std::size_t count) {
  if (offset < begin_ || offset + count > begin_ + count_) load(offset, count);
  if (count > 0) std::memcpy(to, block_.get() + (offset - begin_), count);
}

std::uint32_t BlockReader::checksum() {
  while (summed_ < size()) load(summed_, 1);
  return checksum_;
}

namespace {

bool begins_record(const std::uint32_t (&words)[2]) {
  const std::uint32_t flag = words[1] >> kLengthBits;
  return words[0] == kMagic && (flag == kWhole || flag == kFirst);
}

PartHead read_head(BlockReader& source, std::uint64_t offset, bool first) {
  std::uint32_t words[2];
  if (source.size() - offset < sizeof words) throw FrameError("the file ends inside a part's header");
  source.copy(offset, words, sizeof words);
  if (words[0] != kMagic) throw FrameError(first ? "wrong magic number" : "wrong magic number between its parts");
  const PartHead head{words[1] >> kLengthBits, words[1] & kLengthMask};
  if (first ? (head.flag != kWhole && head.flag != kFirst) : (head.flag != kMiddle && head.flag != kLast)) {
    throw FrameError(
        str("a part with flag ", head.flag, " stands where ", first ? "0 or 1" : "2 or 3", " is expected"));
  }
  if (head.more() && head.length % 4 != 0) throw FrameError("a part that is not the last has an odd length");
  if (source.size() - offset - sizeof words < head.padded()) throw FrameError("the file ends inside the record");
  return head;
}

}  // namespace

void parse_record(BlockReader& source, std::uint64_t& offset, std::string* record) {
  if (record) record->clear();
  for (bool first = true;; first = false) {
    const PartHead head = read_head(source, offset, first);
    offset += kHeadBytes;
    if (record) {
      if (!first) record->append(reinterpret_cast<const char*>(&kMagic), sizeof kMagic);
      const std::size_t before = record->size();
      record->resize(before + head.padded());
      source.copy(offset, record->data() + before, head.padded());
      for (std::uint64_t i = head.length; i < head.padded(); ++i) {
        if ((*record)[before + i] != 0) throw FrameError("the padding is not zero");
      }
      record->resize(before + head.length);
    }
    offset += head.padded();
    if (!head.more()) return;
    if (offset == source.size()) throw FrameError("the file ends before the record's last part");
  }
}

std::optional<std::string_view> whole_record(std::string_view bytes) {
  std::uint32_t words[2];
  if (bytes.size() < sizeof words) return {};
  std::memcpy(words, bytes.data(), sizeof words);
  const PartHead head{words[1] >> kLengthBits, words[1] & kLengthMask};
  if (words[0] != kMagic || head.flag != kWhole || bytes.size() - sizeof words < head.padded()) return {};
  const std::string_view padding = bytes.substr(sizeof words + head.length, head.padded() - head.length);
  if (padding.find_first_not_of('\0') != std::string_view::npos) return {};
  const std::string_view rest = bytes.substr(sizeof words + head.padded());
  if (!rest.empty()) {
    if (rest.size() < sizeof words) return {};
    std::memcpy(words, rest.data(), sizeof words);
    if (!begins_record(words)) return {};
  }
  return bytes.substr(sizeof words, head.length);
}

bool is_head(BlockReader& source, std::uint64_t offset) {
  if (source.size() - offset < kHeadBytes) return offset == source.size();
  std::uint32_t words[2];
  source.copy(offset, words, sizeof words);
  return begins_record(words);
}

}  // namespace io

using io::FrameError;

struct RecordWriter::State {
  explicit State(const std::string& path) : file(path) {}
  const int exceptions = std::uncaught_exceptions();

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
RecordWriter::~RecordWriter() {
  if (std::uncaught_exceptions() > state_->exceptions) return;  // what is written will not be used
  try {
    state_->file.close(io::OutputFile::kNoSync);
  } catch (const Error& error) {
    LOG(ERROR) << error.what();
  }
}

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

constexpr std::size_t kBlock = 1 << 20;

// The next offset at or after `offset` where a record may start, else the end of the file.
std::uint64_t find_head(io::BlockReader& source, std::uint64_t offset) {
  offset = std::min((offset + 3) & ~std::uint64_t{3}, source.size());
  while (!io::is_head(source, offset)) offset = std::min(offset + 4, source.size());
  return offset;
}

}  // namespace

struct RecordReader::State {
  State(const std::string& path, OnDamage policy) : file(path), on_damage(policy) {}

  io::InputFile file;
  io::BlockReader source{file, kBlock, true};
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
      io::parse_record(state.source, state.next, &record);
      return true;
    } catch (const FrameError& error) {
      RecordDamage damage{state.file.path(), state.offset, number, error.what()};
      if (state.on_damage == OnDamage::kFail) throw Corrupt(damage.text());
      state.next = find_head(state.source, state.offset + 4);
      damage.skipped = state.next - state.offset;
      state.damage.push_back(std::move(damage));
    }
  }
  return false;
}

std::uint64_t RecordReader::offset() const { return state_->offset; }
const std::vector<RecordDamage>& RecordReader::damage() const { return state_->damage; }
std::uint64_t RecordReader::bytes() const { return state_->file.size(); }
std::uint32_t RecordReader::checksum() const { return state_->source.checksum(); }

RecordIndex scan_index(const std::string& record_path) {
  constexpr std::size_t kHeadsOnly = 1 << 12;
  const io::InputFile file(record_path);
  io::BlockReader source(file, kHeadsOnly);
  RecordIndex index;
  for (std::uint64_t offset = 0; offset < source.size();) {
    const std::int64_t number = static_cast<std::int64_t>(index.size());
    index.push_back({number, offset});
    try {
      io::parse_record(source, offset, nullptr);
    } catch (const FrameError& error) {
      throw Corrupt(RecordDamage{file.path(), index.back().offset, number, error.what()}.text());
    }
  }
  return index;
}

}  // namespace paceline

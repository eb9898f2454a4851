// The companions of a record file, text with one line per record in file order:
//
//   x.idx   key \t offset of the record's head \n                   (MXNet's)
//   x.crc   key \t crc32c, 8 hexadecimal digits \t length \n        (ours; other readers never open it)

#include <paceline/crc32c.h>
#include <paceline/detail/atomic_file.h>
#include <paceline/detail/remote.h>
#include <paceline/error.h>
#include <paceline/recordio.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "companions.h"
#include "file.h"

namespace paceline {
namespace {

// Cuts lines into numeric fields.
class Fields {
 public:
  Fields(const std::string& path, std::string_view text, const char* expected)
      : path_(path), expected_(expected), rest_(text) {}

  // Lines that hold nothing end the file only; elsewhere they are damage, as for MXNet.
  bool next_line() {
    if (rest_.empty()) return false;
    ++number_;
    const std::size_t end = rest_.find('\n');
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    if (!line_.empty() && line_.back() == '\r') line_.remove_suffix(1);
    return true;
  }

  template <class T>
  T number(int base = 10) {
    T value = 0;
    const char* begin = line_.data();
    const auto [end, error] = std::from_chars(begin, begin + line_.size(), value, base);
    if (error != std::errc() || end == begin) fail();
    line_.remove_prefix(static_cast<std::size_t>(end - begin));
    return value;
  }

  void tab() {
    if (line_.empty() || line_.front() != '\t') fail();
    line_.remove_prefix(1);
  }

  void end_line() const {
    if (!line_.empty()) fail();
  }

 private:
  [[noreturn]] void fail() const { throw Corrupt(str(path_, ": line ", number_, " is damaged: expected ", expected_)); }

  const std::string& path_;
  const char* expected_;
  std::string_view rest_;
  std::string_view line_;
  std::int64_t number_ = 0;
};

std::string with_extension(const std::string& path, const char* extension) {
  return std::filesystem::path(path).replace_extension(extension).string();
}

}  // namespace

std::string index_path(const std::string& record_path) { return with_extension(record_path, ".idx"); }
std::string checksum_path(const std::string& record_path) { return with_extension(record_path, ".crc"); }

void write_index(const std::string& path, const RecordIndex& index) {
  std::string text;
  for (const RecordIndexEntry& entry : index) {
    text += std::to_string(entry.key) + '\t' + std::to_string(entry.offset) + '\n';
  }
  detail::AtomicFile::write_text(path, text);
}

RecordIndex read_index(const std::string& path) { return io::parse_index(redacted(path), io::read_file(path)); }

RecordIndex io::parse_index(const std::string& path, std::string_view text) {
  RecordIndex index;
  Fields fields(path, text, "a key, a tab and an offset");
  while (fields.next_line()) {
    RecordIndexEntry entry;
    entry.key = fields.number<std::int64_t>();
    fields.tab();
    entry.offset = fields.number<std::uint64_t>();
    fields.end_line();
    index.push_back(entry);
  }
  return index;
}

void write_checksums(const std::string& path, const std::vector<RecordChecksum>& checksums) {
  std::string text;
  for (const RecordChecksum& checksum : checksums) {
    char digits[9];
    std::snprintf(digits, sizeof digits, "%08x", checksum.crc32c);
    text += std::to_string(checksum.key) + '\t' + digits + '\t' + std::to_string(checksum.length) + '\n';
  }
  detail::AtomicFile::write_text(path, text);
}

std::vector<RecordChecksum> read_checksums(const std::string& path) {
  return io::parse_checksums(redacted(path), io::read_file(path));
}

std::vector<RecordChecksum> io::parse_checksums(const std::string& path, std::string_view text) {
  std::vector<RecordChecksum> checksums;
  Fields fields(path, text, "a key, a tab, a CRC32C, a tab and a length");
  while (fields.next_line()) {
    RecordChecksum checksum;
    checksum.key = fields.number<std::int64_t>();
    fields.tab();
    checksum.crc32c = fields.number<std::uint32_t>(16);
    fields.tab();
    checksum.length = fields.number<std::uint64_t>();
    fields.end_line();
    checksums.push_back(checksum);
  }
  return checksums;
}

io::Companions io::read_companions(const std::string& record_path) {
  Companions found;
  const std::string index_file = index_path(record_path), checksum_file = checksum_path(record_path);
  if (!detail::exists(index_file)) return found;
  std::string text = read_file(index_file);
  found.index_crc32c = crc32c(text);
  RecordIndex& index = found.index.emplace(parse_index(redacted(index_file), text));
  // MXNet's readers sort by offset too: the place of a record is its place in the file.
  std::stable_sort(index.begin(), index.end(),
                   [](const RecordIndexEntry& a, const RecordIndexEntry& b) { return a.offset < b.offset; });
  for (std::size_t i = 0; i < index.size(); ++i) {
    if (index[i].offset % 4 != 0 || (i > 0 && index[i].offset == index[i - 1].offset)) {
      throw Corrupt(
          str(redacted(index_file), ": entry ", i, " is damaged: no record can start at offset ", index[i].offset));
    }
  }
  if (!detail::exists(checksum_file)) return found;
  text = read_file(checksum_file);
  found.checksum_crc32c = crc32c(text);
  const auto& checksums = found.checksums.emplace(parse_checksums(redacted(checksum_file), text));
  if (checksums.size() != index.size()) {
    throw Corrupt(str(redacted(checksum_file), " holds ", checksums.size(), " checksums, but ", redacted(index_file),
                      " ", index.size(), " records"));
  }
  for (std::size_t i = 0; i < checksums.size(); ++i) {
    if (checksums[i].key != index[i].key) {
      throw Corrupt(str(redacted(checksum_file), ": line ", i + 1, " has key ", checksums[i].key,
                        ", but the index has ", index[i].key));
    }
  }
  return found;
}

}  // namespace paceline

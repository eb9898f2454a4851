#pragma once
// Record files, byte for byte those of MXNet (dmlc RecordIO): a writer, a strict sequential reader, and random access
// by index. Beside `x.rec` lie `x.idx` (MXNet's index: key, offset) and `x.crc` (key, CRC32C and length of each
// record), which other readers never open. Offsets are 64-bit; a record is shorter than 2^29 bytes.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

// One place where a record file does not follow its format or its checksum.
struct RecordDamage {
  std::string file;
  std::uint64_t offset = 0;  // of the record's head, in bytes
  std::int64_t record = 0;   // place in the file, from 0
  std::string reason;
  // "train.rec: record 17 at offset 13592 is damaged: wrong magic number".
  std::string text() const;
};

// What a reader does at a damaged record.
enum class OnDamage {
  kFail,  // throw Corrupt
  kSkip,  // go on with the next record that can be read; count and list what was skipped
};

// Writes a new file; an existing one is replaced. Not thread-safe. Throws IoError.
class RecordWriter {
 public:
  explicit RecordWriter(const std::string& path);
  ~RecordWriter();  // closes without throwing; call close() to learn of a full disk
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  // Appends a record and returns the offset of its head. Throws InvalidArgument for 2^29 bytes or more.
  std::uint64_t write(std::string_view record);
  // Bytes written so far and their CRC32C.
  std::uint64_t bytes() const;
  std::uint32_t checksum() const;
  // Writes what is buffered and makes it durable. Further writes are not allowed.
  void close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Reads a file from front to back. Strict: checks magic numbers, the order of parts, lengths and padding. Not
// thread-safe. Constructor throws IoError.
class RecordReader {
 public:
  explicit RecordReader(const std::string& path, OnDamage on_damage = OnDamage::kFail);
  ~RecordReader();
  RecordReader(const RecordReader&) = delete;
  RecordReader& operator=(const RecordReader&) = delete;

  // False at the end of the file. Throws Corrupt (file, offset, record) under kFail, IoError. Under kSkip it looks for
  // the next record head on a 4-byte boundary, as dmlc's splitters do.
  bool next(std::string& record);
  // Of the record that next() gave last.
  std::uint64_t offset() const;
  // Damaged places so far, under kSkip; each may have held several records.
  const std::vector<RecordDamage>& damage() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct RecordIndexEntry {
  std::int64_t key = 0;
  std::uint64_t offset = 0;
  friend bool operator==(const RecordIndexEntry&, const RecordIndexEntry&) = default;
};
using RecordIndex = std::vector<RecordIndexEntry>;

// MXNet's text index. Reading throws IoError, Corrupt (file, line).
void write_index(const std::string& path, const RecordIndex& index);
RecordIndex read_index(const std::string& path);
// Builds an index by reading the records; keys are 0, 1, 2, ... Throws IoError, Corrupt.
RecordIndex scan_index(const std::string& record_path);

struct RecordChecksum {
  std::int64_t key = 0;
  std::uint32_t crc32c = 0;
  std::uint64_t length = 0;  // of the record, without framing
  friend bool operator==(const RecordChecksum&, const RecordChecksum&) = default;
};

// Lines `key\tcrc32c (8 hexadecimal digits)\tlength`, in the order of the index.
void write_checksums(const std::string& path, const std::vector<RecordChecksum>& checksums);
std::vector<RecordChecksum> read_checksums(const std::string& path);

// The companions of `x.rec`: `x.idx` and `x.crc`.
std::string index_path(const std::string& record_path);
std::string checksum_path(const std::string& record_path);

// Random access to the records of one file by place (0 .. size()-1 in file order).
class RecordFile {
 public:
  // Opens the file and reads its index; checks every record against `x.crc` where that exists. Throws IoError naming
  // host and path where a file is missing, Corrupt where index or checksums do not fit the file.
  explicit RecordFile(const std::string& path);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  const std::string& path() const;
  std::int64_t size() const;
  std::uint64_t bytes() const;
  bool has_checksums() const;
  std::int64_t key(std::int64_t place) const;
  std::uint64_t offset(std::int64_t place) const;
  // Thread-safe. Throws IoError, Corrupt (file, offset, record).
  void read(std::int64_t place, std::string& record) const;
  // As read(); false and the reason instead of Corrupt.
  bool try_read(std::int64_t place, std::string& record, RecordDamage& damage) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace paceline

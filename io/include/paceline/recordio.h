#pragma once
// Record files, byte for byte those of MXNet (dmlc RecordIO): a writer, a strict reader from front to back, and random
// access by index. Beside `x.rec` may lie `x.idx` (MXNet's index: key and offset) and `x.crc` (key, CRC-32C and length
// of each record), which other readers never open. Offsets have 64 bits; a record is shorter than 2^29 bytes.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

// One place where a record file does not follow its format or its checksum.
struct RecordDamage {
  std::string file;           // its path
  std::uint64_t offset = 0;   // of the record's head, in bytes
  std::int64_t record = 0;    // place in the file, from 0
  std::string reason;         // "wrong magic number"
  std::uint64_t skipped = 0;  // bytes from there on that a reader left out; 0 where it left out the record alone
  // "train.rec: record 17 at offset 13592 is damaged: wrong magic number".
  std::string text() const;
};

// What a reader does at a damaged record.
enum class OnDamage {
  kFail,  // throws Corrupt
  kSkip,  // goes on with the next record that can be read; counts and lists what was skipped
};

// Writes a record file. Not thread-safe. Every function may throw IoError.
class RecordWriter {
 public:
  // Begins a new file; an existing one is replaced.
  explicit RecordWriter(const std::string& path);
  // Writes what is buffered, unless an exception unwinds the stack. Logs an error instead of throwing it, and does not
  // make the file durable; close() does both.
  ~RecordWriter();
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  // Appends a record and returns the offset of its head in bytes. Throws InvalidArgument for 2^29 bytes or more.
  std::uint64_t write(std::string_view record);
  // The number of bytes written so far, and their CRC-32C.
  std::uint64_t bytes() const;
  std::uint32_t checksum() const;
  // Writes what is buffered and makes it durable. Nothing can be written afterwards.
  void close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Reads a file from front to back, and checks magic numbers, the order of parts, lengths and padding. Not thread-safe.
class RecordReader {
 public:
  // Opens the file. Throws IoError.
  explicit RecordReader(const std::string& path, OnDamage on_damage = OnDamage::kFail);
  ~RecordReader();
  RecordReader(const RecordReader&) = delete;
  RecordReader& operator=(const RecordReader&) = delete;

  // Reads the next record; false at the end of the file. Throws IoError. At damage, kFail throws Corrupt with file,
  // offset and record; kSkip looks for the next head of a record on a boundary of 4 bytes, as dmlc's splitters do.
  bool next(std::string& record);
  // The offset in bytes of the record that next() gave last.
  std::uint64_t offset() const;
  // The damaged places so far, under kSkip. Each may have held several records.
  const std::vector<RecordDamage>& damage() const;
  // The size of the file in bytes.
  std::uint64_t bytes() const;
  // The CRC-32C of the whole file, when next() has given false.
  std::uint32_t checksum() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Where a record is.
struct RecordIndexEntry {
  std::int64_t key = 0;      // its number, as the packer gave it
  std::uint64_t offset = 0;  // of its head, in bytes
  friend bool operator==(const RecordIndexEntry&, const RecordIndexEntry&) = default;
};
// The records of a file, in its order.
using RecordIndex = std::vector<RecordIndexEntry>;

// Write and read MXNet's index, which is text. They throw IoError; reading throws Corrupt with file and line.
void write_index(const std::string& path, const RecordIndex& index);
RecordIndex read_index(const std::string& path);
// Makes an index from the heads of the records, without reading what is in them. Keys are 0, 1, 2, ... Throws IoError,
// Corrupt.
RecordIndex scan_index(const std::string& record_path);

// The checksum of a record.
struct RecordChecksum {
  std::int64_t key = 0;      // as in the index
  std::uint32_t crc32c = 0;  // of the record, without framing
  std::uint64_t length = 0;  // of the record in bytes, without framing
  friend bool operator==(const RecordChecksum&, const RecordChecksum&) = default;
};

// Write and read lines `key\tcrc32c\tlength`, with 8 hexadecimal digits of the checksum, in the order of the index.
// They throw IoError; reading throws Corrupt with file and line.
void write_checksums(const std::string& path, const std::vector<RecordChecksum>& checksums);
std::vector<RecordChecksum> read_checksums(const std::string& path);

// The paths of the files that belong to `x.rec`: `x.idx` and `x.crc`.
std::string index_path(const std::string& record_path);
std::string checksum_path(const std::string& record_path);

// Memory for RecordFile::visit(), which uses it again. One visit() at a time. It keeps up to 1 MB and twice as much as
// the longest record. A damaged record may take more while it is read, as its head may name any length below 2^29.
class RecordBuffer {
 public:
  RecordBuffer();
  ~RecordBuffer();
  RecordBuffer(RecordBuffer&&) noexcept;
  RecordBuffer& operator=(RecordBuffer&&) noexcept;

 private:
  friend class RecordFile;
  struct State;
  std::unique_ptr<State> state_;
};

// Random access to the records of one file by place, from 0 to size() - 1 in the order of the file. Thread-safe after
// construction.
class RecordFile {
 public:
  // Opens the file and reads its index, which may name some of the records only. Without an index, scan_index() makes
  // one. Where `x.idx` and `x.crc` exist, every record is checked against its CRC-32C when it is read. Throws IoError
  // with host and path where a file cannot be read. Throws Corrupt where index or checksums are damaged or do not fit
  // each other. `name` replaces `path` in path() and in messages about damaged records, for a `path` that is a local
  // copy.
  explicit RecordFile(const std::string& path, const std::string& name = "");
  // Opens the file with an index of the caller's, sorted by offset, and without checksums. Throws IoError.
  RecordFile(const std::string& path, RecordIndex index);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  const std::string& path() const;                 // of the record file, or its name
  std::int64_t size() const;                       // the number of records
  std::uint64_t bytes() const;                     // of the record file
  bool has_checksums() const;                      // are records checked against an `x.crc`?
  std::int64_t key(std::int64_t place) const;      // of a record, from the index
  std::uint64_t offset(std::int64_t place) const;  // of a record's head, in bytes
  // Reads a record. Throws Corrupt with file, offset and record, where it is damaged or the disk cannot read it.
  void read(std::int64_t place, std::string& record) const;
  // As read(), but returns false and the reason for a damaged record. Throws InvalidArgument for a wrong place.
  bool try_read(std::int64_t place, std::string& record, RecordDamage& damage) const;
  // Is told of a record. The view ends with the call. Of a damaged one it is empty, and `damage` says why.
  using Visitor = std::function<void(std::int64_t place, std::string_view record, const RecordDamage* damage)>;
  // Reads the records at [begin, end) as try_read() does, many at a time, and tells `visit` of each, in their order.
  // What `visit` throws ends it. `visit` must not use `buffer`. Throws InvalidArgument for wrong places.
  void visit(std::int64_t begin, std::int64_t end, RecordBuffer& buffer, const Visitor& visit) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace paceline

#pragma once
// The framing of one record, shared by the sequential reader and by random access. Drawn at the top of recordio.cc.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "file.h"

namespace paceline::io {

inline constexpr std::uint32_t kMagic = 0xced7230a;
inline constexpr std::uint32_t kLengthBits = 29;
inline constexpr std::uint32_t kHeadBytes = 8;
inline constexpr std::uint32_t kLengthMask = (1u << kLengthBits) - 1;

enum PartFlag : std::uint32_t { kWhole = 0, kFirst = 1, kMiddle = 2, kLast = 3 };

// Why a record cannot be read; the caller adds file, offset and record.
class FrameError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Bytes of a file, read ahead in blocks. One thread at a time.
class BlockReader {
 public:
  // Reads at least `block` bytes at once. `summing`: for checksum(). The file must outlive the reader.
  BlockReader(const InputFile& file, std::size_t block, bool summing = false)
      : file_(file), least_(block), summing_(summing) {}

  std::uint64_t size() const { return file_.size(); }
  // [offset, offset + count) lies inside the file. Throws IoError.
  void copy(std::uint64_t offset, void* to, std::size_t count);
  // Reads the end of the file too, and returns the CRC-32C of the file. Needs copies that left no gap.
  std::uint32_t checksum();

 private:
  void load(std::uint64_t offset, std::size_t count);

  const InputFile& file_;
  std::size_t least_;
  bool summing_;
  std::unique_ptr<char[]> block_;
  std::size_t capacity_ = 0;  // of the block
  std::size_t count_ = 0;     // of its bytes that are of the file
  std::uint64_t begin_ = 0;   // of the block
  std::uint64_t summed_ = 0;  // bytes of the file that checksum_ covers
  std::uint32_t checksum_ = 0;
};

// The head of a part.
struct PartHead {
  std::uint32_t flag = 0;
  std::uint32_t length = 0;  // of what it holds, in bytes
  bool more() const { return flag == kFirst || flag == kMiddle; }
  // Of what it holds with the padding behind it.
  std::uint64_t padded() const { return (std::uint64_t{length} + 3) & ~std::uint64_t{3}; }
};

// Reads the record whose head is at `offset`, which lies inside, and moves `offset` behind it. Throws FrameError.
// Without a `record`, only the heads of its parts are read.
void parse_record(BlockReader& source, std::uint64_t& offset, std::string* record);

// What the record at the front of `bytes` holds, where it is a whole one in a single part, and `bytes` end behind it or
// go on with another record. None where it is anything else: parse_record() says what.
std::optional<std::string_view> whole_record(std::string_view bytes);

// May a record begin at `offset`, or does the file end there?
bool is_head(BlockReader& source, std::uint64_t offset);

}  // namespace paceline::io

#pragma once
// The framing of one record, shared by the sequential reader and by random access. Drawn at the top of recordio.cc.

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace paceline::io {

inline constexpr std::uint32_t kMagic = 0xced7230a;
inline constexpr std::uint32_t kLengthBits = 29;
inline constexpr std::uint32_t kLengthMask = (1u << kLengthBits) - 1;

enum PartFlag : std::uint32_t { kWhole = 0, kFirst = 1, kMiddle = 2, kLast = 3 };

// Why a record cannot be read; the caller adds file, offset and record.
class FrameError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const = 0;
  // [offset, offset + count) lies inside.
  virtual void copy(std::uint64_t offset, void* to, std::size_t count) const = 0;
};

// Reads the record whose head is at `offset`, which lies inside, and moves `offset` behind it. Throws FrameError.
void parse_record(const ByteSource& source, std::uint64_t& offset, std::string& record);

}  // namespace paceline::io

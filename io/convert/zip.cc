// A zip archive ends with a directory of its members: PKWARE's APPNOTE, sections 4.3.12 to 4.3.16. Sizes and offsets
// from 4 GiB on are in an extra field (zip64).

#include "convert/zip.h"

#include <paceline/error.h>

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <string_view>

namespace paceline::io {
namespace {

constexpr std::uint32_t kEnd64 = 0x06064b50, kLocator64 = 0x07064b50, kEntry = 0x02014b50, kLocal = 0x04034b50;
constexpr std::size_t kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56, kEntryBytes = 46, kLocalBytes = 30;
constexpr std::uint32_t kIsIn64 = 0xffffffff;

template <class T>
T number_at(std::string_view bytes, std::size_t at, const std::string& path) {
  T value{};
  if (at > bytes.size() || bytes.size() - at < sizeof value)
    throw Corrupt(str(path, ": the archive's directory is damaged"));
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::string bytes_at(const InputFile& archive, std::uint64_t offset, std::uint64_t count) {
  if (offset > archive.size() || count > archive.size() - offset)
    throw Corrupt(str(archive.path(), ": the archive is truncated"));
  std::string bytes(static_cast<std::size_t>(count), '\0');
  if (archive.read_at(offset, bytes.data(), bytes.size()) != bytes.size())
    throw Corrupt(str(archive.path(), ": the archive is truncated"));
  return bytes;
}

// The archive's directory.
std::string directory_of(const InputFile& archive) {
  constexpr std::uint64_t kLongestComment = 65535;
  const std::string& path = archive.path();
  const std::uint64_t tail_bytes = std::min<std::uint64_t>(archive.size(), kEndBytes + kLongestComment);
  const std::uint64_t tail_begin = archive.size() - tail_bytes;
  const std::string tail = bytes_at(archive, tail_begin, tail_bytes);
  const std::size_t end = tail.rfind("PK\x05\x06");
  if (end == std::string::npos) throw Corrupt(str(path, " is no zip archive, or was cut"));
  std::uint64_t bytes = number_at<std::uint32_t>(tail, end + 12, path);
  std::uint64_t offset = number_at<std::uint32_t>(tail, end + 16, path);
  const std::uint64_t at = tail_begin + end;
  if (at >= kLocatorBytes) {
    const std::string locator = bytes_at(archive, at - kLocatorBytes, kLocatorBytes);
    if (number_at<std::uint32_t>(locator, 0, path) == kLocator64) {
      const std::string end64 = bytes_at(archive, number_at<std::uint64_t>(locator, 8, path), kEnd64Bytes);
      if (number_at<std::uint32_t>(end64, 0, path) != kEnd64) throw Corrupt(str(path, ": the archive is damaged"));
      bytes = number_at<std::uint64_t>(end64, 40, path);
      offset = number_at<std::uint64_t>(end64, 48, path);
    }
  }
  return bytes_at(archive, offset, bytes);
}

// Reads what does not fit into 32 bits, in the order of the format.
void read_zip64(std::string_view extra, ZipMember& member, const std::string& path) {
  constexpr std::uint16_t kZip64 = 1;
  while (extra.size() >= 4) {
    const auto tag = number_at<std::uint16_t>(extra, 0, path);
    const std::size_t size = number_at<std::uint16_t>(extra, 2, path);
    const std::string_view field = extra.substr(4, size);
    extra.remove_prefix(std::min(4 + size, extra.size()));
    if (tag != kZip64) continue;
    std::size_t at = 0;
    for (std::uint64_t* number : {&member.bytes, &member.packed, &member.offset}) {
      if (*number != kIsIn64) continue;
      *number = number_at<std::uint64_t>(field, at, path);
      at += sizeof *number;
    }
  }
}

}  // namespace

std::vector<ZipMember> zip_members(const InputFile& archive) {
  const std::string& path = archive.path();
  const std::string directory = directory_of(archive);
  std::vector<ZipMember> members;
  for (std::size_t at = 0; at < directory.size();) {
    const std::string_view entry = std::string_view(directory).substr(at);
    const auto method = number_at<std::uint16_t>(entry, 10, path);
    const std::size_t name = number_at<std::uint16_t>(entry, 28, path);
    const std::size_t extra = number_at<std::uint16_t>(entry, 30, path);
    const std::size_t comment = number_at<std::uint16_t>(entry, 32, path);
    if (number_at<std::uint32_t>(entry, 0, path) != kEntry || entry.size() < kEntryBytes + name + extra)
      throw Corrupt(str(path, ": the archive's directory is damaged"));
    ZipMember member;
    member.name = entry.substr(kEntryBytes, name);
    constexpr std::uint16_t kStored = 0, kDeflated = 8;
    if (method != kStored && method != kDeflated)
      throw Corrupt(str(path, ": '", member.name, "' is compressed by method ", method, ", known are 0 and 8"));
    member.stored = method == kStored;
    member.crc32 = number_at<std::uint32_t>(entry, 16, path);
    member.packed = number_at<std::uint32_t>(entry, 20, path);
    member.bytes = number_at<std::uint32_t>(entry, 24, path);
    member.offset = number_at<std::uint32_t>(entry, 42, path);
    read_zip64(entry.substr(kEntryBytes + name, extra), member, path);
    const std::string local = bytes_at(archive, member.offset, kLocalBytes);
    if (number_at<std::uint32_t>(local, 0, path) != kLocal) throw Corrupt(str(path, ": the archive is damaged"));
    member.offset +=
        kLocalBytes + number_at<std::uint16_t>(local, 26, path) + number_at<std::uint16_t>(local, 28, path);
    if (member.offset > archive.size() || member.packed > archive.size() - member.offset ||
        (member.stored && member.bytes != member.packed))
      throw Corrupt(str(path, ": '", member.name, "' is truncated"));
    members.push_back(std::move(member));
    at += kEntryBytes + name + extra + comment;
  }
  return members;
}

std::string unpack(const InputFile& archive, const ZipMember& member) {
  const auto damaged = [&] { return Corrupt(str(archive.path(), ": '", member.name, "' is damaged")); };
  const std::string packed = bytes_at(archive, member.offset, member.packed);
  std::string bytes;
  if (member.stored) {
    bytes = packed;
  } else {
    z_stream stream = {};
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw OutOfMemory("zlib cannot begin to unpack");
    std::size_t taken = 0;
    int code = Z_OK;
    // In parts, as zlib counts in 32 bits and a damaged size must not cost gigabytes.
    while (code == Z_OK) {
      constexpr std::size_t kBlock = 1 << 20;
      const std::size_t before = bytes.size();
      bytes.resize(before + kBlock);
      const std::size_t in = std::min(packed.size() - taken, kBlock);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + taken));
      stream.avail_in = static_cast<uInt>(in);
      stream.next_out = reinterpret_cast<Bytef*>(bytes.data() + before);
      stream.avail_out = static_cast<uInt>(kBlock);
      code = inflate(&stream, Z_NO_FLUSH);
      taken += in - stream.avail_in;
      bytes.resize(before + kBlock - stream.avail_out);
      if (bytes.size() > member.bytes) break;
    }
    inflateEnd(&stream);
    if (code != Z_STREAM_END) throw damaged();
  }
  std::uint32_t sum = 0;
  for (std::size_t at = 0; at < bytes.size(); at += 1 << 20) {
    const std::size_t count = std::min<std::size_t>(1 << 20, bytes.size() - at);
    sum = static_cast<std::uint32_t>(
        crc32(sum, reinterpret_cast<const Bytef*>(bytes.data() + at), static_cast<uInt>(count)));
  }
  if (bytes.size() != member.bytes || sum != member.crc32) throw damaged();
  return bytes;
}

}  // namespace paceline::io

// An IDX file, big-endian: zero:u16 type:u8 (8: unsigned bytes) dimensions:u8 size:u32[dimensions] values.

#include <paceline/idx_file.h>

#include <paceline/error.h>

#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <memory>

#include "file.h"

namespace paceline {
namespace {

constexpr std::uint8_t kUnsignedByte = 8;
constexpr std::size_t kBlock = 1 << 20;
constexpr std::int64_t kMostValues = std::int64_t{1} << 36;

using GzFile = std::unique_ptr<gzFile_s, int (*)(gzFile)>;

bool ends_with(const std::string& text, const std::string& with) {
  return text.size() >= with.size() && text.compare(text.size() - with.size(), with.size(), with) == 0;
}

}  // namespace

IdxFile read_idx(const std::string& path) {
  const GzFile file(gzopen(path.c_str(), "rb"), gzclose);  // reads plain files too
  if (!file) io::throw_io_error("open", path, errno);
  gzbuffer(file.get(), 1 << 17);

  const auto read = [&](std::uint8_t* to, std::size_t count) {
    const int got = gzread(file.get(), to, static_cast<unsigned>(count));
    if (got == static_cast<int>(count)) return;
    int code = Z_OK;
    const char* reason = gzerror(file.get(), &code);
    if (code == Z_ERRNO) io::throw_io_error("read", path, errno);
    throw Corrupt(
        str(path, ": the file is truncated or damaged", code == Z_OK ? "" : ": ", code == Z_OK ? "" : reason));
  };

  std::uint8_t head[4];
  read(head, sizeof head);
  if (head[0] != 0 || head[1] != 0 || head[2] != kUnsignedByte || head[3] < 1 || head[3] > 8) {
    throw Corrupt(str(path, ": it is no IDX file of unsigned bytes"));
  }
  IdxFile result;
  std::int64_t total = 1;
  for (int i = 0; i < head[3]; ++i) {
    std::uint8_t size[4];
    read(size, sizeof size);
    result.shape.push_back(std::int64_t{size[0]} << 24 | size[1] << 16 | size[2] << 8 | size[3]);
    if (result.shape.back() != 0 && total > kMostValues / result.shape.back()) {
      throw Corrupt(str(path, ": its header claims an impossible size"));
    }
    total *= result.shape.back();
  }
  // Grows with what is really there: a damaged header must not cost gigabytes.
  for (std::int64_t done = 0; done < total;) {
    const std::size_t count = static_cast<std::size_t>(std::min<std::int64_t>(total - done, kBlock));
    result.values.resize(static_cast<std::size_t>(done) + count);
    read(result.values.data() + done, count);
    done += static_cast<std::int64_t>(count);
  }
  std::uint8_t more = 0;
  const int after = gzread(file.get(), &more, 1);
  if (after > 0) throw Corrupt(str(path, ": bytes follow the ", total, " values that its header announces"));
  if (after < 0) throw Corrupt(str(path, ": the file is damaged at its end"));
  return result;
}

void write_idx(const std::string& path, const IdxFile& idx) {
  require(!idx.shape.empty() && idx.shape.size() <= 8, "an IDX file has 1 to 8 dimensions");
  std::int64_t total = 1;
  bool fits = true;
  for (const std::int64_t size : idx.shape)
    fits = fits && size >= 0 && size < std::int64_t{1} << 32 && !__builtin_mul_overflow(total, size, &total);
  require(fits && total == static_cast<std::int64_t>(idx.values.size()), "the ", idx.values.size(), " values for ",
          path, " do not fill the shape that is given for them");
  const std::string temporary = str(path, ".tmp.", getpid());
  GzFile file(gzopen(temporary.c_str(), ends_with(path, ".gz") ? "wb6" : "wbT"), gzclose);
  if (!file) io::throw_io_error("create", temporary, errno);
  const auto fail = [&](const char* what, int error) {
    unlink(temporary.c_str());
    io::throw_io_error(what, path, error);
  };
  std::vector<std::uint8_t> head = {0, 0, kUnsignedByte, static_cast<std::uint8_t>(idx.shape.size())};
  for (const std::int64_t size : idx.shape) {
    for (int shift = 24; shift >= 0; shift -= 8) head.push_back(static_cast<std::uint8_t>(size >> shift));
  }
  const auto write = [&](const std::uint8_t* bytes, std::size_t count) {
    for (std::size_t done = 0; done < count;) {
      const unsigned part = static_cast<unsigned>(std::min(count - done, kBlock));
      if (gzwrite(file.get(), bytes + done, part) != static_cast<int>(part)) fail("write", errno);
      done += part;
    }
  };
  write(head.data(), head.size());
  write(idx.values.data(), idx.values.size());
  if (gzclose(file.release()) != Z_OK) fail("write", errno);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) fail("replace", errno);
}

}  // namespace paceline

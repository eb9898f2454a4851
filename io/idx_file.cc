// An IDX file, big-endian: zero:u16 type:u8 (8: unsigned bytes) dimensions:u8 size:u32[dimensions] values.

#include <paceline/idx_file.h>

#include <paceline/detail/atomic_file.h>
#include <paceline/error.h>

#include <zlib.h>

#include <cerrno>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>

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

void write_gzip(detail::AtomicFile& file, std::initializer_list<std::span<const std::uint8_t>> parts) {
  constexpr int kLevel = 6, kGzip = 16, kMemory = 8;
  z_stream stream = {};
  if (deflateInit2(&stream, kLevel, Z_DEFLATED, MAX_WBITS + kGzip, kMemory, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::bad_alloc();
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, deflateEnd);
  std::vector<std::uint8_t> packed(kBlock);
  // Packs one piece, and writes all of it that is ready.
  const auto pack = [&](std::span<const std::uint8_t> piece, int flush) {
    stream.next_in = const_cast<std::uint8_t*>(piece.data());  // zlib only reads it
    stream.avail_in = static_cast<unsigned>(piece.size());
    do {
      stream.next_out = packed.data();
      stream.avail_out = static_cast<unsigned>(packed.size());
      deflate(&stream, flush);
      file.write(packed.data(), packed.size() - stream.avail_out);
    } while (stream.avail_out == 0);
  };
  for (std::span<const std::uint8_t> part : parts)
    for (; !part.empty(); part = part.subspan(std::min(part.size(), kBlock)))
      pack(part.first(std::min(part.size(), kBlock)), Z_NO_FLUSH);
  pack({}, Z_FINISH);
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
  detail::AtomicFile file(path);
  std::vector<std::uint8_t> head = {0, 0, kUnsignedByte, static_cast<std::uint8_t>(idx.shape.size())};
  for (const std::int64_t size : idx.shape) {
    for (int shift = 24; shift >= 0; shift -= 8) head.push_back(static_cast<std::uint8_t>(size >> shift));
  }
  if (ends_with(path, ".gz")) {
    write_gzip(file, {head, idx.values});
  } else {
    file.write(head.data(), head.size());
    file.write(idx.values.data(), idx.values.size());
  }
  file.commit();
}

}  // namespace paceline

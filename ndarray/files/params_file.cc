// MXNet's `.params`, little-endian:
//
//   file    := 0x112:u64 0:u64 count:u64 block*count names:u64 { length:u64 bytes }*names      names is count or 0
//   block   := V3 or V2: magic:u32 storage:i32 shape place type:i32 data      storage 0 is dense
//            | V1:       magic:u32             shape place type:i32 data
//            | V0:       dimensions:u32 size:u32*dimensions place type:i32 data
//   shape   := dimensions:i32 size:i64*dimensions
//   place   := device:i32 index:i32            always written as 1 0, the CPU
//
// V2 cannot hold scalars and arrays without elements: there, 0 dimensions mean no array, and the block ends after them.
// V3 can; there, -1 means no array.

#include "files/file_reader.h"

#include <paceline/detail/atomic_file.h>

namespace paceline {
namespace {

constexpr std::uint64_t kListMagic = 0x112;
constexpr std::uint32_t kV1 = 0xF993FAC8;
constexpr std::uint32_t kV2 = 0xF993FAC9;
constexpr std::uint32_t kV3 = 0xF993FACA;
constexpr std::int32_t kMostDimensions = 32;  // in files

using detail::AtomicFile;
using detail::FileReader;

void write_block(AtomicFile& file, const NDArray& array) {
  const bool needs_v3 = array.ndim() == 0 || array.size() == 0;
  file.write_value(needs_v3 ? kV3 : kV2);
  file.write_value(std::int32_t{0});
  file.write_value(static_cast<std::int32_t>(array.ndim()));
  for (const std::int64_t size : array.shape()) file.write_value(size);
  file.write_value(std::int32_t{1});
  file.write_value(std::int32_t{0});
  file.write_value(static_cast<std::int32_t>(array.dtype()));
  const NDArray host = array.contiguous().to(Device());
  host.wait();
  file.write(host.data(), host.bytes());
}

// False where the block holds no array.
bool read_shape(FileReader& file, std::uint32_t version, std::vector<std::int64_t>& sizes) {
  const std::int32_t dimensions = file.value<std::int32_t>();
  if (version == kV3 && dimensions == -1) return false;
  if (dimensions < 0 || dimensions > kMostDimensions) file.corrupt("an array of ", dimensions, " dimensions");
  bool unknown = false;
  for (std::int32_t i = 0; i < dimensions; ++i) {
    sizes.push_back(file.value<std::int64_t>());
    unknown |= sizes.back() == -1;
  }
  return version == kV3 ? !unknown : dimensions > 0;
}

NDArray read_block(FileReader& file, Engine& engine) {
  const std::uint32_t version = file.value<std::uint32_t>();
  std::vector<std::int64_t> sizes;
  if (version == kV1 || version == kV2 || version == kV3) {
    if (version != kV1) {
      const std::int32_t storage = file.value<std::int32_t>();
      if (storage == 1 || storage == 2)
        file.unsupported("a sparse array (", storage == 1 ? "row_sparse" : "csr", "); only dense ones can be loaded");
      if (storage != 0) file.corrupt("unknown kind of storage ", storage);
    }
    if (!read_shape(file, version, sizes)) return {};
  } else {
    if (version > static_cast<std::uint32_t>(kMostDimensions)) file.corrupt("no array begins with ", version);
    if (version == 0) return {};
    for (std::uint32_t i = 0; i < version; ++i) sizes.push_back(file.value<std::uint32_t>());
  }
  const std::int32_t device = file.value<std::int32_t>();
  file.value<std::int32_t>();
  if (device != 1 && device != 2 && device != 3 && device != 5) file.corrupt("unknown kind of device ", device);
  const std::int32_t type = file.value<std::int32_t>();
  if (type >= 8 && type <= 11) file.unsupported("arrays of type ", type, " (16-bit and unsigned integers)");
  if (!is_valid(type)) file.corrupt("unknown element type ", type);
  return file.array(sizes, static_cast<DType>(type), engine);
}

}  // namespace

void save_params(const std::string& path, const NamedArrays& arrays) {
  bool named = false;
  for (const auto& [name, array] : arrays) {
    require(!array.is_none(), "cannot save '", name, "' to ", path, ": it is none");
    require(name.find('\0') == std::string::npos, "cannot save to ", path, ": a name holds a zero byte");
    named |= !name.empty();
  }
  AtomicFile file(path);
  file.write_value(kListMagic);
  file.write_value(std::uint64_t{0});
  file.write_value(std::uint64_t{arrays.size()});
  for (const auto& [name, array] : arrays) write_block(file, array);
  file.write_value(std::uint64_t{named ? arrays.size() : 0});
  if (named) {
    for (const auto& [name, array] : arrays) {
      file.write_value(std::uint64_t{name.size()});
      file.write(name.data(), name.size());
    }
  }
  file.commit();
}

NamedArrays load_params(const std::string& path, Engine& engine) {
  FileReader file(path);
  const std::uint64_t magic = file.value<std::uint64_t>();
  const auto first_word = static_cast<std::uint32_t>(magic);
  if (first_word == 0x04034b50 || first_word == 0x06054b50 || first_word == 0x4d554e93)
    file.unsupported("this is a NumPy file (npy or npz), not a list of arrays");
  if (magic != kListMagic) file.corrupt("this is not a list of MXNet arrays");
  file.value<std::uint64_t>();
  const std::uint64_t count = file.value<std::uint64_t>();
  constexpr std::uint64_t kSmallestBlock = 4;
  if (count > file.left() / kSmallestBlock) file.corrupt(count, " arrays do not fit into the file");
  NamedArrays arrays;
  for (std::uint64_t i = 0; i < count; ++i) arrays.emplace_back("", read_block(file, engine));
  const std::uint64_t names = file.value<std::uint64_t>();
  if (names != 0 && names != count) file.corrupt(names, " names for ", count, " arrays");
  for (std::uint64_t i = 0; i < names; ++i) {
    arrays[i].first = file.text(file.value<std::uint64_t>());
    if (arrays[i].first.find('\0') != std::string::npos) file.corrupt("a name holds a zero byte");
  }
  if (file.left() > 0) file.corrupt(file.left(), " bytes follow the end of the list");
  return arrays;
}

}  // namespace paceline

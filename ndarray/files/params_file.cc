// MXNet's `.params`, little-endian:
//
//   file    := 0x112:u64 0:u64 count:u64 block*count names:u64 { length:u64 bytes }*names      names is count or 0
//   block   := V3 or V2: magic:u32 storage:i32 [stored:shape] shape place type:i32 { type:i32 shape }*aux data aux*
//            | V1:       magic:u32             shape place type:i32 data
//            | V0:       dimensions:u32 size:u32*dimensions place type:i32 data
//   storage := 0: dense, without what is in brackets and without aux
//            | 1: row_sparse, whose aux are the numbers of the rows that are stored
//            | 2: csr, whose aux are, for each row and the end, its first element, and the column of each element
//   shape   := dimensions:i32 size:i64*dimensions
//   place   := device:i32 index:i32            always written as 1 0, the CPU
//
// V2 cannot hold scalars and arrays without elements: there, 0 dimensions mean no array, and the block ends after them.
// V3 can; there, -1 means no array. MXNet reads a file whose blocks are all V2, or all V3 with NumPy's semantics
// switched on (npx.set_np), so all blocks of a file have one version.

#include "files/file_reader.h"

#include <paceline/detail/array_builder.h>
#include <paceline/detail/array_file.h>
#include <paceline/detail/atomic_file.h>

#include <algorithm>
#include <cstring>

#include <sys/mman.h>

namespace paceline {
namespace {

constexpr std::uint64_t kListMagic = 0x112;
constexpr std::uint32_t kV1 = 0xF993FAC8;
constexpr std::uint32_t kV2 = 0xF993FAC9;
constexpr std::uint32_t kV3 = 0xF993FACA;
constexpr std::int32_t kMostDimensions = 32;  // in files

using detail::AtomicFile;
using detail::FileReader;

void write_block(AtomicFile& file, const NDArray& array, std::uint32_t version) {
  file.write_value(version);
  file.write_value(std::int32_t{0});
  file.write_value(static_cast<std::int32_t>(array.ndim()));
  for (const std::int64_t size : array.shape()) file.write_value(size);
  file.write_value(std::int32_t{1});
  file.write_value(std::int32_t{0});
  file.write_value(static_cast<std::int32_t>(array.dtype()));
  const NDArray host = array.contiguous().to(Device());
  host.wait();
  file.write(host.const_data(), host.bytes());
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

DType read_type(FileReader& file) {
  const std::int32_t type = file.value<std::int32_t>();
  if (type >= 8 && type <= 11) file.unsupported("arrays of type ", type, " (16-bit and unsigned integers)");
  if (!is_valid(type)) file.corrupt("unknown element type ", type);
  return static_cast<DType>(type);
}

enum Storage : std::int32_t { kDense = 0, kRowSparse = 1, kCsr = 2 };

// Where the stored elements of a sparse array belong.
struct SparsePlaces {
  std::vector<std::vector<std::int64_t>> aux_sizes;
  std::vector<std::vector<std::int64_t>> aux;

  void read_heads(FileReader& file, Storage storage) {
    for (int i = 0; i < (storage == kCsr ? 2 : 1); ++i) {
      if (read_type(file) != DType::kInt64) file.unsupported("a sparse array whose places are not of 64 bits");
      read_shape(file, kV3, aux_sizes.emplace_back());
      if (aux_sizes.back().size() != 1)
        file.corrupt("places of a sparse array with ", aux_sizes.back().size(), " dimensions");
    }
  }
  void read(FileReader& file, Engine& engine) {
    for (const auto& sizes : aux_sizes)
      aux.push_back(file.array(sizes, DType::kInt64, engine).to_vector<std::int64_t>());
  }
};

// Zeros that take no memory until they are written.
NDArray zeros(FileReader& file, const std::vector<std::int64_t>& sizes, DType dtype, Engine& engine) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 36;
  for (const std::int64_t size : sizes)
    if (size < 0) file.corrupt("a dimension of ", size, " elements");
  const std::uint64_t bytes = detail::byte_count(sizes, dtype);
  if (bytes > kMostBytes || sizes.size() > Shape::kMaxDims)
    file.unsupported("a sparse array that takes ", bytes, " bytes and ", sizes.size(), " dimensions as a dense one");
  const std::uint64_t mapped = std::max<std::uint64_t>(bytes, 1);
  void* const start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED)
    throw OutOfMemory(str("no memory is left for a sparse array that takes ", bytes, " bytes as a dense one"));
  const std::shared_ptr<void> memory(start, [mapped](void* pages) { munmap(pages, mapped); });
  return NDArray::wrap(start, Shape(std::span<const std::int64_t>(sizes)), dtype, memory, engine);
}

// What stands behind the type of a sparse array.
NDArray read_sparse(FileReader& file, Storage storage, const std::vector<std::int64_t>& stored,
                    const std::vector<std::int64_t>& sizes, DType dtype, Engine& engine) {
  SparsePlaces places;
  places.read_heads(file, storage);
  const NDArray values = file.array(stored, dtype, engine);
  places.read(file, engine);
  if (sizes.empty() || (storage == kCsr && sizes.size() != 2))
    file.corrupt("a sparse array of ", sizes.size(), " dimensions");
  const NDArray result = zeros(file, sizes, dtype, engine);
  const auto* from = static_cast<const char*>(ArrayBuilder::data(values));
  auto* to = static_cast<char*>(ArrayBuilder::data(result));
  const auto rows = sizes[0];
  const auto row_bytes = rows > 0 ? result.bytes() / static_cast<std::size_t>(rows) : 0;
  const auto check = [&](bool fits) {
    if (!fits) file.corrupt("the places of a sparse array do not fit its shape");
  };
  if (storage == kRowSparse) {
    const std::vector<std::int64_t>& stored_rows = places.aux[0];
    check(values.bytes() == stored_rows.size() * row_bytes);
    for (const std::int64_t row : stored_rows) {
      check(row >= 0 && row < rows);
      std::memcpy(to + static_cast<std::size_t>(row) * row_bytes, from, row_bytes);
      from += row_bytes;
    }
    return result;
  }
  const std::vector<std::int64_t>&begins = places.aux[0], &columns = places.aux[1];
  const auto count = static_cast<std::int64_t>(columns.size());
  check(begins.size() == static_cast<std::size_t>(rows) + 1 && begins.front() == 0 && begins.back() == count &&
        values.size() == count);
  const std::size_t width = size_of(dtype);
  for (std::int64_t row = 0, at = 0; row < rows; ++row) {
    const std::int64_t end = begins[static_cast<std::size_t>(row) + 1];
    check(end >= at && end <= count);
    for (; at < end; ++at, from += width) {
      const std::int64_t column = columns[static_cast<std::size_t>(at)];
      check(column >= 0 && column < sizes[1]);
      std::memcpy(to + static_cast<std::size_t>(row) * row_bytes + static_cast<std::size_t>(column) * width, from,
                  width);
    }
  }
  return result;
}

NDArray read_block(FileReader& file, Engine& engine) {
  const std::uint32_t version = file.value<std::uint32_t>();
  std::vector<std::int64_t> sizes, stored;
  std::int32_t storage = kDense;
  if (version == kV1 || version == kV2 || version == kV3) {
    if (version != kV1) {
      storage = file.value<std::int32_t>();
      if (storage < kDense || storage > kCsr) file.corrupt("unknown kind of storage ", storage);
      if (storage != kDense) read_shape(file, kV3, stored);
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
  const DType dtype = read_type(file);
  if (storage != kDense) return read_sparse(file, static_cast<Storage>(storage), stored, sizes, dtype, engine);
  return file.array(sizes, dtype, engine);
}

}  // namespace

void save_params(const std::string& path, const NamedArrays& arrays) {
  bool named = false;
  std::uint32_t version = kV2;
  for (const auto& [name, array] : arrays) {
    require(!array.is_none(), "cannot save '", name, "' to ", path, ": it is none");
    require(name.find('\0') == std::string::npos, "cannot save to ", path, ": a name holds a zero byte");
    named |= !name.empty();
    if (array.ndim() == 0 || array.size() == 0) version = kV3;
  }
  AtomicFile file(path);
  file.write_value(kListMagic);
  file.write_value(std::uint64_t{0});
  file.write_value(std::uint64_t{arrays.size()});
  for (const auto& [name, array] : arrays) write_block(file, array, version);
  file.write_value(std::uint64_t{named ? arrays.size() : 0});
  if (named) {
    for (const auto& [name, array] : arrays) {
      file.write_value(std::uint64_t{name.size()});
      file.write(name.data(), name.size());
    }
  }
  file.commit();
}

bool detail::begins_params(const FileStart& start) {
  std::uint64_t magic = 0;
  if (start.bytes.size() >= sizeof magic) std::memcpy(&magic, start.bytes.data(), sizeof magic);
  return magic == kListMagic && !begins_safetensors(start);
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

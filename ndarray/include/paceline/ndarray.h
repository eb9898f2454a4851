#pragma once
// NDArray: an asynchronous n-dimensional array. A handle: copies share the memory. Everything that computes returns at
// once and is ordered by the engine; only functions that say so block.
//
// A Tape (<paceline/autograd.h>) differentiates through views and copies as it does through operators, which are in
// <paceline/ops.h>.

#include <paceline/device.h>
#include <paceline/dtype.h>
#include <paceline/engine.h>
#include <paceline/shape.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace paceline {

namespace detail {
class Storage;
enum class MemoryKind : std::uint8_t;
}  // namespace detail

class NDArray {
 public:
  // No array: is_none() is true, everything else throws.
  NDArray() = default;

  // Uninitialised, row-major. Throws InvalidArgument (negative size), NotAvailable (no such device), OutOfMemory.
  explicit NDArray(const Shape& shape, DType dtype = DType::kFloat32, Device device = {},
                   Engine& engine = default_engine());

  static NDArray full(const Shape& shape, double value, DType dtype = DType::kFloat32, Device device = {},
                      Engine& engine = default_engine());
  static NDArray zeros(const Shape& shape, DType dtype = DType::kFloat32, Device device = {},
                       Engine& engine = default_engine()) {
    return full(shape, 0, dtype, device, engine);
  }
  // Copies `values` in row-major order; blocks no longer than the copy. Throws InvalidArgument on a wrong count.
  template <class T>
  static NDArray from(const std::vector<T>& values, const Shape& shape, Device device = {},
                      Engine& engine = default_engine());
  // Wraps memory that `owner` keeps alive (a received message, a mapped file). Dense row-major, on the CPU, 8-byte
  // aligned at least. Nobody else may write it while tasks use it.
  static NDArray wrap(void* memory, const Shape& shape, DType dtype, std::shared_ptr<void> owner,
                      Engine& engine = default_engine());

  bool is_none() const { return storage_ == nullptr; }
  const Shape& shape() const { return shape_; }
  const Strides& strides() const { return strides_; }
  std::int64_t size() const { return shape_.size(); }
  std::int64_t size(int axis) const;  // negative axes count from the back
  int ndim() const { return shape_.ndim(); }
  DType dtype() const { return dtype_; }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype_); }
  Device device() const;
  Engine& engine() const;
  bool is_contiguous() const;  // dense and row-major
  bool shares_memory_with(const NDArray& other) const { return storage_ == other.storage_; }
  // The variable of the whole block of memory; all views of it share it.
  const Variable& variable() const;

  // Views: share memory, return at once. Throw InvalidArgument on impossible arguments.
  NDArray view(const Shape& shape) const;  // same elements; one size may be -1; needs a contiguous array
  // Every step-th of [begin, end) along `axis`, from `begin` on; the step is positive.
  NDArray narrow(int axis, std::int64_t begin, std::int64_t end, std::int64_t step = 1) const;
  NDArray at(std::int64_t index) const;                 // drops axis 0
  NDArray permute(const std::vector<int>& axes) const;  // axis i of the result is axes[i]
  NDArray broadcast_to(const Shape& shape) const;       // read-only by convention (stride 0)

  // Asynchronous copies. `clone` and `to` give new row-major arrays (`to` the same device returns *this). A floating
  // value becomes an integer by truncation, limited to the type's range, NaN becomes 0; integers wrap.
  NDArray clone() const;
  NDArray to(Device device) const;
  NDArray cast(DType dtype) const;
  NDArray contiguous() const;  // *this where it is already
  // Overwrites this array with `source` (same shape; broadcasting allowed), converting type and crossing devices. Views
  // that overlap are copied as if through a third array.
  void copy_from(const NDArray& source, int priority = 0) const;
  // Throws InvalidArgument for a number that the type cannot hold: 0.5 and 300 in uint8.
  void fill(double value) const;

  // Blocks until all writes pushed so far are done; throws what they threw.
  void wait() const;
  // Blocks, then copies out in row-major order, converted to T.
  template <class T>
  std::vector<T> to_vector() const;
  // The only element as T; blocks. Throws InvalidArgument unless size() is 1.
  template <class T>
  T item() const;

  // First element of this view. Dereference inside a task that declared the array, or after wait(), on host devices. In
  // builds with assertions and in the checking build, throws InvalidArgument inside a task that did not declare it.
  // Outside a task, the checking build takes data() for a write, which a Tape finds; data_as<const T>() reads.
  void* data() const;
  const void* const_data() const;
  template <class T>
  T* data_as() const {
    if constexpr (std::is_const_v<T>) return static_cast<T*>(const_data());
    return static_cast<T*>(data());
  }

  // Short text for errors: "float32 (2, 3) on cpu".
  std::string describe() const;

 private:
  friend class ArrayBuilder;
  NDArray(std::shared_ptr<detail::Storage> storage, std::int64_t offset, const Shape& shape, const Strides& strides,
          DType dtype)
      : storage_(std::move(storage)), offset_(offset), shape_(shape), strides_(strides), dtype_(dtype) {}
  NDArray seen_as(std::int64_t offset, const Shape& shape, const Strides& strides) const;

  std::shared_ptr<detail::Storage> storage_;
  std::int64_t offset_ = 0;  // in elements
  Shape shape_;
  Strides strides_;
  DType dtype_ = DType::kFloat32;
  bool stopped_ = false;  // see stop_gradient()
};

// Named arrays in file order.
using NamedArrays = std::vector<std::pair<std::string, NDArray>>;

// MXNet's `.params` container, version 2 blocks (3 for scalars and empty arrays). Blocks until written. Writes to a
// temporary file beside `path` and renames, so a full disk leaves the old file whole. Throws IoError, InvalidArgument.
void save_params(const std::string& path, const NamedArrays& arrays);
// Reads versions 0 to 3, dense arrays. Throws IoError, Corrupt (file, offset), NotAvailable for sparse blocks.
NamedArrays load_params(const std::string& path, Engine& engine = default_engine());

// safetensors; `metadata` are string pairs. Same guarantees as save_params. In the file, and after loading, arrays are
// ordered by type (widest first), then by name. The file holds checksums (CRC-32C) of its header and of each array, as
// metadata "crc32c" and "crc32c:NAME"; loading verifies them, and throws Corrupt naming the array. A file without
// checksums loads too.
void save_safetensors(const std::string& path, const NamedArrays& arrays,
                      const std::vector<std::pair<std::string, std::string>>& metadata = {});
NamedArrays load_safetensors(const std::string& path,
                             std::vector<std::pair<std::string, std::string>>* metadata = nullptr,
                             Engine& engine = default_engine());

}  // namespace paceline

#pragma once
// NDArray, and files of named arrays. Operators on arrays are in <paceline/ops.h>.

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

// An asynchronous n-dimensional array. A handle: copies share the memory. What computes returns at once and is ordered
// by the engine; only functions that say so block. A Tape (<paceline/autograd.h>) differentiates through views and
// copies as it does through operators. Different handles, also of the same memory, may be used by different threads.
class NDArray {
 public:
  // No array: is_none() is true, and functions that need memory throw InvalidArgument.
  NDArray() = default;

  // A new row-major array, not initialised. Throws InvalidArgument for a negative size, NotAvailable where there is no
  // such device, OutOfMemory.
  explicit NDArray(const Shape& shape, DType dtype = DType::kFloat32, Device device = {},
                   Engine& engine = default_engine());

  // A new row-major array, filled with `value`, or with zeros. Throws as the constructor does.
  static NDArray full(const Shape& shape, double value, DType dtype = DType::kFloat32, Device device = {},
                      Engine& engine = default_engine());
  static NDArray zeros(const Shape& shape, DType dtype = DType::kFloat32, Device device = {},
                       Engine& engine = default_engine()) {
    return full(shape, 0, dtype, device, engine);
  }
  // A new array with `values` in row-major order, of the type T. Blocks until they are copied. Throws InvalidArgument
  // on a wrong count.
  template <class T>
  static NDArray from(const std::vector<T>& values, const Shape& shape, Device device = {},
                      Engine& engine = default_engine());
  // An array over memory that `owner` keeps alive, such as a mapped file. The memory is dense, row-major, on the CPU
  // and aligned for the type. Nobody else may write it while tasks use it. Throws InvalidArgument on wrong memory.
  static NDArray wrap(void* memory, const Shape& shape, DType dtype, std::shared_ptr<void> owner,
                      Engine& engine = default_engine());

  // What the handle says, without blocking: sizes and distances are in elements, bytes() those of all elements.
  bool is_none() const { return storage_ == nullptr; }
  const Shape& shape() const { return shape_; }
  const Strides& strides() const { return strides_; }
  std::int64_t size() const { return shape_.size(); }
  std::int64_t size(int axis) const;  // of one axis; negative axes count from the back
  int ndim() const { return shape_.ndim(); }
  DType dtype() const { return dtype_; }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype_); }
  Device device() const;
  Engine& engine() const;
  bool is_contiguous() const;  // dense and row-major
  // Do both show the same block of memory, if not the same elements?
  bool shares_memory_with(const NDArray& other) const { return storage_ == other.storage_; }
  // The variable of the whole block of memory; all views of it share it.
  const Variable& variable() const;

  // Views share the memory of this array and return at once. They throw InvalidArgument on impossible arguments. The
  // first is the same elements in another shape: one size may be -1, and this array must be contiguous.
  NDArray view(const Shape& shape) const;
  // A view of every step-th of the elements [begin, end) along `axis`, from `begin` on; the step is positive.
  NDArray narrow(int axis, std::int64_t begin, std::int64_t end, std::int64_t step = 1) const;
  NDArray at(std::int64_t index) const;                 // a view of one element of axis 0, without that axis
  NDArray permute(const std::vector<int>& axes) const;  // a view whose axis i is axis axes[i] of this array
  NDArray broadcast_to(const Shape& shape) const;       // a view that repeats elements (stride 0); do not write into it

  // Copies are asynchronous. The first two give new row-major arrays, but to() gives *this for its own device.
  NDArray clone() const;
  NDArray to(Device device) const;
  // A new array of that type. A floating value becomes an integer by truncation, limited to the type's range; NaN
  // becomes 0. An integer wraps.
  NDArray cast(DType dtype) const;
  NDArray contiguous() const;  // *this where it is contiguous, else a copy that is
  // Overwrites this array with `source`, which may broadcast to its shape, have another type, and lie on another
  // device. Views that overlap are copied as if through a third array. Throws InvalidArgument where the shapes do not
  // fit.
  void copy_from(const NDArray& source, int priority = 0) const;
  // Sets every element. Throws InvalidArgument for a number that the type cannot hold: 0.5 and 300 in uint8.
  void fill(double value) const;

  // Blocks until all writes pushed so far are done. Throws what they threw.
  void wait() const;
  // Blocks as wait() does, then gives the elements in row-major order, converted to T.
  template <class T>
  std::vector<T> to_vector() const;
  // Blocks as wait() does, then gives the only element, converted to T. Throws InvalidArgument unless size() is 1.
  template <class T>
  T item() const;

  // The first element, in the memory of the device. Use it inside a task that declared the array, or on host devices
  // after wait(). Builds with assertions throw InvalidArgument inside a task that did not declare it. Outside a task,
  // the checking build takes data() for a write, which a Tape finds; const_data() and data_as<const T>() only read.
  void* data() const;
  const void* const_data() const;
  // The same as a T, which must be the type of the elements.
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

// Writes MXNet's `.params`, of version 3 where an array is a scalar or empty, else 2, and blocks until it is written.
// A full disk leaves an old file whole. `path` may be s3://BUCKET/KEY, where a file is read also http:// and https://.
// Throws IoError, and InvalidArgument for an array that is none.
void save_params(const std::string& path, const NamedArrays& arrays);
// Reads `.params` with blocks of versions 0 to 3. Sparse arrays become dense ones. Throws IoError, Corrupt with file
// and offset, NotAvailable for types that arrays do not have, OutOfMemory.
NamedArrays load_params(const std::string& path, Engine& engine = default_engine());

// Writes a safetensors file with `metadata`, as save_params() writes. The arrays are ordered by type, the widest first,
// then by name. The file holds CRC-32C checksums of its header and of each array, as metadata "crc32c" and
// "crc32c:NAME".
void save_safetensors(const std::string& path, const NamedArrays& arrays,
                      const std::vector<std::pair<std::string, std::string>>& metadata = {});
// Reads a safetensors file of any program, in the order of the file. Throws IoError, Corrupt, which names the array
// whose checksum is wrong, and NotAvailable for types that arrays do not have. A file without checksums is read, too.
NamedArrays load_safetensors(const std::string& path,
                             std::vector<std::pair<std::string, std::string>>* metadata = nullptr,
                             Engine& engine = default_engine());

}  // namespace paceline

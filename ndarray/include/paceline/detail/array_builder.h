#pragma once
// Builds arrays from their parts, for the modules above. They may lie in other kinds of memory, in memory that the
// caller provides, or be arbitrary views.

#include <paceline/detail/device_runtime.h>
#include <paceline/ndarray.h>

#include <memory>

namespace paceline {

class ArrayBuilder {
 public:
  // Uninitialised, row-major, from the pool of that device and kind of memory. Throws as NDArray's constructor.
  static NDArray allocate(const Shape& shape, DType dtype, Device device, detail::MemoryKind kind,
                          Engine& engine = default_engine());

  // Uninitialised and row-major in host memory, for copies from and to `device`. The memory is pinned if `device` is an
  // accelerator. With a shared heap it is not pinned, because peers read that heap in place.
  static NDArray host_side(const Shape& shape, DType dtype, Device device, Engine& engine = default_engine());

  // A row-major array over memory of `device`, with a variable of its own. `owner` keeps the memory alive. Several
  // arrays can thus lie side by side in one arena, if `owner` is (or holds) the arena.
  static NDArray wrap(void* memory, const Shape& shape, DType dtype, Device device, std::shared_ptr<void> owner,
                      Engine& engine = default_engine());

  // Any view of `array`'s memory; `offset` counts elements of `dtype` from the first byte of the whole block. The
  // caller sees to it that every element lies inside (asserted).
  static NDArray view(const NDArray& array, std::int64_t offset, const Shape& shape, const Strides& strides,
                      DType dtype);

  static const std::shared_ptr<detail::Storage>& storage(const NDArray& array) { return array.storage_; }
  // The address of the first element. Unlike NDArray::data(), it does not check that a task has declared the array. It
  // is for code that fills a new array or needs only the address.
  static void* data(const NDArray& array);
  static std::int64_t offset(const NDArray& array) { return array.offset_; }

  // The same elements as a constant, through which a Recorder follows no gradient. Views of it are constants too.
  static NDArray stopped(NDArray array) {
    array.stopped_ = true;
    return array;
  }
  static bool is_stopped(const NDArray& array) { return array.stopped_; }
};

}  // namespace paceline

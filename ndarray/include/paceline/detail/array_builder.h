#pragma once
// Arrays from their parts, for the modules above: other kinds of memory, foreign memory of any device, arbitrary views.

#include <paceline/detail/device_runtime.h>
#include <paceline/ndarray.h>

#include <memory>

namespace paceline {

class ArrayBuilder {
 public:
  // Uninitialised, row-major, from the pool of that device and kind of memory. Throws as NDArray's constructor.
  static NDArray allocate(const Shape& shape, DType dtype, Device device, detail::MemoryKind kind,
                          Engine& engine = default_engine());

  // The same in host memory for copies from and to `device`: pinned where it is an accelerator, unless there is a
  // shared heap, which peers read in place.
  static NDArray host_side(const Shape& shape, DType dtype, Device device, Engine& engine = default_engine());

  // Dense row-major over memory of `device` that `owner` keeps alive, with a variable of its own. This is how several
  // arrays lie side by side in one arena: `owner` is (or holds) the arena.
  static NDArray wrap(void* memory, const Shape& shape, DType dtype, Device device, std::shared_ptr<void> owner,
                      Engine& engine = default_engine());

  // Any view of `array`'s memory; `offset` counts elements of `dtype` from the first byte of the whole block. The
  // caller sees to it that every element lies inside (asserted).
  static NDArray view(const NDArray& array, std::int64_t offset, const Shape& shape, const Strides& strides,
                      DType dtype);

  static const std::shared_ptr<detail::Storage>& storage(const NDArray& array) { return array.storage_; }
  // As NDArray::data(), also on threads that run some task: for code that fills a new array or only wants the address.
  static void* data(const NDArray& array);
  static std::int64_t offset(const NDArray& array) { return array.offset_; }

  // The same elements, for which a Recorder sees a constant; so are views of it.
  static NDArray stopped(NDArray array) {
    array.stopped_ = true;
    return array;
  }
  static bool is_stopped(const NDArray& array) { return array.stopped_; }
};

}  // namespace paceline

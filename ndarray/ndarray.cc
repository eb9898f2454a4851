#include "capture/listener.h"
#include "copy.h"
#include "guard.h"
#include "storage.h"

#include <paceline/array_recorder.h>
#include <paceline/detail/array_builder.h>
#include <paceline/detail/checking.h>
#include <paceline/detail/declared.h>
#include <paceline/detail/device_report.h>
#include <paceline/detail/shared_heap.h>
#include <paceline/kernel.h>
#include <paceline/ndarray.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>

namespace paceline {
namespace {

// The sizes that are not 0 must have a product too: strides are made from it.
std::size_t checked_bytes(const Shape& shape, DType dtype) {
  std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype));
  bool empty = false;
  for (const std::int64_t size : shape) {
    require(size >= 0, "an array cannot have the shape ", shape, ": sizes must not be negative");
    require(!__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes), "an array of shape ", shape,
            " is larger than any memory");
    empty |= size == 0;
  }
  return empty ? 0 : static_cast<std::size_t>(bytes);
}

void check(const std::shared_ptr<detail::Storage>& storage) {
  require(storage != nullptr, "this NDArray is none: give it memory first");
}

// First and one past the last element that a view can touch.
std::pair<std::int64_t, std::int64_t> extent(std::int64_t offset, const Shape& shape, const Strides& strides) {
  std::int64_t last = offset;
  if (shape.size() == 0) return {offset, offset};
  for (int i = 0; i < shape.ndim(); ++i) last += (shape[i] - 1) * strides[i];
  return {offset, last + 1};
}

// For messages: where arrays are guarded, also which one it is. Only builds that check data call it.
[[maybe_unused]] std::string name(const NDArray& array) {
  std::string guarded;
  if constexpr (detail::kChecksAccess) guarded = detail::name_of_guarded(ArrayBuilder::data(array));
  return guarded.empty() ? array.describe() : guarded;
}

}  // namespace

NDArray::NDArray(const Shape& shape, DType dtype, Device device, Engine& engine)
    : NDArray(ArrayBuilder::allocate(shape, dtype, device, detail::MemoryKind::kNormal, engine)) {}

NDArray NDArray::full(const Shape& shape, double value, DType dtype, Device device, Engine& engine) {
  NDArray array(shape, dtype, device, engine);
  array.fill(value);
  return array;
}

template <class T>
NDArray NDArray::from(const std::vector<T>& values, const Shape& shape, Device device, Engine& engine) {
  const std::size_t bytes = checked_bytes(shape, dtype_of<T>());
  require(bytes == values.size() * sizeof(T), "shape ", shape, " needs ", bytes / sizeof(T), " values, got ",
          values.size());
  const NDArray host(shape, dtype_of<T>(), Device(), engine);
  if constexpr (std::is_same_v<T, bool>) {
    std::copy(values.begin(), values.end(), static_cast<bool*>(ArrayBuilder::data(host)));
  } else if (bytes > 0) {
    std::memcpy(ArrayBuilder::data(host), values.data(), bytes);
  }
  if (detail::CaptureListener* const listener = detail::CaptureListener::current()) listener->filled(host);
  return host.to(device);
}

NDArray NDArray::wrap(void* memory, const Shape& shape, DType dtype, std::shared_ptr<void> owner, Engine& engine) {
  return ArrayBuilder::wrap(memory, shape, dtype, Device(), std::move(owner), engine);
}

std::int64_t NDArray::size(int axis) const { return shape_[normalize_axis(axis, ndim(), "size")]; }

Device NDArray::device() const {
  check(storage_);
  return storage_->device();
}

Engine& NDArray::engine() const {
  check(storage_);
  return storage_->engine();
}

const Variable& NDArray::variable() const {
  check(storage_);
  return storage_->variable();
}

bool NDArray::is_contiguous() const {
  std::int64_t step = 1;
  for (int i = ndim() - 1; i >= 0; --i) {
    if (shape_[i] != 1 && strides_[i] != step) return size() == 0;
    step *= shape_[i];
  }
  return true;
}

NDArray NDArray::seen_as(std::int64_t offset, const Shape& shape, const Strides& strides) const {
  NDArray result(storage_, offset, shape, strides, dtype_);
  result.stopped_ = stopped_;
  return result;
}

NDArray NDArray::view(const Shape& shape) const {
  check(storage_);
  require(is_contiguous(), "[view] needs a contiguous array; call contiguous() first on ", describe(),
          ", whose strides are ", strides_);
  Shape wanted = shape;
  int unknown = -1;
  std::int64_t known = 1;
  for (int i = 0; i < wanted.ndim(); ++i) {
    if (wanted[i] == -1) {
      require(unknown < 0, "[view] only one size of ", shape, " may be -1");
      unknown = i;
    } else {
      require(wanted[i] >= 0 && !__builtin_mul_overflow(known, wanted[i], &known), "[view] ", shape, " is not a shape");
    }
  }
  if (unknown >= 0) {
    require(known > 0 && size() % known == 0, "[view] ", describe(), " cannot be seen as ", shape);
    wanted[unknown] = size() / known;
    known = size();
  }
  require(known == size(), "[view] ", describe(), " has ", size(), " elements, shape ", shape, " has ", known);
  checked_bytes(wanted, dtype_);
  return seen_as(offset_, wanted, row_major(wanted));
}

NDArray NDArray::narrow(int axis, std::int64_t begin, std::int64_t end, std::int64_t step) const {
  check(storage_);
  axis = normalize_axis(axis, ndim(), "narrow");
  require(0 <= begin && begin <= end && end <= shape_[axis], "[narrow] the range [", begin, ", ", end,
          ") is outside axis ", axis, " of ", describe());
  require(step >= 1, "[narrow] the step is ", step, ", expected at least 1");
  NDArray result = *this;
  result.offset_ += begin * strides_[axis];
  result.shape_[axis] = begin == end ? 0 : (end - begin - 1) / step + 1;
  if (result.shape_[axis] > 1) result.strides_[axis] *= step;
  return result;
}

NDArray NDArray::at(std::int64_t index) const {
  check(storage_);
  require(ndim() > 0, "[at] a scalar has no axis to index");
  require(0 <= index && index < shape_[0], "[at] index ", index, " is outside axis 0 of ", describe());
  return seen_as(offset_ + index * strides_[0], Shape(std::span(shape_.begin() + 1, shape_.end())),
                 Strides(std::span(strides_.begin() + 1, strides_.end())));
}

NDArray NDArray::permute(const std::vector<int>& axes) const {
  check(storage_);
  require(axes.size() == static_cast<std::size_t>(ndim()), "[permute] got ", axes.size(), " axes for ", describe());
  NDArray result = *this;
  unsigned seen = 0;
  for (int i = 0; i < ndim(); ++i) {
    const int axis = normalize_axis(axes[static_cast<std::size_t>(i)], ndim(), "permute");
    require(!(seen & (1u << axis)), "[permute] axis ", axis, " is named twice");
    seen |= 1u << axis;
    result.shape_[i] = shape_[axis];
    result.strides_[i] = strides_[axis];
  }
  return result;
}

NDArray NDArray::broadcast_to(const Shape& shape) const {
  check(storage_);
  checked_bytes(shape, dtype_);
  return seen_as(offset_, shape, broadcast_strides(shape_, strides_, shape));
}

NDArray NDArray::clone() const {
  NDArray copy(shape_, dtype_, device(), engine());
  copy.copy_from(*this);
  return copy;
}

NDArray NDArray::to(Device device) const {
  if (device == this->device()) return *this;
  NDArray copy = device == Device() ? ArrayBuilder::host_side(shape_, dtype_, this->device(), engine())
                                    : NDArray(shape_, dtype_, device, engine());
  copy.copy_from(*this);
  return copy;
}

NDArray NDArray::cast(DType dtype) const {
  NDArray copy(shape_, dtype, device(), engine());
  copy.copy_from(*this);
  return copy;
}

NDArray NDArray::contiguous() const { return is_contiguous() ? *this : clone(); }

void NDArray::copy_from(const NDArray& source, int priority) const {
  check(storage_);
  check(source.storage_);
  if (detail::ArrayRecorder* const recorder = detail::array_recorder()) return recorder->copy(source, *this, priority);
  detail::copy(source, *this, priority);
}

void NDArray::wait() const {
  check(storage_);
  if (detail::CaptureListener* const listener = detail::CaptureListener::current())
    listener->refuse("it waits for a value");
  storage_->engine().wait(storage_->variable());
  if (device().kind == DeviceKind::kCuda)
    if (const std::exception_ptr report = detail::take_report(device())) std::rethrow_exception(report);
  storage_->throw_failure();
}

template <class T>
std::vector<T> NDArray::to_vector() const {
  check(storage_);
  const detail::Unrecorded reads_only;
  const NDArray typed = dtype_ == dtype_of<T>() ? *this : cast(dtype_of<T>());
  const NDArray host = typed.contiguous().to(Device());
  host.wait();
  const T* first = host.template data_as<const T>();
  return std::vector<T>(first, first + host.size());
}

template <class T>
T NDArray::item() const {
  require(size() == 1, "[item] needs exactly one element, this is ", describe());
  return to_vector<T>()[0];
}

void* NDArray::data() const {
  const_data();
  if constexpr (detail::kChecksAccess)
    if (!detail::may_work_for_a_task(storage_->variable())) storage_->host_wrote();
  return ArrayBuilder::data(*this);
}

const void* NDArray::const_data() const {
  check(storage_);
  if constexpr (detail::kChecksData)
    if (const char* task = detail::task_that_did_not_declare(storage_->variable()))
      throw InvalidArgument(str("the task '", task, "' touches ", name(*this), ", which it did not declare"));
  return ArrayBuilder::data(*this);
}

std::string NDArray::describe() const {
  return is_none() ? "none" : name_of(dtype_) + " " + shape_.text() + " on " + storage_->device().name();
}

NDArray ArrayBuilder::allocate(const Shape& shape, DType dtype, Device device, detail::MemoryKind kind,
                               Engine& engine) {
  const std::size_t bytes = checked_bytes(shape, dtype);
  NDArray array(std::make_shared<detail::Storage>(engine, device, kind, bytes), 0, shape, row_major(shape), dtype);
  if constexpr (detail::kChecksAccess) detail::describe_guarded(array.storage_->data(), array.describe());
  return array;
}

NDArray ArrayBuilder::host_side(const Shape& shape, DType dtype, Device device, Engine& engine) {
  const bool pinned = !device.is_cpu() && !detail::SharedHeap::enabled();
  return pinned ? allocate(shape, dtype, device, detail::MemoryKind::kPinned, engine)
                : NDArray(shape, dtype, {}, engine);
}

NDArray ArrayBuilder::wrap(void* memory, const Shape& shape, DType dtype, Device device, std::shared_ptr<void> owner,
                           Engine& engine) {
  const std::size_t bytes = checked_bytes(shape, dtype);
  require(memory != nullptr || bytes == 0, "[wrap] the memory is null");
  require(reinterpret_cast<std::uintptr_t>(memory) % size_of(dtype) == 0, "[wrap] the memory is not aligned for ",
          name_of(dtype));
  const NDArray array(std::make_shared<detail::Storage>(engine, device, memory, bytes, std::move(owner)), 0, shape,
                      row_major(shape), dtype);
  if (detail::CaptureListener* const listener = detail::CaptureListener::current()) listener->filled(array);
  return array;
}

void* ArrayBuilder::data(const NDArray& array) {
  return static_cast<char*>(array.storage_->data()) + array.offset_ * static_cast<std::int64_t>(size_of(array.dtype_));
}

NDArray ArrayBuilder::view(const NDArray& array, std::int64_t offset, const Shape& shape, const Strides& strides,
                           DType dtype) {
  [[maybe_unused]] const auto [first, end] = extent(offset, shape, strides);
  assert(first >= 0 &&
         end * static_cast<std::int64_t>(size_of(dtype)) <= static_cast<std::int64_t>(array.storage_->bytes()));
  return {array.storage_, offset, shape, strides, dtype};
}

#define PACELINE_INSTANTIATE(T)                                                            \
  template NDArray NDArray::from<T>(const std::vector<T>&, const Shape&, Device, Engine&); \
  template std::vector<T> NDArray::to_vector<T>() const;                                   \
  template T NDArray::item<T>() const;
PACELINE_INSTANTIATE(float)
PACELINE_INSTANTIATE(double)
PACELINE_INSTANTIATE(float16)
PACELINE_INSTANTIATE(bfloat16)
PACELINE_INSTANTIATE(std::uint8_t)
PACELINE_INSTANTIATE(std::int8_t)
PACELINE_INSTANTIATE(std::int32_t)
PACELINE_INSTANTIATE(std::int64_t)
PACELINE_INSTANTIATE(bool)
#undef PACELINE_INSTANTIATE

}  // namespace paceline

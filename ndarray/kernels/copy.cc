#include "copy.h"

#include "kernels/cuda_kernels.h"

#include <paceline/detail/elementwise.h>

#include <cstring>

namespace paceline::detail {
namespace {

struct Same {
  template <class T>
  T operator()(T value) const {
    return value;
  }
};

bool is_one_run(const Tensor& a, const Tensor& b) {
  return a.shape == b.shape && a.strides == b.strides && is_dense(a.shape, a.strides);
}

template <class T>
void copy_as(const Tensor& from, const Tensor& to) {
  elementwise<T, T>(Same(), to, from);
}

// Bits only matter, so one loop per width serves all types.
void copy_bits(const Tensor& from, const Tensor& to) {
  const std::int64_t width = static_cast<std::int64_t>(size_of(to.dtype));
  if (is_one_run(from, to)) {
    parallel_ranges(to.size(), kElementsPerThread, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(to.as<char>() + begin * width, from.as<char>() + begin * width,
                  static_cast<std::size_t>((end - begin) * width));
    });
    return;
  }
  switch (width) {
    case 1:
      return copy_as<std::uint8_t>(from, to);
    case 2:
      return copy_as<std::uint16_t>(from, to);
    case 4:
      return copy_as<std::uint32_t>(from, to);
    default:
      return copy_as<std::uint64_t>(from, to);
  }
}

void copy_cpu(const KernelContext&, std::span<const Tensor> inputs, std::span<const Tensor> outputs, const void*) {
  const Tensor& from = inputs[0];
  const Tensor& to = outputs[0];
  if (to.size() == 0) return;
  if (from.dtype == to.dtype) return copy_bits(from, to);
  visit_dtype(from.dtype, [&](auto from_tag) {
    using From = typename decltype(from_tag)::type;
    visit_dtype(to.dtype, [&](auto to_tag) {
      using To = typename decltype(to_tag)::type;
      if constexpr (!std::is_same_v<From, To>) elementwise<To, From>(Same(), to, from);
    });
  });
}

}  // namespace

Kernel copy_kernel() { return {"copy", copy_cpu, copy_cuda()}; }

}  // namespace paceline::detail

#include "copy.h"
#include "kernels/attributes.h"
#include "kernels/cuda_kernels.h"
#include "kernels/functors.h"
#include "launch.h"

#include <paceline/detail/elementwise.h>

#include <vector>

namespace paceline {
namespace detail {
namespace {

void add_cpu(const KernelContext&, std::span<const Tensor> inputs, std::span<const Tensor> outputs, const void*) {
  visit_dtype(outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    elementwise<T, T, T>(Add(), outputs[0], inputs[0], inputs[1]);
  });
}

void axpy_cpu(const KernelContext&, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
              const void* attributes) {
  const double alpha = static_cast<const Scalar*>(attributes)->value;
  visit_dtype(outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    elementwise<T, T, T>(Axpy<real_t<T>>{static_cast<real_t<T>>(alpha)}, outputs[0], inputs[0], outputs[0]);
  });
}

void scale_cpu(const KernelContext&, std::span<const Tensor>, std::span<const Tensor> outputs, const void* attributes) {
  const double alpha = static_cast<const Scalar*>(attributes)->value;
  visit_dtype(outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    elementwise<T, T>(Scale<real_t<T>>{static_cast<real_t<T>>(alpha)}, outputs[0], outputs[0]);
  });
}

// All arrays are one run of memory of the same layout. A tile of the sum stays in the cache while the parts pass by.
void sum_of_cpu(const KernelContext&, std::span<const Tensor> parts, std::span<const Tensor> outputs, const void*) {
  constexpr std::int64_t kTile = 1024;
  visit_dtype(outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Sum = accumulator_t<T>;
    T* const out = outputs[0].as<T>();
    parallel_ranges(outputs[0].size(), kElementsPerThread, [&](std::int64_t begin, std::int64_t end) {
      Sum sum[kTile];
      for (; begin < end; begin += kTile) {
        const std::int64_t count = std::min(kTile, end - begin);
        const T* first = parts[0].as<const T>() + begin;
        for (std::int64_t i = 0; i < count; ++i) sum[i] = static_cast<Sum>(first[i]);
        for (const Tensor& part : parts.subspan(1)) {
          const T* next = part.as<const T>() + begin;
          for (std::int64_t i = 0; i < count; ++i) sum[i] = wrapping_sum(sum[i], static_cast<Sum>(next[i]));
        }
        for (std::int64_t i = 0; i < count; ++i) out[begin + i] = convert<T>(sum[i]);
      }
    });
  });
}

void check_same(const char* who, const NDArray& a, const NDArray& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype())
    throw InvalidArgument(str("[", who, "] needs equal shapes and types, got ", a.describe(), " and ", b.describe()));
}

// An input, or its copy where writing `out` would disturb it.
class Undisturbed {
 public:
  Undisturbed(const NDArray& input, const NDArray& out)
      : copy_(disturbs(out, input) ? input.clone() : NDArray()), array_(copy_.is_none() ? &input : &copy_) {}
  Undisturbed(const Undisturbed&) = delete;
  Undisturbed& operator=(const Undisturbed&) = delete;
  operator const NDArray*() const { return array_; }

 private:
  const NDArray copy_;
  const NDArray* const array_;
};

}  // namespace
}  // namespace detail

namespace kernels {

void add(const NDArray& a, const NDArray& b, const NDArray& out, int priority) {
  detail::check_same("add", a, out);
  detail::check_same("add", b, out);
  const detail::Undisturbed first(a, out), second(b, out);
  const NDArray* const inputs[] = {first, second};
  detail::launch_small({"add", detail::add_cpu, detail::add_cuda(), true}, inputs, out, {}, priority);
}

void axpy(double alpha, const NDArray& x, const NDArray& y, int priority) {
  detail::check_same("axpy", x, y);
  const detail::Undisturbed addend(x, y);
  const NDArray* const inputs[] = {addend, &y};
  detail::launch_small({"axpy", detail::axpy_cpu, detail::axpy_cuda(), true}, inputs, y,
                       detail::SmallAttributes(detail::Scalar{alpha}), priority);
}

void scale(double alpha, const NDArray& x, int priority) {
  const NDArray* const inputs[] = {&x};
  detail::launch_small({"scale", detail::scale_cpu, detail::scale_cuda(), true}, inputs, x,
                       detail::SmallAttributes(detail::Scalar{alpha}), priority);
}

void sum_of(std::span<const NDArray> parts, const NDArray& out, int priority) {
  require(!parts.empty(), "[sum_of] needs at least one array");
  bool one_layout = is_dense(out.shape(), out.strides());
  for (const NDArray& part : parts) {
    detail::check_same("sum_of", part, out);
    one_layout = one_layout && part.strides() == out.strides() && !detail::disturbs(out, part);
  }
  const Kernel kernel{"sum_of", detail::sum_of_cpu, detail::sum_of_cuda()};
  if (one_layout) {
    const NDArray outputs[] = {out};
    return launch(kernel, parts, outputs, nullptr, {.priority = priority});
  }
  const NDArray sum(out.shape(), out.dtype(), out.device(), out.engine());
  const NDArray outputs[] = {sum};
  std::vector<NDArray> dense;
  for (const NDArray& part : parts) dense.push_back(part.strides() == sum.strides() ? part : part.clone());
  launch(kernel, dense, outputs, nullptr, {.priority = priority});
  out.copy_from(sum, priority);
}

}  // namespace kernels
}  // namespace paceline

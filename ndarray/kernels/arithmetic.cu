#include "kernels/attributes.h"
#include "kernels/cuda_kernels.h"
#include "kernels/functors.h"

#include <paceline/detail/elementwise.cuh>

namespace paceline::detail {
namespace {

void add(const KernelContext& context, std::span<const Tensor> inputs, std::span<const Tensor> outputs, const void*) {
  visit_dtype(outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    elementwise_cuda<T, T, T>(context, Add(), outputs[0], inputs[0], inputs[1]);
  });
}

void axpy(const KernelContext& context, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
          const void* attributes) {
  const double alpha = static_cast<const Scalar*>(attributes)->value;
  visit_dtype(outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Real = real_t<T>;
    elementwise_cuda<T, T, T>(context, Axpy<Real>{static_cast<Real>(alpha)}, outputs[0], inputs[0], outputs[0]);
  });
}

void scale(const KernelContext& context, std::span<const Tensor>, std::span<const Tensor> outputs,
           const void* attributes) {
  const double alpha = static_cast<const Scalar*>(attributes)->value;
  visit_dtype(outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Real = real_t<T>;
    elementwise_cuda<T, T>(context, Scale<Real>{static_cast<Real>(alpha)}, outputs[0], outputs[0]);
  });
}

constexpr int kMostParts = 64;  // for one kernel; its parameters hold the addresses

template <class T>
struct Parts {
  const T* part[kMostParts];
  int count;
};

template <int kWidth, class T>
__global__ void sum_parts(const Parts<T> parts, std::int64_t total, T* out) {
  for (std::int64_t i = first_index() * kWidth; i < total; i += index_step() * kWidth) {
    const Vector<T, kWidth> first = read_vector<kWidth>(parts.part[0] + i);
    accumulator_t<T> sums[kWidth];
    for (int k = 0; k < kWidth; ++k) sums[k] = load(first.at[k]);
#pragma unroll 4
    for (int p = 1; p < parts.count; ++p) {
      const Vector<T, kWidth> next = read_vector<kWidth>(parts.part[p] + i);
      for (int k = 0; k < kWidth; ++k) sums[k] = wrapping_sum(sums[k], load(next.at[k]));
    }
    Vector<T, kWidth> result;
    for (int k = 0; k < kWidth; ++k) result.at[k] = stored<T>(sums[k]);
    write_vector(out + i, result);
  }
}

void sum_of(const KernelContext& context, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
            const void*) {
  const Tensor& out = outputs[0];
  if (out.size() == 0) return;
  const cudaStream_t stream = stream_of(context);
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (std::size_t next = 0; next < inputs.size();) {
      Parts<T> parts{};
      if (next > 0) parts.part[parts.count++] = out.as<const T>();
      while (parts.count < kMostParts && next < inputs.size()) parts.part[parts.count++] = inputs[next++].as<const T>();
      constexpr int kWidth = kVectorWidth<T>;
      bool wide = out.size() % kWidth == 0 && is_aligned<kWidth>(out.as<T>());
      for (int p = 0; p < parts.count; ++p) wide = wide && is_aligned<kWidth>(parts.part[p]);
      if (wide)
        sum_parts<kWidth><<<grid_for(out.size() / kWidth), kThreads, 0, stream>>>(parts, out.size(), out.as<T>());
      else
        sum_parts<1><<<grid_for(out.size()), kThreads, 0, stream>>>(parts, out.size(), out.as<T>());
    }
  });
  check_cuda(cudaGetLastError(), "starting a sum");
}

}  // namespace

KernelFunction add_cuda() { return add; }
KernelFunction axpy_cuda() { return axpy; }
KernelFunction scale_cuda() { return scale; }
KernelFunction sum_of_cuda() { return sum_of; }

}  // namespace paceline::detail

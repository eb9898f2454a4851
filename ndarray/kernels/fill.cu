#include "kernels/attributes.h"
#include "kernels/cuda_kernels.h"

#include <paceline/detail/elementwise.cuh>

namespace paceline::detail {
namespace {

template <class T>
struct Constant {
  T value;
  __device__ T operator()() const { return value; }
};

void fill(const KernelContext& context, std::span<const Tensor>, std::span<const Tensor> outputs,
          const void* attributes) {
  const double value = static_cast<const Scalar*>(attributes)->value;
  visit_dtype(outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    elementwise_cuda<T>(context, Constant<T>{convert<T>(value)}, outputs[0]);
  });
}

}  // namespace

KernelFunction fill_cuda() { return fill; }

}  // namespace paceline::detail

#include "flip/mirror.h"

#include <paceline/detail/elementwise.cuh>

namespace paceline {

namespace {

void flip_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
               const void* attributes) {
  const Tensor x = mirrored(in[0], attributes);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    detail::elementwise_cuda<T, T>(context, Same(), out[0], x);
  });
}

}  // namespace

OpDef flip_on_cuda(OpDef op) { return std::move(op).cuda(flip_cuda); }

}  // namespace paceline

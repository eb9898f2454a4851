#include "prelu/functors.h"

#include <paceline/op.h>
#include <paceline/detail/elementwise.cuh>

namespace paceline {

namespace {

void prelu_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out, const void*) {
  visit_floating(in[0].dtype, "prelu", [&](auto tag) {
    using T = typename decltype(tag)::type;
    detail::elementwise_cuda<T, T, T>(context, functors::Prelu(), out[0], in[0], in[1]);
  });
}

}  // namespace

OpDef prelu_on_cuda(OpDef op) { return std::move(op).cuda(prelu_cuda); }

}  // namespace paceline

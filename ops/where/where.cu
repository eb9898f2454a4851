#include "where/functors.h"

#include <paceline/op.h>
#include <paceline/detail/elementwise.cuh>

namespace paceline {

namespace {

void where_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out, const void*) {
  visit_dtype(in[1].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    detail::elementwise_cuda<T, bool, T, T>(context, functors::Choose(), out[0], in[0], in[1], in[2]);
  });
}

}  // namespace

OpDef where_on_cuda(OpDef op) { return std::move(op).cuda(where_cuda); }

}  // namespace paceline

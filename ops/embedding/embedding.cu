#include "embedding/embedding.h"

#include "shared/take_rows.cuh"

namespace paceline {

namespace {

void embedding_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                    const void*) {
  const Tensor& weight = in[1];
  if (out[0].size() == 0) return;
  const std::int64_t rows = weight.shape[0];
  const std::int64_t width = rows > 0 ? weight.size() / rows : out[0].size() / in[0].size();
  const detail::DevicePositions ids(context, in[0], rows, "[embedding] id {} at position {} is outside [0, {})");
  take_rows(context, 1, width * static_cast<std::int64_t>(size_of(weight.dtype)), in[0].size(), ids, weight.data,
            out[0].data);
}

}  // namespace

OpDef embedding_on_cuda(OpDef op) { return std::move(op).cuda(embedding_cuda); }

}  // namespace paceline

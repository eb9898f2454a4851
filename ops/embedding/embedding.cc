#include "embedding/embedding.h"

#include "shared/wide.h"

#include <paceline/detail/elementwise.h>

#include <algorithm>
#include <cstring>

namespace paceline {

const OpDef& embedding_operator();

namespace {

// Each row is copied as bytes, whatever its type.
void embedding_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void*) {
  const Tensor& ids = in[0];
  const Tensor& weight = in[1];
  const std::int64_t rows = weight.shape[0];
  const auto id = [&](std::int64_t i) {
    return ids.dtype == DType::kInt32 ? ids.as<const std::int32_t>()[i] : ids.as<const std::int64_t>()[i];
  };
  for (std::int64_t i = 0; i < ids.size(); ++i)
    require(id(i) >= 0 && id(i) < rows, "[embedding] id ", id(i), " at position ", i, " is outside [0, ", rows, ")");
  if (out[0].size() == 0) return;
  const auto width = static_cast<std::int64_t>(size_of(weight.dtype)) * (weight.size() / rows);
  detail::parallel_ranges(ids.size(), std::max<std::int64_t>(1, 65536 / width),
                          [&](std::int64_t begin, std::int64_t end) {
                            for (std::int64_t i = begin; i < end; ++i)
                              std::memcpy(out[0].as<char>() + i * width, weight.as<const char>() + id(i) * width,
                                          static_cast<std::size_t>(width));
                          });
}

}  // namespace

OpDef embedding_op() {
  return OpDef("embedding")
      .attributes<EmbeddingAttributes>()
      .input("ids")
      .input("weight")
      .saves_inputs({0})
      .infer([](const std::vector<NDArray>& inputs, const void*) {
        const NDArray& ids = inputs[0];
        const NDArray& weight = inputs[1];
        require(ids.dtype() == DType::kInt32 || ids.dtype() == DType::kInt64, "[embedding] ids is ",
                name_of(ids.dtype()), ", expected int32 or int64");
        require(weight.ndim() >= 1, "[embedding] weight has 0 dimensions, expected at least 1");
        Shape shape = ids.shape();
        for (int i = 1; i < weight.ndim(); ++i) shape.push_back(weight.size(i));
        return std::vector<ArraySpec>{{shape, weight.dtype()}};
      })
      .cpu(embedding_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        const ArraySpec& weight = call.input_specs[1];
        const NDArray ids = call.inputs[0].cast(DType::kInt64).contiguous();
        Shape rows = weight.shape;
        rows[0] = ids.size();
        RowSparse sparse{ids.view({ids.size()}), gradients[0].contiguous().view(rows), weight.shape};
        if (call.attributes<EmbeddingAttributes>().sparse_gradient) return {Gradient(), std::move(sparse)};
        return {Gradient(), summed_rows(sparse)};
      })
      .text([](const void* attributes) {
        const bool sparse = static_cast<const EmbeddingAttributes*>(attributes)->sparse_gradient;
        return AttributeText{{"sparse_gradient", sparse ? "1" : "0"}};
      });
}

NDArray embedding(const NDArray& ids, const NDArray& weight, bool sparse_gradient) {
  return invoke(embedding_operator(), {ids, weight}, EmbeddingAttributes{sparse_gradient});
}

}  // namespace paceline

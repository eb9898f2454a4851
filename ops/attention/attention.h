#pragma once
// Scaled dot-product attention.

#include <paceline/op.h>

#include <optional>

namespace paceline {

// The arguments of attention().
struct AttentionAttributes {
  bool causal = false;                         // query i sees keys 0 to i only
  std::optional<double> scale = std::nullopt;  // none: 1 / sqrt(e)
};

// softmax(scale query key^T + mask) value over the last two axes: query (..., l, e), key (..., s, e) and value (..., s,
// v) give (..., l, v). Leading axes broadcast. `mask` broadcasts to (..., l, s). It is bool, true where a query may see
// a key, or has the type of query and is added. A query that may see no key gives zeros. Floating types; float16 and
// bfloat16 are computed in float32. On CUDA devices, tensor cores multiply halves of up to 128 columns: their sums are
// float32, but the shares of the softmax are rounded to the half type first. The result orders its axes in memory as
// query does. Each gradient orders them as its input does. So heads that are views of one array need no copy. Throws
// InvalidArgument "[attention] ...".
NDArray attention(const NDArray& query, const NDArray& key, const NDArray& value, const NDArray& mask = {},
                  const AttentionAttributes& attributes = {});

}  // namespace paceline

#pragma once
// Scaled dot-product attention: softmax(scale query key^T + mask) value over the last two axes, query (..., l, e), key
// (..., s, e), value (..., s, v), result (..., l, v); leading axes broadcast. Floating types; float16 and bfloat16 are
// computed in float32. A query that may see no key gives zeros. The result lies in memory as query does, and gradients
// as what they are of, so heads that are views of one array need no copy. Throws InvalidArgument "[attention] ...".

#include <paceline/op.h>

#include <optional>

namespace paceline {

struct AttentionAttributes {
  bool causal = false;                         // query i sees keys 0 to i only
  std::optional<double> scale = std::nullopt;  // none: 1 / sqrt(e)
};

// `mask` broadcasts to (..., l, s): bool, true where a query may see a key, or of the type of query, added.
NDArray attention(const NDArray& query, const NDArray& key, const NDArray& value, const NDArray& mask = {},
                  const AttentionAttributes& attributes = {});

}  // namespace paceline

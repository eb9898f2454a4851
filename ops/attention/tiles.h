#pragma once
// Attention without the matrix of scores: it is made tile by tile, forward with a running softmax, backward again from
// the saved sums (Dao, Fu, Ermon, Rudra & Ré, "FlashAttention", 2022). Memory grows with the rows, not their product.

#include <paceline/ndarray.h>

namespace paceline {

// Operands, or their gradients. All of one type, float32, float64 or what
// runs_on_tensor_cores() (mask: or bool), with the same leading axes; mask:
// none, or of the scores' shape. Views of any strides, but for neighbouring elements along the last axis of query, key
// and value.
struct AttentionArrays {
  NDArray query, key, value, mask;
};

// Elements along the last axis are neighbours, and the rows do not overlap.
bool has_plain_rows(const NDArray& x);

// Writes out (..., l, v) and sums (..., l, 2): each row's largest score, and the logarithm of its sum of
// exp(score - largest). Their sum would lose the second beside a large first, as masks of -1e9 make it.
void attend(const AttentionArrays& arrays, bool causal, double scale, const NDArray& out, const NDArray& sums);

// From what attend() gave and the gradient of out (with plain rows) to the gradients of query, key, value and, where
// there is one, the scores (written where the mask's is asked for), which may be views as the operands. The same bits
// for any number of threads, as in attend().
void attend_backward(const AttentionArrays& arrays, bool causal, double scale, const NDArray& out, const NDArray& sums,
                     const NDArray& gradient, const AttentionArrays& gradients);

}  // namespace paceline

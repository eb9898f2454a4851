#include <paceline/loss.h>
#include <paceline/ops.h>

namespace paceline::nn {

NDArray softmax_ce(const NDArray& scores, const NDArray& label) {
  if (scores.ndim() <= 2) return softmax_cross_entropy(scores, label);
  return softmax_cross_entropy(reshape(scores, {-1, scores.size(-1)}), reshape(label, {-1}));
}

NDArray l2(const NDArray& output, const NDArray& label) { return mean(square(output - label)) * 0.5; }

}  // namespace paceline::nn

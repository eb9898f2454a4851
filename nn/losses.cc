#include <paceline/loss.h>
#include <paceline/ops.h>

namespace paceline::nn {

NDArray softmax_ce(const NDArray& scores, const NDArray& label) {
  if (scores.ndim() <= 2) return softmax_cross_entropy(scores, label);
  return softmax_cross_entropy(reshape(scores, {-1, scores.size(-1)}), reshape(label, {-1}));
}

namespace {

// Sizes without those of 1.
std::vector<std::int64_t> long_axes(const Shape& shape) {
  std::vector<std::int64_t> sizes(shape.begin(), shape.end());
  std::erase(sizes, 1);
  return sizes;
}

}  // namespace

NDArray l2(const NDArray& output, const NDArray& label) {
  require(long_axes(output.shape()) == long_axes(label.shape()), "[l2] the output is ", output.describe(),
          " and the label ", label.describe(), ", expected one shape, but for axes of size 1");
  const NDArray target = output.shape() == label.shape() ? label : reshape(label, output.shape());
  return mean(square(output - target)) * 0.5;
}

}  // namespace paceline::nn

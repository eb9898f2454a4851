#include <paceline/loss.h>
#include <paceline/ops.h>

namespace paceline::nn {

namespace {

NDArray softmax_loss(const NDArray& scores, const NDArray& label, const CrossEntropyOptions& options) {
  const bool shares = is_floating(label.dtype()) && label.shape() == scores.shape();
  const auto by_row = [&](const NDArray& x) { return x.ndim() <= 2 ? x : reshape(x, {-1, x.size(-1)}); };
  const NDArray rows = by_row(scores);
  if (shares) {
    require(options.label_smoothing == 0 && !options.ignored_label,
            "[cross_entropy] the labels are the classes' shares, ", label.describe(),
            ", which are neither smoothed nor ignored");
    return soft_cross_entropy(rows, by_row(label), Reduction::kMean, options.class_weights);
  }
  const NDArray labels = scores.ndim() <= 2 ? label : reshape(label, {-1});
  const SoftmaxCrossEntropyAttributes attributes{Reduction::kMean, options.label_smoothing, options.ignored_label};
  if (options.class_weights.is_none()) return softmax_cross_entropy(rows, labels, attributes);
  return softmax_cross_entropy(rows, labels, attributes, options.class_weights);
}

}  // namespace

NDArray softmax_ce(const NDArray& scores, const NDArray& label) { return softmax_loss(scores, label, {}); }

Loss cross_entropy(const CrossEntropyOptions& options) {
  return [options](const NDArray& scores, const NDArray& label) { return softmax_loss(scores, label, options); };
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

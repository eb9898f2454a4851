#include <paceline/metric.h>
#include <paceline/ops.h>

#include <algorithm>
#include <cmath>

namespace paceline::nn {

void Accuracy::update(const NDArray& scores, const NDArray& label) {
  require(scores.ndim() == 2 && label.shape() == Shape{scores.size(0)}, "[Accuracy] scores are ", scores.describe(),
          " and labels ", label.describe(), ", expected (n, classes) and (n)");
  const NDArray wanted = cast(label, DType::kFloat64);
  const NDArray right = equal(cast(argmax(scores), DType::kFloat64), wanted);
  const NDArray counted = ignored_label_ ? not_equal(wanted, static_cast<double>(*ignored_label_))
                                         : NDArray::full(wanted.shape(), 1, DType::kBool, wanted.device());
  counts_.emplace_back(sum(cast(right, DType::kFloat64) * cast(counted, DType::kFloat64)),
                       sum(cast(counted, DType::kFloat64)));
  // Fetching with a lag keeps the device busy and the queue short.
  if (counts_.size() > 4) fetch_oldest();
}

void Accuracy::fetch_oldest() {
  right_ += static_cast<std::int64_t>(counts_.front().first.item<double>());
  examples_ += static_cast<std::int64_t>(counts_.front().second.item<double>());
  counts_.pop_front();
}

std::int64_t Accuracy::examples() {
  while (!counts_.empty()) fetch_oldest();
  return examples_;
}

double Accuracy::value() { return examples() == 0 ? 0 : static_cast<double>(right_) / static_cast<double>(examples_); }

double roc_auc(const NDArray& scores, const NDArray& label) {
  require(scores.size() == label.size(), "[roc_auc] there are ", scores.size(), " scores and ", label.size(),
          " labels");
  const std::vector<double> values = scores.cast(DType::kFloat64).to_vector<double>();
  const std::vector<double> labels = label.cast(DType::kFloat64).to_vector<double>();
  const auto unknown = std::find_if(values.begin(), values.end(), [](double value) { return std::isnan(value); });
  require(unknown == values.end(), "[roc_auc] the score of example ", unknown - values.begin(), " is NaN");
  std::vector<std::size_t> order(values.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  double below = 0, pairs = 0, positives = 0;  // negatives of lower scores, pairs in order
  for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    double positive = 0, negative = 0;  // of this score
    for (; end < order.size() && !(values[order[begin]] < values[order[end]]); ++end)
      (labels[order[end]] > 0.5 ? positive : negative) += 1;
    pairs += positive * (below + negative / 2);
    below += negative;
    positives += positive;
  }
  require(positives > 0 && below > 0, "[roc_auc] all labels are ", positives > 0 ? "positive" : "negative",
          ", expected both kinds");
  return pairs / (positives * below);
}

}  // namespace paceline::nn

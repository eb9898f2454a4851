#include "evaluation.h"

#include <paceline/ops.h>
#include <paceline/recorder.h>

#include <bit>
#include <sstream>

namespace paceline::nn {
BatchResult BatchResult::of(const NDArray& scores, const Batch& batch, const Loss& loss) {
  BatchResult result;
  result.examples = batch.examples;
  const NDArray label = batch.label.to(scores.device());
  const std::int64_t classes = scores.size(-1);
  const bool are_classes = classes > 1 && label.size() * classes == scores.size();
  require(are_classes || loss,
          "accuracy needs a class number for each row of scores of two classes or more, but scores ", scores.shape(),
          " have labels ", label.shape(), "; to evaluate such a network, give a loss");
  if (are_classes) {
    const std::vector<std::int64_t> best = argmax(scores, -1).to_vector<std::int64_t>();
    const std::vector<double> wanted = label.cast(DType::kFloat64).to_vector<double>();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      // With a loss, labels may be other numbers.
      require(loss || !(wanted[i] >= static_cast<double>(classes)), "the label ", wanted[i], " is none of the ",
              classes, " classes of the scores, 0 to ", classes - 1,
              "; only labels below 0 are left out of the accuracy");
      result.labels += wanted[i] >= 0 && wanted[i] < static_cast<double>(classes);
      result.right += wanted[i] == static_cast<double>(best[i]);
    }
  }
  if (loss) result.loss = loss(scores, label).item<double>() * static_cast<double>(batch.examples);
  return result;
}

std::string BatchResult::text() const {
  return str(examples, ' ', labels, ' ', right, ' ', std::bit_cast<std::uint64_t>(loss));
}

BatchResult BatchResult::parse(const std::string& text) {
  std::istringstream words(text);
  BatchResult result;
  std::uint64_t loss = 0;
  if (!(words >> result.examples >> result.labels >> result.right >> loss))
    throw Corrupt("'" + text + "' is no result of a batch");
  result.loss = std::bit_cast<double>(loss);
  return result;
}

Evaluation sum_of(const std::vector<BatchResult>& results) {
  Evaluation all;
  std::int64_t labels = 0, right = 0;
  for (const BatchResult& result : results) {
    all.examples += result.examples;
    labels += result.labels;
    right += result.right;
    all.loss += result.loss;
  }
  if (labels > 0) all.accuracy = static_cast<double>(right) / static_cast<double>(labels);
  if (all.examples > 0) all.loss /= static_cast<double>(all.examples);
  return all;
}

void require_counted(const Batch& batch) {
  require(batch.examples > 0 || batch.data.is_none() || batch.data.size() == 0, "the batch says that it has ",
          batch.examples, " examples, but its data is ", batch.data.is_none() ? "none" : batch.data.describe(),
          "; set Batch::examples");
}

Evaluation evaluate(const Module& net, DataIterator& data, const Loss& loss, Device device) {
  const RecordingScope no_recording(nullptr);
  std::vector<BatchResult> results;
  for (Batch& batch : EpochRange(data, 0, {})) {
    require_counted(batch);
    if (batch.examples == 0) continue;
    results.push_back(BatchResult::of(net(batch.data.to(device), {.training = false, .device = device}), batch, loss));
  }
  return sum_of(results);
}

double evaluate(const Module& net, DataIterator& data, Device device) {
  return evaluate(net, data, nullptr, device).accuracy;
}

}  // namespace paceline::nn

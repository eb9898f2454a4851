#include <paceline/metric.h>
#include <paceline/ops.h>
#include <paceline/recorder.h>

namespace paceline::nn {

void Accuracy::update(const NDArray& scores, const NDArray& label) {
  correct_.push_back(top1_count(scores, label));
  examples_ += scores.size(0);
  // Fetching with a lag keeps the device busy and the queue short.
  if (correct_.size() > 4) {
    sum_ += correct_.front().item<std::int64_t>();
    correct_.erase(correct_.begin());
  }
}

double Accuracy::value() {
  for (const NDArray& count : correct_) sum_ += count.item<std::int64_t>();
  correct_.clear();
  return examples_ == 0 ? 0 : static_cast<double>(sum_) / static_cast<double>(examples_);
}

double evaluate(const Module& net, DataIterator& data, Device device) {
  const RecordingScope no_recording(nullptr);
  Accuracy accuracy;
  for (Batch& batch : EpochRange(data, 0, {}))
    accuracy.update(net(batch.data.to(device), {.training = false, .device = device}), batch.label.to(device));
  return accuracy.value();
}

}  // namespace paceline::nn

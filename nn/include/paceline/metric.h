#pragma once
// Metrics over many batches. update() is asynchronous: it keeps arrays; value() blocks.

#include <paceline/data_iterator.h>
#include <paceline/loss.h>
#include <paceline/module.h>

#include <deque>
#include <optional>
#include <utility>

namespace paceline::nn {

// Fraction of examples whose largest score is at the label. A label that is no class, such as -1, 1.7 or NaN, counts as
// wrong; examples with the ignored label do not count.
class Accuracy {
 public:
  explicit Accuracy(std::optional<std::int64_t> ignored_label = std::nullopt) : ignored_label_(ignored_label) {}
  // scores (n, classes), labels (n) of any type.
  void update(const NDArray& scores, const NDArray& label);
  double value();           // blocks
  std::int64_t examples();  // blocks

 private:
  void fetch_oldest();

  std::optional<std::int64_t> ignored_label_;
  std::deque<std::pair<NDArray, NDArray>> counts_;  // right and counted examples of batches, not yet fetched
  std::int64_t right_ = 0, examples_ = 0;
};

// Area under the ROC curve of scores and labels (above 0.5: positive): how often a positive example has a higher score
// than a negative one, equal scores counting half. Blocks. Throws InvalidArgument where one of the two is missing
// or a score is NaN.
double roc_auc(const NDArray& scores, const NDArray& label);

struct Evaluation {
  std::int64_t examples = 0;
  // Of the labels in [0, classes), the fraction at the largest score; others, such as -1, are not counted. 0 where
  // there are none, and where the labels are no class numbers: one class, or not one label for each row of the scores.
  double accuracy = 0;
  double loss = 0;  // the mean over the examples
};
// Runs the network over one epoch of `data`, not training; the loss is a mean over the examples of a batch. With none
// (nullptr), throws InvalidArgument where the labels are no class numbers.
Evaluation evaluate(const Module& net, DataIterator& data, const Loss& loss, Device device = {});
// The accuracy, without a loss.
double evaluate(const Module& net, DataIterator& data, Device device = {});

}  // namespace paceline::nn

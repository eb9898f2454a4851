#pragma once
// Metrics over many batches.

#include <paceline/data_iterator.h>
#include <paceline/loss.h>
#include <paceline/module.h>

#include <deque>
#include <optional>
#include <utility>

namespace paceline::nn {

// The fraction of examples whose largest score is at the label. A label that is no class, such as -1, 1.7 or NaN,
// counts as wrong. Not thread-safe.
class Accuracy {
 public:
  // Examples with `ignored_label` do not count.
  explicit Accuracy(std::optional<std::int64_t> ignored_label = std::nullopt) : ignored_label_(ignored_label) {}
  // Counts a batch: scores (n, classes), labels (n) of any type. Returns at once; keeps the arrays until they are
  // computed.
  void update(const NDArray& scores, const NDArray& label);
  double value();           // the fraction so far; blocks until it is computed
  std::int64_t examples();  // how many count so far; blocks likewise

 private:
  void fetch_oldest();

  std::optional<std::int64_t> ignored_label_;
  std::deque<std::pair<NDArray, NDArray>> counts_;  // right and counted examples of batches, not yet fetched
  std::int64_t right_ = 0, examples_ = 0;
};

// The area under the ROC curve: how often a positive example, whose label is above 0.5, has a higher score than a
// negative one. Equal scores count half. Blocks. Throws InvalidArgument where there is no positive or no negative
// example, or a score is NaN.
double roc_auc(const NDArray& scores, const NDArray& label);

// What evaluate() found.
struct Evaluation {
  std::int64_t examples = 0;  // how many there were
  // Of the labels in [0, classes), the fraction at the largest score; other labels, such as -1, do not count. 0 where
  // there are none, and where labels are no class numbers: with one class, or without one label for each row of the
  // scores.
  double accuracy = 0;
  double loss = 0;  // the mean over the examples
};
// Runs the network over one epoch of `data`, without training. The loss must be a mean over the examples of a batch.
// Without a loss (nullptr), InvalidArgument is thrown where the labels are no class numbers, and for a label that is
// `classes` or more. Blocks.
Evaluation evaluate(const Module& net, DataIterator& data, const Loss& loss, Device device = {});
// The accuracy alone, without a loss.
double evaluate(const Module& net, DataIterator& data, Device device = {});

}  // namespace paceline::nn

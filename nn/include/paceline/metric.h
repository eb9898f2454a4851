#pragma once
// Metrics over many batches. update() is asynchronous: it keeps arrays; value() blocks.

#include <paceline/data_iterator.h>
#include <paceline/loss.h>
#include <paceline/module.h>

#include <vector>

namespace paceline::nn {

// Fraction of examples whose largest score is at the label; one whose label is no class, such as -1, counts as wrong.
class Accuracy {
 public:
  void update(const NDArray& scores, const NDArray& label);
  double value();
  std::int64_t examples() const { return examples_; }

 private:
  std::vector<NDArray> correct_;  // counts not yet fetched
  std::int64_t sum_ = 0, examples_ = 0;
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

#pragma once
// Metrics over many batches. update() is asynchronous: it keeps arrays; value() blocks.

#include <paceline/data_iterator.h>
#include <paceline/module.h>

#include <vector>

namespace paceline::nn {

// Fraction of examples whose largest score is at the label.
class Accuracy {
 public:
  void update(const NDArray& scores, const NDArray& label);
  double value();
  std::int64_t examples() const { return examples_; }

 private:
  std::vector<NDArray> correct_;  // counts not yet fetched
  std::int64_t sum_ = 0, examples_ = 0;
};

// Runs the network over one epoch of `data`, not training, and returns the accuracy.
double evaluate(const Module& net, DataIterator& data, Device device = {});

}  // namespace paceline::nn

#pragma once
// What the workers of a shared evaluation tell each other: a number of each batch, as positions of the store's book, so
// that it counts once however often it is told, and one that is lost leaves what it told.

#include <paceline/exchange.h>
#include <paceline/metric.h>

#include <vector>

namespace paceline::nn {

struct BatchResult {
  std::int64_t first = 0, examples = 0;  // its first position, and how many it has: they name it
  std::int64_t labels = 0, right = 0;    // class numbers, and those at the largest score
  double loss = 0;                       // summed over the examples

  // Of scores (..., classes). Counted are the labels in [0, classes), where there are two classes or more and a label
  // for each row of the scores; where not, throws InvalidArgument without a function for the loss, which is then 0.
  // Blocks.
  static BatchResult of(const NDArray& scores, const Batch& batch, const Loss& loss);
};

// Throws InvalidArgument for positions from 2^35 on and more than 2^20 examples.
PositionRanges told(const BatchResult& result);
std::vector<BatchResult> heard(const PositionRanges& told);

Evaluation sum_of(const std::vector<BatchResult>& results);

}  // namespace paceline::nn

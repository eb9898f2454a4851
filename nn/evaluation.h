#pragma once
// What the workers of a shared evaluation tell each other: the numbers of each batch, as positions behind those of the
// data, committed with the batch's own in one message. So a batch counts once: a worker that is lost has told of it and
// delivered it, or neither, and then others deliver its positions, in batches cut as they like.

#include <paceline/metric.h>

#include <vector>

namespace paceline::nn {

struct BatchResult {
  std::int64_t first = 0, examples = 0;  // its first position names it
  std::int64_t labels = 0, right = 0;    // class numbers, and those at the largest score
  double loss = 0;                       // summed over the examples

  // Of scores (..., classes). Counted are the labels in [0, classes), where there are two classes or more and a label
  // for each row of the scores; where not, throws InvalidArgument without a function for the loss, which is then 0.
  // Blocks.
  static BatchResult of(const NDArray& scores, const Batch& batch, const Loss& loss);
};

// Positions to commit with the batch's own. Throws InvalidArgument for one that begins at position 2^35 or later.
std::vector<Range> told(const BatchResult& result);
// All batches told of in what was committed.
std::vector<BatchResult> heard(const std::vector<Range>& committed);

Evaluation sum_of(const std::vector<BatchResult>& results);

}  // namespace paceline::nn

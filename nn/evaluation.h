#pragma once
// What the workers of a shared evaluation tell each other: the numbers of each batch, as a note that is committed with
// the batch's positions. So a batch counts once: a worker that is lost has told of it and delivered it, or neither, and
// then others deliver its positions, in batches cut as they like.

#include <paceline/metric.h>

#include <string>
#include <vector>

namespace paceline::nn {

struct BatchResult {
  std::int64_t examples = 0;
  std::int64_t labels = 0, right = 0;  // class numbers, and those at the largest score
  double loss = 0;                     // summed over the examples

  // Of scores (..., classes). Counted are the labels in [0, classes), where there are two classes or more and a label
  // for each row of the scores. Without a function for the loss, which is then 0, throws InvalidArgument where not, and
  // for labels from `classes` on. Blocks.
  static BatchResult of(const NDArray& scores, const Batch& batch, const Loss& loss);

  // The note, and what is read from it, to the bit. The second throws Corrupt.
  std::string text() const;
  static BatchResult parse(const std::string& text);
};

// Throws InvalidArgument for a batch with data whose `examples` was left at 0.
void require_counted(const Batch& batch);

Evaluation sum_of(const std::vector<BatchResult>& results);

}  // namespace paceline::nn

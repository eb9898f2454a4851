#pragma once
// Rows of a table.

#include <paceline/op.h>

namespace paceline {

// The arguments of embedding().
struct EmbeddingAttributes {
  bool sparse_gradient = false;  // the weight's gradient is row-sparse
};

// The rows of `weight` (rows, ...) that `ids` name, which are int32 or int64 of any shape. The result has the shape of
// ids, then that of a row. With `sparse_gradient` the weight's gradient is row-sparse. It has one row for each id,
// repeated ids included. An id outside the table fails the task with InvalidArgument.
NDArray embedding(const NDArray& ids, const NDArray& weight, bool sparse_gradient = false);

}  // namespace paceline

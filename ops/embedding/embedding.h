#pragma once
// Looks rows up: ids (any shape, int32 or int64), weight (rows, ...) -> ids.shape + weight.shape[1:]. With
// `sparse_gradient` the weight's gradient is row-sparse (the ids as they came, repeated ones included). An id outside
// the table fails the task with InvalidArgument.

#include <paceline/op.h>

namespace paceline {

struct EmbeddingAttributes {
  bool sparse_gradient = false;
};

NDArray embedding(const NDArray& ids, const NDArray& weight, bool sparse_gradient = false);

}  // namespace paceline

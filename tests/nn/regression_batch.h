#pragma once
// A batch of numbers without a meaning: each example has three inputs and two targets.

#include <paceline/data_iterator.h>

#include <cmath>
#include <vector>

namespace paceline::test {

inline Batch batch_of(std::int64_t examples, double shift = 0, DType dtype = DType::kFloat64) {
  std::vector<double> x, y;
  for (std::int64_t i = 0; i < examples * 3; ++i) x.push_back(std::sin(static_cast<double>(i) + shift));
  for (std::int64_t i = 0; i < examples * 2; ++i) y.push_back(std::cos(static_cast<double>(2 * i) + shift));
  Batch batch;
  batch.data = NDArray::from(x, {examples, 3}).cast(dtype);
  batch.label = NDArray::from(y, {examples, 2}).cast(dtype);
  batch.examples = examples;
  return batch;
}

}  // namespace paceline::test

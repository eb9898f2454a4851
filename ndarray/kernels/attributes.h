#pragma once
// What the kernels of this folder take besides arrays; shared by their CPU and CUDA halves.

#include <paceline/detail/gemm_bias.h>

#include <cstdint>

namespace paceline::detail {

struct Scalar {
  double value;
};

struct Gemm {
  bool transpose_a;
  bool transpose_b;
  double alpha;
  double beta;
  bool exact = false;  // float32 is not rounded to TF32, even where PACELINE_TF32 allows it for products
};

// A product whose beta is 0, and what is done to its result.
struct GemmBias {
  Gemm product;
  Epilogue epilogue;
};

// Uniform: lowest and width. Normal: mean and deviation.
struct Distribution {
  double first;
  double second;
};

}  // namespace paceline::detail

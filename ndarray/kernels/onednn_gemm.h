#pragma once
// Products of float32 matrices through oneDNN.

#include "kernels/matrix.h"

namespace paceline::detail {

// Makes oneDNN create its static objects, and calls rest_before_exit(), so that tasks stop before these are destroyed.
// The thread that launches a product calls this before the task exists.
void prepare_onednn_gemm();

// c = a b + beta c, plus `bias` in each row unless it is null, on the team of the calling thread. Returns false, with c
// unchanged, where oneDNN is not built in or has no fast code for this product.
bool onednn_gemm(const Matrix& a, const float* a_data, const Matrix& b, const float* b_data, const Matrix& c,
                 float* c_data, double beta, const float* bias);

}  // namespace paceline::detail

#pragma once
// Products of float32 matrices through oneDNN.

#include "kernels/matrix.h"

namespace paceline::detail {

// On the thread that issues: oneDNN makes what it destroys at the end of the program before any task uses it.
void prepare_onednn_gemm();

// c = a b + beta c, plus bias in each row where there is one, on the team of the calling thread. False where oneDNN is
// not built in or has no fast code for it.
bool onednn_gemm(const Matrix& a, const float* a_data, const Matrix& b, const float* b_data, const Matrix& c,
                 float* c_data, double beta, const float* bias);

}  // namespace paceline::detail

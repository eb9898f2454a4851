#include "kernels/onednn_gemm.h"

namespace paceline::detail {

void prepare_onednn_gemm() {}

bool onednn_gemm(const Matrix&, const float*, const Matrix&, const float*, const Matrix&, float*, double,
                 const float*) {
  return false;
}

}  // namespace paceline::detail

#pragma once
// Mixed precision: the casts that layers make (Context::compute in module.h).

#include <paceline/module.h>

#include <map>

namespace paceline::nn {

inline bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBfloat16; }

// float32 where x is float16 or bfloat16, else x. Recorded.
NDArray in_float(const NDArray& x);

// The weights of a step in the type that layers compute in, each cast once however often it is used. Gradients go back
// through every use, in float32.
class CastWeights {
 public:
  NDArray cast(const Parameter& weight, DType dtype);

 private:
  std::map<const Parameter*, NDArray> casts_;
};

}  // namespace paceline::nn

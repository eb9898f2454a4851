#pragma once

namespace paceline::detail {

// PACELINE_TF32: 1 lets CUDA devices round the factors of float32 products and convolutions to TF32 (10 bits behind the
// point) for their tensor cores; 0, the default, does not. Read once. Throws InvalidArgument for other words.
bool tf32_wanted();
// `value` as the variable has it; none where it is not set.
bool parse_tf32(const char* value);

}  // namespace paceline::detail

#pragma once
// The sizes of one convolution.

#include "conv2d/conv2d.h"

namespace paceline {

struct Conv2dGeometry {
  std::int64_t examples, in, out, groups;
  std::array<std::int64_t, 2> size, kernel, result;  // along height, along width
  std::array<std::int64_t, 2> stride, padding, dilation;

  std::int64_t group_in() const { return in / groups; }
  std::int64_t group_out() const { return out / groups; }
  std::int64_t input_plane() const { return size[0] * size[1]; }
  std::int64_t output_plane() const { return result[0] * result[1]; }
  // Weights of one output channel.
  std::int64_t patch() const { return group_in() * kernel[0] * kernel[1]; }

  friend bool operator==(const Conv2dGeometry&, const Conv2dGeometry&) = default;
};

// Throws InvalidArgument "[conv2d] ..." when the shapes and attributes do not fit.
Conv2dGeometry make_geometry(const Shape& x, const Shape& weight, const Conv2dAttributes& attributes);

// The arrays of one convolution, row-major, by their roles. Null: absent or not wanted.
struct Conv2dArrays {
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  const void* y_gradient = nullptr;
  void* y = nullptr;
  void* x_gradient = nullptr;
  void* weight_gradient = nullptr;
  void* bias_gradient = nullptr;
};

enum class Conv2dPass { kForward, kBackwardData, kBackwardWeight };

// Lets oneDNN make what it tears down when the program ends. Called outside tasks, before the first of them uses it: else
// that could happen while the program ends.
void conv2d_prepare_onednn();
// oneDNN, for float32. False: not in this build, or no implementation for these sizes. Runs on the calling thread and
// its team.
bool conv2d_onednn(Conv2dPass pass, const Conv2dGeometry& geometry, const Conv2dArrays& arrays);

// im2col and OpenBLAS, for every floating type; `workspace` has the bytes that conv2d_gemm_workspace() says.
void conv2d_gemm(Conv2dPass pass, const Conv2dGeometry& geometry, const Conv2dArrays& arrays, DType dtype,
                 void* workspace);
std::size_t conv2d_gemm_workspace(const Conv2dGeometry& geometry, DType dtype);

}  // namespace paceline

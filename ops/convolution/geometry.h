#pragma once
// The sizes of one convolution.

#include "convolution/convolution.h"

#include <paceline/host_device.h>

#include <array>
#include <compare>

namespace paceline {

// Always with three spatial axes: those that the arrays lack come first and have one place.
struct ConvolutionGeometry {
  using Sizes = std::array<std::int64_t, 3>;

  int axes;  // that the arrays have
  std::int64_t examples, in, out, groups;
  Sizes size, kernel, result;
  Sizes stride, padding, dilation;

  PACELINE_HOST_DEVICE std::int64_t group_in() const { return in / groups; }
  PACELINE_HOST_DEVICE std::int64_t group_out() const { return out / groups; }
  PACELINE_HOST_DEVICE std::int64_t input_places() const { return size[0] * size[1] * size[2]; }
  PACELINE_HOST_DEVICE std::int64_t output_places() const { return result[0] * result[1] * result[2]; }
  // Weights of one output channel.
  PACELINE_HOST_DEVICE std::int64_t patch() const { return group_in() * kernel[0] * kernel[1] * kernel[2]; }
  // Along one axis, where place `at` of the result reads x under place `under` of the kernel; negative: in the padding.
  PACELINE_HOST_DEVICE std::int64_t input_place(std::size_t axis, std::int64_t at, std::int64_t under) const {
    const std::int64_t place = at * stride[axis] + under * dilation[axis] - padding[axis];
    return place < size[axis] ? place : -1;
  }
  // The place of the result that reads place `at` of x under place `under` of the kernel; negative: none does.
  PACELINE_HOST_DEVICE std::int64_t output_place(std::size_t axis, std::int64_t at, std::int64_t under) const {
    const std::int64_t steps = at + padding[axis] - under * dilation[axis];
    return steps >= 0 && steps % stride[axis] == 0 && steps / stride[axis] < result[axis] ? steps / stride[axis] : -1;
  }
  // The shape of the result.
  Shape result_shape() const;

  friend auto operator<=>(const ConvolutionGeometry&, const ConvolutionGeometry&) = default;
};

// Throws InvalidArgument naming `name` when the shapes and attributes do not fit.
ConvolutionGeometry make_geometry(const char* name, const Shape& x, const Shape& weight,
                                  const ConvolutionAttributes& attributes);
// That of the convolution whose input is what a transposed convolution makes of x.
ConvolutionGeometry transposed_geometry(const Shape& x, const Shape& weight,
                                        const TransposedConvolutionAttributes& attributes);

// The arrays of one convolution, row-major, by their roles. Null: absent or not wanted. In the data pass the bias is
// one of x's channels.
struct ConvolutionArrays {
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  const void* y_gradient = nullptr;
  void* y = nullptr;
  void* x_gradient = nullptr;
  void* weight_gradient = nullptr;
  void* bias_gradient = nullptr;
};

enum class ConvolutionPass { kForward, kBackwardData, kBackwardWeight };

// Lets oneDNN make what it tears down when the program ends. Called outside tasks, before the first of them uses it:
// else that could happen while the program ends.
void prepare_onednn_convolution();
// oneDNN, for float32. False: not in this build, or no implementation for these sizes that is worth it. Runs on the
// calling thread and its team.
bool onednn_convolution(ConvolutionPass pass, const ConvolutionGeometry& geometry, const ConvolutionArrays& arrays);

// im2col and OpenBLAS, for every floating type; `workspace` has the bytes that gemm_convolution_workspace() says.
void gemm_convolution(ConvolutionPass pass, const ConvolutionGeometry& geometry, const ConvolutionArrays& arrays,
                      DType dtype, void* workspace);
std::size_t gemm_convolution_workspace(const ConvolutionGeometry& geometry, DType dtype);

}  // namespace paceline

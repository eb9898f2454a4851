#pragma once
// A kernel is a pair of functions {cpu, cuda} over raw tensors; launch() pushes it to the engine with its read and
// write sets. Operators, optimizers and codecs are built from kernels.

#include <paceline/ndarray.h>

#include <cstdint>
#include <memory>
#include <span>

namespace paceline {

// An array as a kernel sees it. Valid only while the kernel runs.
struct Tensor {
  void* data;
  Shape shape;
  Strides strides;
  DType dtype;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  std::int64_t size() const { return shape.size(); }
};

// Kernels neither allocate nor synchronise. On the CPU and the simulated device they run on one thread, which may use a
// team of `team_size()` (cores.h) OpenMP threads.
struct KernelContext {
  Device device;
  void* native_stream;  // cudaStream_t on CUDA devices
  void* workspace;      // LaunchOptions::workspace_bytes, 64-byte aligned, uninitialised
  std::uint64_t seed;   // LaunchOptions::seed
};

using KernelFunction = void (*)(const KernelContext& context, std::span<const Tensor> inputs,
                                std::span<const Tensor> outputs, const void* attributes);

struct Kernel {
  const char* name;               // a literal
  KernelFunction cpu = nullptr;   // also runs on sim:N
  KernelFunction cuda = nullptr;  // null: not available there
  // Computes each place of dense outputs from the same place of the inputs, or from single numbers; a part of the
  // places may be asked for, and an output may be one of the inputs.
  bool elementwise = false;
};

struct LaunchOptions {
  int priority = 0;
  std::size_t workspace_bytes = 0;
  std::uint64_t seed = 0;
};

// Pushes the kernel to the device of outputs[0]; all arrays must be on it and of one engine. An output that is also an
// input, or a view that does not cover its memory, keeps its old value readable. `attributes` is passed as it is and
// kept alive. Throws InvalidArgument (devices or engines differ), NotAvailable (no kernel for that device).
void launch(const Kernel& kernel, std::span<const NDArray> inputs, std::span<const NDArray> outputs,
            std::shared_ptr<const void> attributes = nullptr, const LaunchOptions& options = {});

// The same with a closure, for host devices (cpu, sim); throws NotAvailable on CUDA.
using HostKernel = UniqueFunction<void(const KernelContext&, std::span<const Tensor>, std::span<const Tensor>)>;
void launch_host(const char* name, std::span<const NDArray> inputs, std::span<const NDArray> outputs, HostKernel work,
                 const LaunchOptions& options = {});

// Gradient-free arithmetic on whole arrays. Shapes and types must match unless said; asynchronous.
namespace kernels {
void add(const NDArray& a, const NDArray& b, const NDArray& out, int priority = 0);  // out may be a or b
void axpy(double alpha, const NDArray& x, const NDArray& y, int priority = 0);       // y += alpha * x
void scale(double alpha, const NDArray& x, int priority = 0);                        // x *= alpha
// out = the sum of all `parts`, added in the order given (bitwise the same from run to run).
void sum_of(std::span<const NDArray> parts, const NDArray& out, int priority = 0);
void reduce_sum(const NDArray& x, const NDArray& out);      // out: one element
void sum_of_squares(const NDArray& x, const NDArray& out);  // out: one float64 element
// out = alpha * op(a) op(b) + beta * out; 2-d, or 3-d as a batch; row-major or transposed. oneDNN, OpenBLAS; cuBLAS,
// which adds float16 and bfloat16 up in float32, and takes float32 as it is unless PACELINE_TF32=1 is set (then factors
// of products and convolutions are rounded to TF32, for tensor cores).
void gemm(const NDArray& a, bool transpose_a, const NDArray& b, bool transpose_b, const NDArray& out, double alpha = 1,
          double beta = 0);
// Uniform in [low, high) and normal numbers from a counter-based generator: the same for every device and team size.
void fill_uniform(const NDArray& out, double low, double high, std::uint64_t seed);
void fill_normal(const NDArray& out, double mean, double deviation, std::uint64_t seed);
}  // namespace kernels

}  // namespace paceline

#pragma once
// Kernels: functions over raw memory for the CPU and for CUDA. launch() pushes one to the engine with the arrays that
// it reads and writes. Operators, optimizers and codecs are built from kernels.

#include <paceline/ndarray.h>

#include <cstdint>
#include <memory>
#include <span>

namespace paceline {

// An array as a kernel sees it. Valid only while the kernel runs.
struct Tensor {
  void* data;       // the first element, in the memory of the kernel's device
  Shape shape;      // sizes, in elements
  Strides strides;  // distances, in elements
  DType dtype;      // of the elements

  // The first element as a T, which must be the type of the elements.
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  // The number of elements.
  std::int64_t size() const { return shape.size(); }
};

// What a kernel is told besides its arrays. Kernels neither allocate nor synchronise. On the CPU and on simulated
// devices, each call of a kernel runs on one thread. The thread may use a team of `team_size()` OpenMP threads
// (cores.h).
struct KernelContext {
  Device device;        // where it runs
  void* native_stream;  // cudaStream_t on CUDA devices
  void* workspace;      // LaunchOptions::workspace_bytes, 64-byte aligned, uninitialised
  std::uint64_t seed;   // LaunchOptions::seed
};

// The function of a kernel. On CUDA devices it only issues work to the stream. `attributes` are those of launch().
using KernelFunction = void (*)(const KernelContext& context, std::span<const Tensor> inputs,
                                std::span<const Tensor> outputs, const void* attributes);

// The functions of one computation, by kind of device. launch() copies what it needs, so a Kernel may be temporary.
struct Kernel {
  const char* name;               // for traces and errors; a literal
  KernelFunction cpu = nullptr;   // on the CPU, and on simulated devices
  KernelFunction cuda = nullptr;  // on CUDA devices; null: not available there
  // True where each place of dense outputs depends only on the same place of the inputs, and on inputs of one element.
  // A captured function may then call the kernel for parts of the places, on several threads at once. It may also give
  // an output the memory of an input.
  bool elementwise = false;
};

// Options of a launch.
struct LaunchOptions {
  int priority = 0;                 // TaskInfo::priority
  std::size_t workspace_bytes = 0;  // of KernelContext::workspace
  std::uint64_t seed = 0;           // KernelContext::seed
};

// Pushes the kernel to the device of outputs[0] and does not wait for it. All arrays must be on that device and of one
// engine. The kernel may read the old value of an output that is also an input. It may also read the old value of an
// output that shows only a part of its block of memory. `attributes` is handed to the kernel and kept alive until the
// kernel is complete. Throws InvalidArgument where devices or engines differ, where an array is none, and where an
// output is a broadcast view. Throws NotAvailable where the kernel has no function for the device.
void launch(const Kernel& kernel, std::span<const NDArray> inputs, std::span<const NDArray> outputs,
            std::shared_ptr<const void> attributes = nullptr, const LaunchOptions& options = {});

// A closure as a kernel, for devices of the host (cpu, sim).
using HostKernel = UniqueFunction<void(const KernelContext&, std::span<const Tensor>, std::span<const Tensor>)>;
// Like launch(), with a closure. Throws NotAvailable on CUDA devices.
void launch_host(const char* name, std::span<const NDArray> inputs, std::span<const NDArray> outputs, HostKernel work,
                 const LaunchOptions& options = {});

// Arithmetic on whole arrays that no Tape follows. Asynchronous. Throws InvalidArgument where shapes or types that must
// be equal differ.
namespace kernels {
void add(const NDArray& a, const NDArray& b, const NDArray& out, int priority = 0);  // out = a + b; out may be a or b
void axpy(double alpha, const NDArray& x, const NDArray& y, int priority = 0);       // y += alpha * x
void scale(double alpha, const NDArray& x, int priority = 0);                        // x *= alpha
// out = the sum of all `parts`, added in the order given (bitwise the same from run to run).
void sum_of(std::span<const NDArray> parts, const NDArray& out, int priority = 0);
void reduce_sum(const NDArray& x, const NDArray& out);      // the sum of all elements; out has one element
void sum_of_squares(const NDArray& x, const NDArray& out);  // out: one element of float64
// out = alpha * op(a) op(b) + beta * out, where op() transposes on request. Arrays are 2-d, or 3-d as a batch of
// matrices. oneDNN or OpenBLAS computes the product on the CPU, and cuBLAS on CUDA devices. Sums of float16 and
// bfloat16 are float32. With PACELINE_TF32=1, CUDA devices round the factors of float32 products and convolutions to
// TF32, for tensor cores.
void gemm(const NDArray& a, bool transpose_a, const NDArray& b, bool transpose_b, const NDArray& out, double alpha = 1,
          double beta = 0);
// Fill `out` with uniform numbers of [low, high), or with normal ones, of a counter-based generator (random.h): the
// same for every device and team size. Floating types.
void fill_uniform(const NDArray& out, double low, double high, std::uint64_t seed);
void fill_normal(const NDArray& out, double mean, double deviation, std::uint64_t seed);
}  // namespace kernels

}  // namespace paceline

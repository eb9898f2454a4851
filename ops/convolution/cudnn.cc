#include "convolution/cudnn.h"

#include <paceline/detail/cuda_check.h>
#include <paceline/detail/tf32.h>
#include <paceline/log.h>

#include <cudnn.h>
#include <dlfcn.h>

#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <tuple>
#include <vector>

namespace paceline {
namespace {

// The functions of cuDNN that are used, found by name.
// One entry to a line: clang-format takes them for calls in one another, and would indent each deeper.
// clang-format off
#define PACELINE_CUDNN_FUNCTIONS(X)                    \
  X(cudnnCreate)                                       \
  X(cudnnSetStream)                                    \
  X(cudnnGetErrorString)                               \
  X(cudnnCreateTensorDescriptor)                       \
  X(cudnnDestroyTensorDescriptor)                      \
  X(cudnnSetTensorNdDescriptorEx)                      \
  X(cudnnCreateFilterDescriptor)                       \
  X(cudnnDestroyFilterDescriptor)                      \
  X(cudnnSetFilterNdDescriptor)                        \
  X(cudnnCreateConvolutionDescriptor)                  \
  X(cudnnDestroyConvolutionDescriptor)                 \
  X(cudnnSetConvolutionNdDescriptor)                   \
  X(cudnnSetConvolutionGroupCount)                     \
  X(cudnnSetConvolutionMathType)                       \
  X(cudnnAddTensor)                                    \
  X(cudnnConvolutionForward)                           \
  X(cudnnGetConvolutionForwardAlgorithm_v7)            \
  X(cudnnGetConvolutionForwardWorkspaceSize)           \
  X(cudnnConvolutionBackwardData)                      \
  X(cudnnGetConvolutionBackwardDataAlgorithm_v7)       \
  X(cudnnGetConvolutionBackwardDataWorkspaceSize)      \
  X(cudnnConvolutionBackwardFilter)                    \
  X(cudnnGetConvolutionBackwardFilterAlgorithm_v7)     \
  X(cudnnGetConvolutionBackwardFilterWorkspaceSize)
// clang-format on

struct Cudnn {
#define PACELINE_MEMBER(name) decltype(&::name) name = nullptr;
  PACELINE_CUDNN_FUNCTIONS(PACELINE_MEMBER)
#undef PACELINE_MEMBER

  // Null where it cannot be opened.
  static const Cudnn* open() {
    static const Cudnn* const cudnn = []() -> const Cudnn* {
      const std::string name = str("libcudnn.so.", CUDNN_MAJOR);
      void* const file = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (!file) {
        LOG(WARNING) << "convolutions on CUDA devices are slow without cuDNN: " << dlerror();
        return nullptr;
      }
      auto found = std::make_unique<Cudnn>();
      bool complete = true;
#define PACELINE_FIND(name)                                              \
  found->name = reinterpret_cast<decltype(&::name)>(dlsym(file, #name)); \
  complete = complete && found->name;
      PACELINE_CUDNN_FUNCTIONS(PACELINE_FIND)
#undef PACELINE_FIND
      return complete ? found.release() : nullptr;
    }();
    return cudnn;
  }
};
#undef PACELINE_CUDNN_FUNCTIONS

cudnnDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return CUDNN_DATA_DOUBLE;
    case DType::kFloat16: return CUDNN_DATA_HALF;
    case DType::kBfloat16: return CUDNN_DATA_BFLOAT16;
    default: return CUDNN_DATA_FLOAT;
  }
}

// What cuDNN knows of one convolution. Two spatial axes, or three where x has them.
class Problem {
 public:
  Problem(const Cudnn& cudnn, const ConvolutionGeometry& g, DType dtype, bool channels_last) : cudnn_(cudnn) {
    const std::size_t first = g.axes <= 2 ? 1 : 0;
    const auto sizes = [&](std::int64_t a, std::int64_t b, const ConvolutionGeometry::Sizes& spatial) {
      std::vector<int> result{number(a), number(b)};
      for (std::size_t i = first; i < 3; ++i) result.push_back(number(spatial[i]));
      return result;
    };
    const auto only = [&](const ConvolutionGeometry::Sizes& spatial) {
      std::vector<int> result;
      for (std::size_t i = first; i < 3; ++i) result.push_back(number(spatial[i]));
      return result;
    };
    const cudnnDataType_t type = type_of(dtype);
    const cudnnTensorFormat_t order = channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
    const std::vector<int> x_sizes = sizes(g.examples, g.in, g.size), y_sizes = sizes(g.examples, g.out, g.result),
                           kernel = sizes(g.out, g.group_in(), g.kernel), in_bias = sizes(1, g.in, {1, 1, 1}),
                           out_bias = sizes(1, g.out, {1, 1, 1}), padding = only(g.padding), stride = only(g.stride),
                           dilation = only(g.dilation);
    const int dims = static_cast<int>(x_sizes.size());
    expect(cudnn_.cudnnCreateTensorDescriptor(&x));
    expect(cudnn_.cudnnCreateTensorDescriptor(&y));
    expect(cudnn_.cudnnCreateTensorDescriptor(&x_bias));
    expect(cudnn_.cudnnCreateTensorDescriptor(&y_bias));
    expect(cudnn_.cudnnCreateFilterDescriptor(&weight));
    expect(cudnn_.cudnnCreateConvolutionDescriptor(&convolution));
    if (!fits) return;
    expect(cudnn_.cudnnSetTensorNdDescriptorEx(x, order, type, dims, x_sizes.data()));
    expect(cudnn_.cudnnSetTensorNdDescriptorEx(y, order, type, dims, y_sizes.data()));
    expect(cudnn_.cudnnSetTensorNdDescriptorEx(x_bias, order, type, dims, in_bias.data()));
    expect(cudnn_.cudnnSetTensorNdDescriptorEx(y_bias, order, type, dims, out_bias.data()));
    expect(cudnn_.cudnnSetFilterNdDescriptor(weight, type, order, dims, kernel.data()));
    expect(cudnn_.cudnnSetConvolutionNdDescriptor(convolution, dims - 2, padding.data(), stride.data(), dilation.data(),
                                                  CUDNN_CROSS_CORRELATION,
                                                  dtype == DType::kFloat64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT));
    expect(cudnn_.cudnnSetConvolutionGroupCount(convolution, number(g.groups)));
    const bool half = dtype == DType::kFloat16 || dtype == DType::kBfloat16;
    const cudnnMathType_t of_float = detail::tf32_wanted() ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
    math = half ? CUDNN_TENSOR_OP_MATH : of_float;
    expect(cudnn_.cudnnSetConvolutionMathType(convolution, math));
  }
  ~Problem() {
    for (cudnnTensorDescriptor_t tensor : {x, y, x_bias, y_bias})
      if (tensor) cudnn_.cudnnDestroyTensorDescriptor(tensor);
    if (weight) cudnn_.cudnnDestroyFilterDescriptor(weight);
    if (convolution) cudnn_.cudnnDestroyConvolutionDescriptor(convolution);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  cudnnTensorDescriptor_t x = nullptr, y = nullptr, x_bias = nullptr, y_bias = nullptr;
  cudnnFilterDescriptor_t weight = nullptr;
  cudnnConvolutionDescriptor_t convolution = nullptr;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  bool fits = true;

 private:
  void expect(cudnnStatus_t status) { fits = fits && status == CUDNN_STATUS_SUCCESS; }
  int number(std::int64_t size) {
    fits = fits && size <= std::numeric_limits<int>::max();
    return static_cast<int>(size);
  }

  const Cudnn& cudnn_;
};

// One per thread and device. Never destroyed: a thread may end after the driver has gone.
cudnnHandle_t handle_for(const Cudnn& cudnn, int device) {
  thread_local std::map<int, cudnnHandle_t> handles;
  detail::select_cuda_device(device);
  const auto [at, is_new] = handles.try_emplace(device, nullptr);
  if (is_new && cudnn.cudnnCreate(&at->second) != CUDNN_STATUS_SUCCESS) {
    LOG(WARNING) << "cuDNN cannot be started on cuda:" << device;
    at->second = nullptr;
  }
  return at->second;
}

constexpr std::size_t kMostWorkspace = std::size_t{1} << 30;

// How a problem is computed: one of these counts, the pass' own.
struct Algorithm {
  // These give the same bits every time, and are the fastest in half precision.
  cudnnConvolutionFwdAlgo_t forward = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
  cudnnConvolutionBwdDataAlgo_t data = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
  cudnnConvolutionBwdFilterAlgo_t filter = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
};

// The first that cuDNN proposes, fastest first, of those that give the same bits every time in the arithmetic wanted;
// leaves `algorithm` where there is none. ask(most, &count, results)
template <class Result, class Choice, class Ask>
void choose_proposed(const Problem& p, Choice& algorithm, const Ask& ask) {
  std::array<Result, 16> results{};
  int count = 0;
  if (ask(static_cast<int>(results.size()), &count, results.data()) != CUDNN_STATUS_SUCCESS) return;
  for (const Result& result : std::span(results).first(static_cast<std::size_t>(count))) {
    if (result.status != CUDNN_STATUS_SUCCESS || result.determinism != CUDNN_DETERMINISTIC ||
        result.mathType != p.math || result.memory > kMostWorkspace)
      continue;
    algorithm = result.algo;
    return;
  }
}

Algorithm choose(const Cudnn& cudnn, cudnnHandle_t handle, ConvolutionPass pass, const Problem& p) {
  Algorithm result;
  if (pass == ConvolutionPass::kForward)
    choose_proposed<cudnnConvolutionFwdAlgoPerf_t>(p, result.forward, [&](int most, int* count, auto* results) {
      return cudnn.cudnnGetConvolutionForwardAlgorithm_v7(handle, p.x, p.weight, p.convolution, p.y, most, count,
                                                          results);
    });
  else if (pass == ConvolutionPass::kBackwardData)
    choose_proposed<cudnnConvolutionBwdDataAlgoPerf_t>(p, result.data, [&](int most, int* count, auto* results) {
      return cudnn.cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, p.weight, p.y, p.convolution, p.x, most, count,
                                                               results);
    });
  else
    choose_proposed<cudnnConvolutionBwdFilterAlgoPerf_t>(p, result.filter, [&](int most, int* count, auto* results) {
      return cudnn.cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, p.x, p.y, p.convolution, p.weight, most, count,
                                                                 results);
    });
  return result;
}

// False: cuDNN has nothing for this.
bool ask_workspace(const Cudnn& cudnn, cudnnHandle_t handle, ConvolutionPass pass, const Problem& p,
                   const Algorithm& algorithm, std::size_t& bytes) {
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  if (pass == ConvolutionPass::kForward)
    status = cudnn.cudnnGetConvolutionForwardWorkspaceSize(handle, p.x, p.weight, p.convolution, p.y, algorithm.forward,
                                                           &bytes);
  else if (pass == ConvolutionPass::kBackwardData)
    status = cudnn.cudnnGetConvolutionBackwardDataWorkspaceSize(handle, p.weight, p.y, p.convolution, p.x,
                                                                algorithm.data, &bytes);
  else
    status = cudnn.cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, p.x, p.y, p.convolution, p.weight,
                                                                  algorithm.filter, &bytes);
  return status == CUDNN_STATUS_SUCCESS && bytes <= kMostWorkspace;
}

// How one convolution is computed.
struct Plan {
  Plan(const Cudnn& cudnn, cudnnHandle_t handle, ConvolutionPass pass, const ConvolutionGeometry& g, DType dtype,
       bool channels_last)
      : problem(cudnn, g, dtype, channels_last) {
    if (!problem.fits) return;
    if (dtype == DType::kFloat32) {  // the fastest algorithm depends on the sizes
      const Algorithm proposed = choose(cudnn, handle, pass, problem);
      usable = ask_workspace(cudnn, handle, pass, problem, proposed, workspace);
      if (usable) algorithm = proposed;
    }
    if (!usable) usable = ask_workspace(cudnn, handle, pass, problem, algorithm, workspace);
  }

  const Problem problem;
  Algorithm algorithm;
  std::size_t workspace = 0;  // bytes
  bool usable = false;
};

// Makes the plan of each convolution once and keeps it: asking cuDNN takes longer than many a convolution. Null: cuDNN
// has nothing for this.
const Plan* plan_for(const Cudnn& cudnn, cudnnHandle_t handle, ConvolutionPass pass, const ConvolutionGeometry& g,
                     DType dtype, bool channels_last, int device) {
  using Key = std::tuple<int, ConvolutionPass, DType, bool, bool, ConvolutionGeometry>;
  static std::mutex mutex;
  static auto& plans = *new std::map<Key, std::unique_ptr<const Plan>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<const Plan>& plan = plans[{device, pass, dtype, channels_last, detail::tf32_wanted(), g}];
  if (!plan || !plan->usable) plan = std::make_unique<const Plan>(cudnn, handle, pass, g, dtype, channels_last);
  return plan->usable ? plan.get() : nullptr;
}

bool is_empty(const ConvolutionGeometry& g) { return g.examples == 0 || g.in == 0 || g.out == 0; }

}  // namespace

std::size_t cudnn_workspace(ConvolutionPass pass, const ConvolutionGeometry& geometry, DType dtype, bool channels_last,
                            Device device) {
  const Cudnn* const cudnn = Cudnn::open();
  if (!cudnn || is_empty(geometry)) return 0;
  const cudnnHandle_t handle = handle_for(*cudnn, device.index);
  if (!handle) return 0;
  const Plan* const plan = plan_for(*cudnn, handle, pass, geometry, dtype, channels_last, device.index);
  return plan ? plan->workspace : 0;
}

bool cudnn_convolution(ConvolutionPass pass, const ConvolutionGeometry& geometry, const ConvolutionArrays& arrays,
                       DType dtype, bool channels_last, const KernelContext& context) {
  const Cudnn* const cudnn = Cudnn::open();
  if (!cudnn || is_empty(geometry)) return false;
  const cudnnHandle_t handle = handle_for(*cudnn, context.device.index);
  if (!handle) return false;
  const Plan* const plan = plan_for(*cudnn, handle, pass, geometry, dtype, channels_last, context.device.index);
  if (!plan) {
    LOG_FIRST_N(WARNING, 1) << "cuDNN has no algorithm for a convolution of " << name_of(dtype) << " with "
                            << geometry.axes << " axes and " << geometry.groups << " groups"
                            << (channels_last ? ", channels last" : "") << "; such are slow";
    return false;
  }

  const Problem& p = plan->problem;
  const Algorithm& algorithm = plan->algorithm;
  const std::size_t bytes = plan->workspace;
  const double double_one = 1, double_zero = 0;
  const float float_one = 1, float_zero = 0;
  const bool wide = dtype == DType::kFloat64;
  const void* const one = wide ? static_cast<const void*>(&double_one) : &float_one;
  const void* const zero = wide ? static_cast<const void*>(&double_zero) : &float_zero;
  const auto stream = static_cast<cudaStream_t>(context.native_stream);
  const auto check = [&](cudnnStatus_t status) {
    if (status == CUDNN_STATUS_SUCCESS) return;
    detail::check_device(stream, "[convolution] cuDNN");
    throw Error(str("[convolution] cuDNN: ", cudnn->cudnnGetErrorString(status)));
  };
  check(cudnn->cudnnSetStream(handle, stream));
  void* const workspace = bytes > 0 ? context.workspace : nullptr;
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  if (pass == ConvolutionPass::kForward)
    status = cudnn->cudnnConvolutionForward(handle, one, p.x, arrays.x, p.weight, arrays.weight, p.convolution,
                                            algorithm.forward, workspace, bytes, zero, p.y, arrays.y);
  else if (pass == ConvolutionPass::kBackwardData)
    status =
        cudnn->cudnnConvolutionBackwardData(handle, one, p.weight, arrays.weight, p.y, arrays.y_gradient, p.convolution,
                                            algorithm.data, workspace, bytes, zero, p.x, arrays.x_gradient);
  else
    status = cudnn->cudnnConvolutionBackwardFilter(handle, one, p.x, arrays.x, p.y, arrays.y_gradient, p.convolution,
                                                   algorithm.filter, workspace, bytes, zero, p.weight,
                                                   arrays.weight_gradient);
  if (status == CUDNN_STATUS_NOT_SUPPORTED) return false;
  check(status);
  if (arrays.bias && pass == ConvolutionPass::kForward)
    check(cudnn->cudnnAddTensor(handle, one, p.y_bias, arrays.bias, one, p.y, arrays.y));
  if (arrays.bias && pass == ConvolutionPass::kBackwardData)
    check(cudnn->cudnnAddTensor(handle, one, p.x_bias, arrays.bias, one, p.x, arrays.x_gradient));
  return true;
}

}  // namespace paceline

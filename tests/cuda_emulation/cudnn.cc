// cuDNN's convolution over the emulated devices. It takes what its documentation allows and no more, and has nothing
// for a few problems that cuDNN may refuse, too.
#include "call.h"
#include "product.h"

#include <cudnn.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

using Sizes = std::vector<int>;

struct cudnnContext {
  int device;
  cudaStream_t stream = nullptr;
};

// Sizes: examples and channels (of a filter: channels made and read), then the spatial axes. `last`: channels are the
// fastest.
struct cudnnTensorStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  bool last = false;
  Sizes sizes;

  cudnnStatus_t set(cudnnTensorFormat_t format, cudnnDataType_t of, int axes, const int* from) {
    if (axes < 4 || axes > 5) return CUDNN_STATUS_BAD_PARAM;
    for (int i = 0; i < axes; ++i)
      if (from[i] < 1) return CUDNN_STATUS_BAD_PARAM;
    type = of;
    last = format == CUDNN_TENSOR_NHWC;
    sizes.assign(from, from + axes);
    return CUDNN_STATUS_SUCCESS;
  }
  std::int64_t places() const {
    std::int64_t all = 1;
    for (std::size_t i = 2; i < sizes.size(); ++i) all *= sizes[i];
    return all;
  }
  std::int64_t at(std::int64_t n, std::int64_t c, std::int64_t place) const {
    return last ? (n * places() + place) * sizes[1] + c : (n * sizes[1] + c) * places() + place;
  }
};
struct cudnnFilterStruct : cudnnTensorStruct {};

struct cudnnConvolutionStruct {
  Sizes padding, stride, dilation;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  int groups = 1;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

namespace {

using cuda_emulation::from;

enum class Pass { kForward, kData, kFilter };

int issued = 0, latest_algorithm = -1, asked = 0;  // the lock of the emulation holds for them

// By value: descriptors may be gone when the convolution runs.
struct Problem {
  Pass pass;
  cudnnTensorStruct x, y;
  cudnnFilterStruct w;
  cudnnConvolutionStruct how;

  cudnnStatus_t check() const {
    const std::size_t axes = x.sizes.size();
    if (axes < 4 || y.sizes.size() != axes || w.sizes.size() != axes || how.padding.size() + 2 != axes)
      return CUDNN_STATUS_BAD_PARAM;
    if (x.type != y.type || x.type != w.type || x.sizes[0] != y.sizes[0] || y.sizes[1] != w.sizes[0] ||
        x.sizes[1] != w.sizes[1] * how.groups || w.sizes[0] % how.groups != 0)
      return CUDNN_STATUS_BAD_PARAM;
    for (std::size_t i = 2; i < axes; ++i) {
      const int reach = (w.sizes[i] - 1) * how.dilation[i - 2] + 1;
      const int room = x.sizes[i] + 2 * how.padding[i - 2] - reach;
      if (room < 0 || y.sizes[i] != room / how.stride[i - 2] + 1) return CUDNN_STATUS_BAD_PARAM;
    }
    if ((how.compute == CUDNN_DATA_DOUBLE) != (x.type == CUDNN_DATA_DOUBLE)) return CUDNN_STATUS_NOT_SUPPORTED;
    if (x.last != y.last || x.last != w.last) return CUDNN_STATUS_NOT_SUPPORTED;
    const bool refused = x.last && (x.type == CUDNN_DATA_DOUBLE || (axes == 5 && pass == Pass::kData));
    return refused ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
  }
  std::size_t workspace() const { return 64 * static_cast<std::size_t>(y.sizes[1]); }

  // Where place `to` of y reads x under place `under` of the filter; -1: in the padding.
  std::int64_t place_in_x(std::int64_t to, std::int64_t under) const {
    std::int64_t place = 0, step = 1;
    for (std::size_t i = x.sizes.size() - 1; i >= 2; --i) {
      const std::int64_t at =
          to % y.sizes[i] * how.stride[i - 2] + under % w.sizes[i] * how.dilation[i - 2] - how.padding[i - 2];
      if (at < 0 || at >= x.sizes[i]) return -1;
      place += at * step;
      step *= x.sizes[i];
      to /= y.sizes[i];
      under /= w.sizes[i];
    }
    return place;
  }
  // visit(place in x, in w, in y) for every product.
  template <class Visit>
  void for_each(const Visit& visit) const {
    const int made = w.sizes[0] / how.groups;
    for (int n = 0; n < x.sizes[0]; ++n)
      for (int k = 0; k < w.sizes[0]; ++k)
        for (std::int64_t to = 0; to < y.places(); ++to)
          for (std::int64_t under = 0; under < w.places(); ++under) {
            const std::int64_t place = place_in_x(to, under);
            for (int c = 0; c < w.sizes[1] && place >= 0; ++c)
              visit(x.at(n, k / made * w.sizes[1] + c, place), w.at(k, c, under), y.at(n, k, to));
          }
  }
};

std::size_t elements(const cudnnTensorStruct& tensor) {
  return static_cast<std::size_t>(tensor.sizes[0] * tensor.sizes[1] * tensor.places());
}

// a and b: of x, w and y those that are read, in this order. result = alpha sums + beta result
template <class T, class Sum>
void run(const Problem& p, Sum alpha, const void* a, const void* b, Sum beta, void* result) {
  const T *const left = static_cast<const T*>(a), *const right = static_cast<const T*>(b);
  const bool rounds = p.x.type == CUDNN_DATA_FLOAT && p.how.math == CUDNN_DEFAULT_MATH;
  const auto product = [&](std::int64_t i, std::int64_t j) -> Sum {
    if (rounds) return cuda_emulation::in_tf32(from(left[i])) * cuda_emulation::in_tf32(from(right[j]));
    return from(left[i]) * from(right[j]);
  };
  const cudnnTensorStruct& target = p.pass == Pass::kForward ? p.y : p.pass == Pass::kData ? p.x : p.w;
  std::vector<Sum> sums(elements(target));
  p.for_each([&](std::int64_t x, std::int64_t w, std::int64_t y) {
    if (p.pass == Pass::kForward) sums[static_cast<std::size_t>(y)] += product(x, w);
    if (p.pass == Pass::kData) sums[static_cast<std::size_t>(x)] += product(w, y);
    if (p.pass == Pass::kFilter) sums[static_cast<std::size_t>(w)] += product(x, y);
  });
  T* const out = static_cast<T*>(result);
  for (std::size_t i = 0; i < sums.size(); ++i)
    cuda_emulation::to(out[i], alpha * sums[i] + (beta == Sum(0) ? Sum(0) : beta * from(out[i])));
}

// body.operator()<T>(alpha, beta) for the type.
template <class Body>
void visit(cudnnDataType_t type, double alpha, double beta, const Body& body) {
  const auto narrow = [](double value) { return static_cast<float>(value); };
  if (type == CUDNN_DATA_DOUBLE) return body.template operator()<double>(alpha, beta);
  if (type == CUDNN_DATA_HALF) return body.template operator()<cuda_emulation::Half>(narrow(alpha), narrow(beta));
  if (type == CUDNN_DATA_BFLOAT16) return body.template operator()<cuda_emulation::Brain>(narrow(alpha), narrow(beta));
  body.template operator()<float>(narrow(alpha), narrow(beta));
}

double factor(const void* value, cudnnDataType_t type) {
  return type == CUDNN_DATA_DOUBLE ? *static_cast<const double*>(value) : *static_cast<const float*>(value);
}

cudnnStatus_t issue(cudnnHandle_t handle, const char* name, std::function<void()> body) {
  cuda_emulation::Call call;
  cuda_emulation::Stream& stream = call.stream(handle->stream);
  if (stream.device != handle->device) return CUDNN_STATUS_BAD_PARAM;
  if (call.scheduler.failure(stream.device) != cudaSuccess) return CUDNN_STATUS_EXECUTION_FAILED;
  ++issued;
  call.scheduler.issue(stream, {name, stream.device, cuda_emulation::Reach::kDevice, std::move(body)});
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t ask(cudnnHandle_t handle, const Problem& problem, std::size_t* bytes) {
  if (!handle || !bytes) return CUDNN_STATUS_BAD_PARAM;
  const cudnnStatus_t status = problem.check();
  if (status == CUDNN_STATUS_SUCCESS) *bytes = problem.workspace();
  return status;
}

// As the library orders them: by the time that it expects.
template <class Proposal>
cudnnStatus_t propose(cudnnHandle_t handle, const Problem& problem, int most, int* count, Proposal* results) {
  if (!handle || !count || !results || most < 1) return CUDNN_STATUS_BAD_PARAM;
  if (const cudnnStatus_t status = problem.check(); status != CUDNN_STATUS_SUCCESS) return status;
  const cuda_emulation::Call call;
  ++asked;
  using Algorithm = decltype(results->algo);
  const cudnnMathType_t math = problem.how.math, other = CUDNN_TENSOR_OP_MATH;
  const std::size_t bytes = problem.workspace();
  const Proposal proposals[] = {
      {Algorithm(1), CUDNN_STATUS_NOT_SUPPORTED, 0.1F, bytes, CUDNN_DETERMINISTIC, math},
      {Algorithm(0), CUDNN_STATUS_SUCCESS, 0.2F, bytes, CUDNN_NON_DETERMINISTIC, math},
      {Algorithm(1), CUDNN_STATUS_SUCCESS, 0.3F, bytes, CUDNN_DETERMINISTIC, other},
      {Algorithm(1), CUDNN_STATUS_SUCCESS, 0.4F, std::size_t{1} << 40, CUDNN_DETERMINISTIC, math},
      {Algorithm(5), CUDNN_STATUS_SUCCESS, 0.5F, bytes, CUDNN_DETERMINISTIC, math},
      {Algorithm(1), CUDNN_STATUS_SUCCESS, 0.6F, bytes, CUDNN_DETERMINISTIC, math},
  };
  *count = std::min(most, static_cast<int>(std::size(proposals)));
  std::copy_n(proposals, *count, results);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t convolve(cudnnHandle_t handle, const char* name, const Problem& problem, int algorithm, const void* alpha,
                       const void* a, const void* b, void* workspace, std::size_t bytes, const void* beta,
                       void* result) {
  if (!handle || !alpha || !beta || !a || !b || !result) return CUDNN_STATUS_BAD_PARAM;
  if (const cudnnStatus_t status = problem.check(); status != CUDNN_STATUS_SUCCESS) return status;
  if (!workspace || bytes < problem.workspace()) return CUDNN_STATUS_BAD_PARAM;
  {
    const cuda_emulation::Call call;
    latest_algorithm = algorithm;
  }
  const cudnnDataType_t type = problem.x.type;
  return issue(handle, name, [=, scale = factor(alpha, type), keep = factor(beta, type)] {
    std::memset(workspace, 0x5a, problem.workspace());
    visit(type, scale, keep, [&]<class T>(auto times, auto plus) { run<T>(problem, times, a, b, plus, result); });
  });
}

template <class T>
cudnnStatus_t create(T** object) {
  *object = new T;
  return CUDNN_STATUS_SUCCESS;
}
template <class T>
cudnnStatus_t destroy(T* object) {
  delete object;
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

int emulated_cudnn_issued() {
  const cuda_emulation::Call call;
  return issued;
}
int emulated_cudnn_algorithm() {
  const cuda_emulation::Call call;
  return latest_algorithm;
}
int emulated_cudnn_asked() {
  const cuda_emulation::Call call;
  return asked;
}

const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS         ? "CUDNN_STATUS_SUCCESS"
         : status == CUDNN_STATUS_BAD_PARAM     ? "CUDNN_STATUS_BAD_PARAM"
         : status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                                : "CUDNN_STATUS_EXECUTION_FAILED";
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext{cuda_emulation::current_device()};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* tensor) { return create(tensor); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) { return destroy(tensor); }
cudnnStatus_t cudnnSetTensorNdDescriptorEx(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                           cudnnDataType_t type, int axes, const int* sizes) {
  return tensor->set(format, type, axes, sizes);
}
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* filter) { return create(filter); }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter) { return destroy(filter); }
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int axes, const int* sizes) {
  return filter->set(format, type, axes, sizes);
}
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* convolution) {
  return create(convolution);
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convolution) {
  return destroy(convolution);
}
cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t convolution, int axes, const int* padding,
                                              const int* stride, const int* dilation, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute) {
  if (axes < 2 || axes > 3) return CUDNN_STATUS_BAD_PARAM;
  for (int i = 0; i < axes; ++i)
    if (padding[i] < 0 || stride[i] < 1 || dilation[i] < 1) return CUDNN_STATUS_BAD_PARAM;
  if (mode != CUDNN_CROSS_CORRELATION || (compute != CUDNN_DATA_FLOAT && compute != CUDNN_DATA_DOUBLE))
    return CUDNN_STATUS_NOT_SUPPORTED;
  convolution->padding.assign(padding, padding + axes);
  convolution->stride.assign(stride, stride + axes);
  convolution->dilation.assign(dilation, dilation + axes);
  convolution->compute = compute;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t convolution, int groups) {
  convolution->groups = groups;
  return groups > 0 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t math) {
  convolution->math = math;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnAddTensor(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t a_tensor, const void* a,
                             const void* beta, cudnnTensorDescriptor_t c_tensor, void* c) {
  const cudnnTensorStruct from_tensor = *a_tensor, to_tensor = *c_tensor;
  if (!a || !c || from_tensor.type != to_tensor.type || from_tensor.sizes.size() != to_tensor.sizes.size())
    return CUDNN_STATUS_BAD_PARAM;
  if (from_tensor.sizes[1] != to_tensor.sizes[1]) return CUDNN_STATUS_BAD_PARAM;
  if (from_tensor.sizes[0] != 1 || from_tensor.places() != 1) return CUDNN_STATUS_NOT_SUPPORTED;  // by channels alone
  const cudnnDataType_t type = to_tensor.type;
  return issue(handle, "cudnnAddTensor", [=, scale = factor(alpha, type), keep = factor(beta, type)] {
    visit(type, scale, keep, [&]<class T>(auto times, auto plus) {
      for (int n = 0; n < to_tensor.sizes[0]; ++n)
        for (int k = 0; k < to_tensor.sizes[1]; ++k)
          for (std::int64_t place = 0; place < to_tensor.places(); ++place) {
            T& value = static_cast<T*>(c)[to_tensor.at(n, k, place)];
            cuda_emulation::to(value, times * from(static_cast<const T*>(a)[k]) + plus * from(value));
          }
    });
  });
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                      cudnnFilterDescriptor_t w,
                                                      cudnnConvolutionDescriptor_t convolution,
                                                      cudnnTensorDescriptor_t y, cudnnConvolutionFwdAlgo_t,
                                                      std::size_t* bytes) {
  return ask(handle, {Pass::kForward, *x, *y, *w, *convolution}, bytes);
}
cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x_tensor,
                                      const void* x, cudnnFilterDescriptor_t w_filter, const void* w,
                                      cudnnConvolutionDescriptor_t convolution, cudnnConvolutionFwdAlgo_t algorithm,
                                      void* workspace, std::size_t bytes, const void* beta,
                                      cudnnTensorDescriptor_t y_tensor, void* y) {
  return convolve(handle, "cudnnConvolutionForward", {Pass::kForward, *x_tensor, *y_tensor, *w_filter, *convolution},
                  algorithm, alpha, x, w, workspace, bytes, beta, y);
}
cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                     cudnnFilterDescriptor_t w,
                                                     cudnnConvolutionDescriptor_t convolution,
                                                     cudnnTensorDescriptor_t y, int most, int* count,
                                                     cudnnConvolutionFwdAlgoPerf_t* results) {
  return propose(handle, {Pass::kForward, *x, *y, *w, *convolution}, most, count, results);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                           cudnnTensorDescriptor_t dy,
                                                           cudnnConvolutionDescriptor_t convolution,
                                                           cudnnTensorDescriptor_t dx, cudnnConvolutionBwdDataAlgo_t,
                                                           std::size_t* bytes) {
  return ask(handle, {Pass::kData, *dx, *dy, *w, *convolution}, bytes);
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha, cudnnFilterDescriptor_t w_filter,
                                           const void* w, cudnnTensorDescriptor_t dy_tensor, const void* dy,
                                           cudnnConvolutionDescriptor_t convolution,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace, std::size_t bytes,
                                           const void* beta, cudnnTensorDescriptor_t dx_tensor, void* dx) {
  return convolve(handle, "cudnnConvolutionBackwardData",
                  {Pass::kData, *dx_tensor, *dy_tensor, *w_filter, *convolution}, algorithm, alpha, w, dy, workspace,
                  bytes, beta, dx);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                          cudnnTensorDescriptor_t dy,
                                                          cudnnConvolutionDescriptor_t convolution,
                                                          cudnnTensorDescriptor_t dx, int most, int* count,
                                                          cudnnConvolutionBwdDataAlgoPerf_t* results) {
  return propose(handle, {Pass::kData, *dx, *dy, *w, *convolution}, most, count, results);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                             cudnnTensorDescriptor_t dy,
                                                             cudnnConvolutionDescriptor_t convolution,
                                                             cudnnFilterDescriptor_t dw,
                                                             cudnnConvolutionBwdFilterAlgo_t, std::size_t* bytes) {
  return ask(handle, {Pass::kFilter, *x, *dy, *dw, *convolution}, bytes);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x_tensor,
                                             const void* x, cudnnTensorDescriptor_t dy_tensor, const void* dy,
                                             cudnnConvolutionDescriptor_t convolution,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace,
                                             std::size_t bytes, const void* beta, cudnnFilterDescriptor_t dw_filter,
                                             void* dw) {
  return convolve(handle, "cudnnConvolutionBackwardFilter",
                  {Pass::kFilter, *x_tensor, *dy_tensor, *dw_filter, *convolution}, algorithm, alpha, x, dy, workspace,
                  bytes, beta, dw);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                            cudnnTensorDescriptor_t dy,
                                                            cudnnConvolutionDescriptor_t convolution,
                                                            cudnnFilterDescriptor_t dw, int most, int* count,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t* results) {
  return propose(handle, {Pass::kFilter, *x, *dy, *dw, *convolution}, most, count, results);
}
}

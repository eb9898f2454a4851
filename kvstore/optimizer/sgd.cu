// Plain stochastic gradient descent on a CUDA device: the mathematics of sgd_rules.h, one pass over memory.
#include <cuda_runtime.h>
#include <paceline/detail/cuda_check.h>

#include <algorithm>

#include "optimizer/sgd_rules.h"

namespace paceline {
namespace {

constexpr int kThreads = 256;

__global__ void update(std::int64_t count, float rate, const float* gradient, float* weight) {
  const SgdRule::Bound<float> rule;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
    weight[i] -= rule(gradient[i], nullptr, rate);
}

class SgdOnCuda final : public Optimizer {
 public:
  explicit SgdOnCuda(std::unique_ptr<Optimizer> host) : host_(std::move(host)) {}
  std::vector<std::string> state_names() const override { return host_->state_names(); }
  void update(const Tile<float>& tile, const UpdateStep& step) const override { host_->update(tile, step); }
  void update(const Tile<double>& tile, const UpdateStep& step) const override { host_->update(tile, step); }
  StepSize step_size() const override { return host_->step_size(); }
  double worker_momentum() const override { return host_->worker_momentum(); }

  void update_cuda(const Tile<float>& arrays, const UpdateStep& step, void* stream) const override {
    if (arrays.count == 0) return;
    const std::int64_t blocks = std::min<std::int64_t>((arrays.count + kThreads - 1) / kThreads, 65535);
    const float rate = static_cast<float>(SgdRule().rate(step));
    paceline::update<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        arrays.count, rate, arrays.gradient, arrays.weight);
    detail::check_cuda(cudaGetLastError(), "[sgd] update");
  }

 private:
  std::unique_ptr<Optimizer> host_;
};

}  // namespace

std::unique_ptr<Optimizer> sgd_optimizer_on_cuda(std::unique_ptr<Optimizer> host) {
  return std::make_unique<SgdOnCuda>(std::move(host));
}

}  // namespace paceline

#pragma once
// The CUDA half of a TileOptimizer: its rule over whole arrays of a device, in one pass over memory. Everything else is
// the host's.

#include <cuda_runtime.h>
#include <paceline/detail/cuda_check.h>

#include <algorithm>

#include "optimizer/tile_optimizer.h"

namespace paceline {

// The host's optimizer with another update_cuda().
class OnCuda : public Optimizer {
 public:
  explicit OnCuda(std::unique_ptr<Optimizer> host) : host_(std::move(host)) {}
  std::vector<std::string> state_names() const override { return host_->state_names(); }
  void update(const Tile<float>& tile, const UpdateStep& step) const override { host_->update(tile, step); }
  void update(const Tile<double>& tile, const UpdateStep& step) const override { host_->update(tile, step); }
  StepSize step_size() const override { return host_->step_size(); }
  bool replaces() const override { return host_->replaces(); }
  bool decays_weights() const override { return host_->decays_weights(); }
  double worker_momentum() const override { return host_->worker_momentum(); }

 protected:
  const Optimizer& host() const { return *host_; }

 private:
  std::unique_ptr<Optimizer> host_;
};

// `slots`: the state arrays. The weight is multiplied by `kept` first.
template <class Bound, int kSlots>
__global__ void update_elements(const Bound bound, const std::array<float*, kSlots + 1> slots, std::int64_t count,
                                float rate, float kept, const float* gradient, float* weight) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    float values[kSlots + 1] = {};
    for (int s = 0; s < kSlots; ++s) values[s] = slots[s][i];
    weight[i] = weight[i] * kept - bound(gradient[i], values, rate);
    for (int s = 0; s < kSlots; ++s) slots[s][i] = values[s];
  }
}

// Of a host that is a TileOptimizer<Rule>.
template <class Rule>
class TileOnCuda : public OnCuda {
 public:
  using OnCuda::OnCuda;

  void update_cuda(const Tile<float>& arrays, const UpdateStep& step, void* stream) const override {
    constexpr int kThreads = 256;
    constexpr std::int64_t kMostBlocks = 4096;
    if (arrays.count == 0) return;
    const Rule& rule = static_cast<const TileOptimizer<Rule>&>(host()).rule();
    std::array<float*, Rule::kSlots + 1> slots{};
    for (int s = 0; s < Rule::kSlots; ++s) slots[s] = arrays.state[s];
    const auto blocks = static_cast<unsigned>(std::min((arrays.count + kThreads - 1) / kThreads, kMostBlocks));
    update_elements<typename Rule::template Bound<float>, Rule::kSlots>
        <<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            rule.template bind<float>(), slots, arrays.count, static_cast<float>(rule.rate(step)),
            static_cast<float>(kept(step)), arrays.gradient, arrays.weight);
    detail::check_cuda(cudaGetLastError(), "starting an optimizer");
  }

 protected:
  // What is left of a weight before the rule's step.
  virtual double kept(const UpdateStep&) const { return 1; }
};

}  // namespace paceline

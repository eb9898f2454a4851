#pragma once
// The CUDA half of a TileOptimizer: its rule over whole arrays of a device, many in one launch. Everything else is the
// host's.

#include <cuda_runtime.h>
#include <paceline/detail/cuda_check.h>
#include <paceline/detail/vectors.cuh>

#include <algorithm>
#include <array>
#include <limits>

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
  bool in_one_pass() const override { return host_->in_one_pass(); }
  bool decays_weights() const override { return host_->decays_weights(); }
  double worker_momentum() const override { return host_->worker_momentum(); }

 protected:
  const Optimizer& host() const { return *host_; }

 private:
  std::unique_ptr<Optimizer> host_;
};

// Arrays of one launch, as its argument: the blocks [first[i], first[i + 1]) work on the i-th.
template <int kSlots>
struct UpdatedArrays {
  static constexpr int kMost = 320;  // what a kernel's parameters have room for
  struct One {
    const float* gradient;
    float* weight;
    std::array<float*, kSlots + 1> slots;
    std::int64_t count;
    float rate, kept, weight_decay;
    bool wide;  // all arrays begin where vectors may
  };
  One arrays[kMost];
  int count;
  int first[kMost + 1];
  float rescale, bound;  // of the Preparation; bound: infinite where nothing is clipped
};

// Each weight becomes kept * weight - step(gradient, state, rate), or, where the rule replaces it, -step().
template <int kWidth, bool kReplaces, class Bound, int kSlots>
__device__ void update_vector(const Bound& step, const UpdatedArrays<kSlots>& all,
                              const typename UpdatedArrays<kSlots>::One& one, std::int64_t i) {
  using Numbers = detail::Vector<float, kWidth>;
  const Numbers gradients = detail::read_vector<kWidth>(one.gradient + i);
  Numbers weights = detail::read_vector<kWidth>(one.weight + i);
  Numbers state[kSlots + 1];
  for (int s = 0; s < kSlots; ++s) state[s] = detail::read_vector<kWidth>(one.slots[s] + i);
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const float weight = weights.at[k];
    float gradient = gradients.at[k] * all.rescale;
    if (gradient > all.bound) gradient = all.bound;
    if (gradient < -all.bound) gradient = -all.bound;
    if (one.weight_decay != 0) gradient += one.weight_decay * weight;
    float values[kSlots + 1] = {};
    for (int s = 0; s < kSlots; ++s) values[s] = state[s].at[k];
    const float change = step(gradient, values, one.rate);
    weights.at[k] = kReplaces ? -change : weight * one.kept - change;
    for (int s = 0; s < kSlots; ++s) state[s].at[k] = values[s];
  }
  detail::write_vector(one.weight + i, weights);
  for (int s = 0; s < kSlots; ++s) detail::write_vector(one.slots[s] + i, state[s]);
}

constexpr int kUpdateWidth = detail::kVectorWidth<float>;

template <class Bound, int kSlots, bool kReplaces>
__global__ void update_elements(const Bound step, const __grid_constant__ UpdatedArrays<kSlots> all) {
  const int block = static_cast<int>(blockIdx.x);
  int number = 0;
  for (int beyond = all.count; beyond - number > 1;) {
    const int middle = (number + beyond) / 2;
    (block < all.first[middle] ? beyond : number) = middle;
  }
  const auto& one = all.arrays[number];
  const std::int64_t mine = std::int64_t{block - all.first[number]} * blockDim.x + threadIdx.x;
  const std::int64_t stride = std::int64_t{all.first[number + 1] - all.first[number]} * blockDim.x;
  const std::int64_t vectors = one.wide ? one.count / kUpdateWidth : 0;
  for (std::int64_t v = mine; v < vectors; v += stride)
    update_vector<kUpdateWidth, kReplaces>(step, all, one, v * kUpdateWidth);
  for (std::int64_t i = vectors * kUpdateWidth + mine; i < one.count; i += stride)
    update_vector<1, kReplaces>(step, all, one, i);
}

// rate(step) and kept(step): what is the same for all elements of a key.
template <int kSlots, bool kReplaces = false, class Bound, class Rate, class Kept>
void update_arrays(const Bound& bound, std::span<const DeviceUpdate> updates, const Preparation& preparation,
                   Device device, void* stream, const Rate& rate, const Kept& kept) {
  using Arrays = UpdatedArrays<kSlots>;
  constexpr int kThreads = 256;
  constexpr std::int64_t kMostBlocks = 2048;  // of one array
  detail::select_cuda_device(device.index);
  while (!updates.empty()) {
    Arrays all{};
    all.rescale = static_cast<float>(preparation.rescale);
    all.bound = preparation.clip_gradient > 0 ? static_cast<float>(preparation.clip_gradient)
                                              : std::numeric_limits<float>::infinity();
    const std::size_t number = std::min<std::size_t>(updates.size(), Arrays::kMost);
    for (std::size_t i = 0; i < number; ++i) {
      const Tile<float>& arrays = updates[i].arrays;
      auto& one = all.arrays[i];
      one.gradient = arrays.gradient;
      one.weight = arrays.weight;
      one.wide = detail::is_aligned<kUpdateWidth>(one.gradient) && detail::is_aligned<kUpdateWidth>(one.weight);
      for (int s = 0; s < kSlots; ++s) {
        one.slots[s] = arrays.state[s];
        one.wide = one.wide && detail::is_aligned<kUpdateWidth>(one.slots[s]);
      }
      one.count = arrays.count;
      one.rate = static_cast<float>(rate(updates[i].step));
      one.kept = static_cast<float>(kept(updates[i].step));
      one.weight_decay = static_cast<float>(preparation.weight_decay * updates[i].step.decay_factor);
      constexpr std::int64_t kElements = kThreads * kUpdateWidth;
      const std::int64_t blocks = std::min((arrays.count + kElements - 1) / kElements, kMostBlocks);
      all.first[i + 1] = all.first[i] + static_cast<int>(blocks);
    }
    all.count = static_cast<int>(number);
    updates = updates.subspan(number);
    if (all.first[number] == 0) continue;
    update_elements<Bound, kSlots, kReplaces>
        <<<static_cast<unsigned>(all.first[number]), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(bound, all);
    detail::check_cuda(cudaGetLastError(), "starting an optimizer");
  }
}

// Of a host that is a TileOptimizer<Rule>.
template <class Rule>
class TileOnCuda : public OnCuda {
 public:
  using OnCuda::OnCuda;

  void update_cuda(std::span<const DeviceUpdate> updates, const Preparation& preparation, Device device,
                   void* stream) const override {
    const Rule& rule = static_cast<const TileOptimizer<Rule>&>(host()).rule();
    update_arrays<Rule::kSlots>(
        rule.template bind<float>(), updates, preparation, device, stream,
        [&](const UpdateStep& step) { return rule.rate(step); }, [this](const UpdateStep& step) { return kept(step); });
  }

 protected:
  // What is left of a weight before the rule's step.
  virtual double kept(const UpdateStep&) const { return 1; }
};

}  // namespace paceline

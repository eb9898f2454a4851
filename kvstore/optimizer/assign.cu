#include "optimizer/on_cuda.cuh"

namespace paceline {
namespace {

class AssignOnCuda final : public OnCuda {
 public:
  using OnCuda::OnCuda;

  void update_cuda(const Tile<float>& arrays, const UpdateStep&, void* stream) const override {
    detail::check_cuda(
        cudaMemcpyAsync(arrays.weight, arrays.gradient, static_cast<std::size_t>(arrays.count) * sizeof(float),
                        cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)),
        "copying weights");
  }
};

}  // namespace

std::unique_ptr<Optimizer> assign_optimizer_on_cuda(std::unique_ptr<Optimizer> host) {
  return std::make_unique<AssignOnCuda>(std::move(host));
}

}  // namespace paceline

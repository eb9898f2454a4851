#include <paceline/host_device.h>

#include "optimizer/on_cuda.cuh"

namespace paceline {
namespace {

struct Take {
  PACELINE_HOST_DEVICE float operator()(float gradient, float*, float) const { return -gradient; }
};

class AssignOnCuda final : public OnCuda {
 public:
  using OnCuda::OnCuda;

  void update_cuda(std::span<const DeviceUpdate> updates, const Preparation& preparation, Device device,
                   void* stream) const override {
    const auto same = [](const UpdateStep&) { return 1.0; };
    update_arrays<0, true>(Take{}, updates, preparation, device, stream, same, same);
  }
};

}  // namespace

std::unique_ptr<Optimizer> assign_optimizer_on_cuda(std::unique_ptr<Optimizer> host) {
  return std::make_unique<AssignOnCuda>(std::move(host));
}

}  // namespace paceline

#include "optimizer/adam_rule.h"
#include "optimizer/on_cuda.cuh"

namespace paceline {
namespace {

class AdamWOnCuda final : public TileOnCuda<AdamRule> {
 public:
  using TileOnCuda::TileOnCuda;

 private:
  double kept(const UpdateStep& step) const override { return static_cast<const AdamW&>(host()).kept(step); }
};

}  // namespace

std::unique_ptr<Optimizer> adamw_optimizer_on_cuda(std::unique_ptr<Optimizer> host) {
  return std::make_unique<AdamWOnCuda>(std::move(host));
}

}  // namespace paceline

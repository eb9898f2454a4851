// Each push as it arrives, corrected for its delay; with a bound (stale-synchronous), no worker computes more than
// `bound` steps ahead of the slowest.
#include <paceline/mode.h>

#include <limits>

namespace paceline {
namespace {

class DistAsync final : public Mode {
 public:
  explicit DistAsync(std::int64_t bound) : bound_(bound) {}
  std::vector<std::string> keys() const override { return {"bound"}; }
  bool synchronous() const override { return false; }
  bool may_pull(const Progress& progress) const override { return progress.mine - progress.slowest <= bound_; }
  std::string default_staleness(const std::string& optimizer) const override {
    return optimizer == "momentum" || optimizer == "nesterov" ? "dana+gap_aware" : "gap_aware";
  }

 private:
  const std::int64_t bound_;
};

}  // namespace

std::unique_ptr<Mode> make_dist_async_mode(const Options& options) {
  const auto bound = options.get("bound", std::numeric_limits<std::int64_t>::max());
  require(bound >= 0, "bound is ", bound, ", expected at least 0 steps");
  return std::make_unique<DistAsync>(bound);
}

}  // namespace paceline

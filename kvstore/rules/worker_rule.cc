#include <paceline/optimizer.h>
#include <paceline/staleness.h>
#include <paceline/worker_rule.h>

#include "worker_rule/rules.h"

namespace paceline {
namespace {

// Combines a rule that adds momentum to gradients with a rule that predicts from pulled weights.
class Both final : public WorkerRule {
 public:
  Both(std::unique_ptr<WorkerRule> momentum, std::unique_ptr<WorkerRule> prediction)
      : momentum_(std::move(momentum)), prediction_(std::move(prediction)) {}

  NDArray prepare(const std::string& key, const NDArray& gradient, const NDArray& weight) override {
    return momentum_->prepare(key, gradient, weight);
  }
  bool predicts() const override { return true; }
  void pulled(const std::string& key, std::span<const PulledRun> runs, std::int64_t pushes,
              const NDArray& weight) override {
    prediction_->pulled(key, runs, pushes, weight);
  }
  NamedArrays state() const override { return momentum_->state(); }
  void check(const NamedArrays& state) const override { momentum_->check(state); }
  void load(const NamedArrays& state) override { momentum_->load(state); }

 private:
  std::unique_ptr<WorkerRule> momentum_, prediction_;
};

}  // namespace

std::unique_ptr<WorkerRule> make_worker_rule(const Spec& optimizer, const std::string& policy, const Options& options) {
  std::unique_ptr<WorkerRule> momentum, prediction;
  if (has_part(policy, "predict")) prediction = make_predict_rule(options);
  if (has_part(policy, "dana")) {
    const double factor = make_optimizer(optimizer)->worker_momentum();
    require(factor >= 0, "staleness policy 'dana' keeps the optimizer's momentum at the workers, which optimizer '",
            optimizer.name, "' cannot give up; use gap_aware with it");
    momentum = make_dana_rule(factor, Preparation::parse(optimizer.options), Multipliers::parse(optimizer.options));
  }
  if (momentum && prediction) return std::make_unique<Both>(std::move(momentum), std::move(prediction));
  return momentum ? std::move(momentum) : std::move(prediction);
}

}  // namespace paceline

#pragma once
// The rules that make_worker_rule() combines.

#include <paceline/optimizer.h>
#include <paceline/worker_rule.h>

#include <memory>

namespace paceline {

std::unique_ptr<WorkerRule> make_dana_rule(double momentum, const Preparation& preparation,
                                           const Multipliers& multipliers);
std::unique_ptr<WorkerRule> make_predict_rule(const Options& options);

}  // namespace paceline

// The servers' side of local training. For `average` and `federated`, workers push differences of weights, which the
// servers apply in rounds. For `elastic`, the servers' weights are the centre, which each push moves when it arrives.
// The workers' side is worker/servers/averaging.cc.
#include <paceline/mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "mode/averaging_options.h"

namespace paceline {
namespace {

class DistLocal final : public Mode {
 public:
  explicit DistLocal(const AveragingOptions& options) : options_(options) {}
  std::vector<std::string> keys() const override { return {"steps", "averaging", "alpha", "fraction", "seed"}; }
  ModeTraits traits() const override {
    const bool elastic = options_.form == AveragingOptions::Form::kElastic;
    return {.applies = elastic ? Applies::kAtOnce : Applies::kInRounds, .holds_tables = false, .holds_pulls = false};
  }
  bool round_complete(const Round& round) const override { return round.contributed >= round.expected; }
  const AveragingOptions* averaging() const override { return &options_; }

 private:
  const AveragingOptions options_;
};

}  // namespace

AveragingOptions AveragingOptions::parse(const Options& options) {
  AveragingOptions result;
  const std::string form = options.get("averaging", "average");
  result.steps = options.get("steps", result.steps);
  result.alpha = options.get("alpha", result.alpha);
  result.fraction = options.get("fraction", result.fraction);
  result.seed = options.get("seed", result.seed);
  require(form == "average" || form == "elastic" || form == "federated", "averaging is '", form,
          "'; known: average elastic federated");
  if (form == "elastic") result.form = Form::kElastic;
  if (form == "federated") result.form = Form::kFederated;
  require(result.steps >= 1, "steps is ", result.steps, ", expected at least 1");
  require(!options.has("alpha") || form == "elastic", "alpha belongs to averaging=elastic");
  require(!options.has("alpha") || (result.alpha > 0 && result.alpha < 1), "alpha is ", result.alpha,
          ", expected more than 0 and less than 1");
  require((!options.has("fraction") && !options.has("seed")) || form == "federated",
          "fraction and seed belong to averaging=federated");
  require(result.fraction > 0 && result.fraction <= 1, "fraction is ", result.fraction,
          ", expected more than 0 and at most 1");
  return result;
}

int AveragingOptions::chosen(int workers) const {
  return std::clamp(static_cast<int>(std::lround(fraction * workers)), 1, workers);
}

bool AveragingOptions::takes_part(std::uint64_t round, int rank, int workers) const {
  if (form != Form::kFederated || chosen(workers) == workers) return true;
  // All workers draw the same permutation of the ranks. The first ranks of the permutation take part.
  std::seed_seq seeds{static_cast<std::uint64_t>(seed), round};
  std::mt19937 random(seeds);
  std::vector<int> ranks(static_cast<std::size_t>(workers));
  std::iota(ranks.begin(), ranks.end(), 0);
  for (std::size_t i = 0; i < static_cast<std::size_t>(chosen(workers)); ++i) {
    std::swap(ranks[i], ranks[i + random() % (ranks.size() - i)]);
    if (ranks[i] == rank) return true;
  }
  return false;
}

std::unique_ptr<Mode> make_dist_local_mode(const Options& options) {
  return std::make_unique<DistLocal>(AveragingOptions::parse(options));
}

}  // namespace paceline

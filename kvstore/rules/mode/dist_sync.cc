// The gradients that the live workers push in one step form a round. The servers average or sum them in rank order, and
// apply the result once. A round does not wait for the `backup` slowest workers (Chen et al. 2016). Their pushes for
// the round come too late and are refused.
#include <paceline/mode.h>

#include <algorithm>

namespace paceline {
namespace {

class DistSync final : public Mode {
 public:
  DistSync(int backup, Aggregate aggregate) : backup_(backup), aggregate_(aggregate) {}
  std::vector<std::string> keys() const override { return {"aggregate", "backup"}; }
  void check_workers(int at_start) const override {
    require(backup_ < at_start, "backup is ", backup_, " and the job has ", at_start,
            " workers: rounds that wait for none of them are no rounds; expected less than ", at_start);
  }
  ModeTraits traits() const override {
    if (backup_ > 0) return {.applies = Applies::kWithBackups, .holds_tables = false};
    return {.applies = Applies::kInRounds, .lockstep = true};
  }
  bool round_complete(const Round& round) const override {
    return round.contributed >= std::max(1, round.expected - backup_);
  }
  Aggregate aggregate() const override { return aggregate_; }

 private:
  const int backup_;
  const Aggregate aggregate_;
};

}  // namespace

std::unique_ptr<Mode> make_dist_sync_mode(const Options& options) {
  const auto backup = options.get("backup", 0);
  require(backup >= 0, "backup is ", backup, ", expected at least 0 workers");
  return std::make_unique<DistSync>(backup, parse_aggregate(options, Aggregate::kMean));
}

}  // namespace paceline

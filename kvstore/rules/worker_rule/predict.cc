// Weight prediction, as in SpecTrain and XPipe. A worker computes its gradient at the weights that it expects when the
// gradient is applied. It moves the pulled weights along a smoothed mean of the updates between its pulls. This
// direction suits any optimizer and any number of workers. The distance follows from the measured delay of the worker's
// pushes.
#include <paceline/error.h>
#include <paceline/kernel.h>
#include <paceline/mutex.h>

#include <map>
#include <memory>

#include "worker_rule/rules.h"

namespace paceline {
namespace {

class Predict final : public WorkerRule {
 public:
  explicit Predict(const Options& options)
      : smoothing_(options.get("predict_smoothing", 0.5)), steps_(options.get("predict_steps", std::int64_t{1})) {
    require(smoothing_ >= 0 && smoothing_ < 1, "predict_smoothing is ", smoothing_, ", expected a number in [0, 1)");
    require(steps_ >= 1, "predict_steps is ", steps_, ", expected at least 1");
  }

  NDArray prepare(const std::string&, const NDArray& gradient, const NDArray&) override { return gradient; }
  bool predicts() const override { return true; }

  void pulled(const std::string& key, std::span<const PulledRun> runs, std::int64_t pushes,
              const NDArray& weight) override {
    std::shared_ptr<Slot> slot;
    {
      Lock lock(mutex_);
      std::shared_ptr<Slot>& known = slots_[key];
      if (!known) known = std::make_shared<Slot>();
      slot = known;
    }
    slot->runs.resize(runs.size());
    visit_floating(weight.dtype(), "predict", [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
        std::vector<T>& before = of<T>(slot->before);
        std::vector<T>& direction = of<T>(slot->direction);
        before.resize(static_cast<std::size_t>(weight.size()));
        direction.resize(before.size());
        for (std::size_t r = 0; r < runs.size(); ++r)
          move_on(runs[r], pushes, slot->runs[r], before.data() + runs[r].begin, direction.data() + runs[r].begin,
                  static_cast<T*>(weight.data()) + runs[r].begin);
      }
    });
  }

  // The prediction begins anew with each load, because no update has led from the weights before to those after it.
  NamedArrays state() const override { return {}; }
  void check(const NamedArrays& state) const override {
    if (!state.empty()) throw InvalidArgument("[predict] has no state '" + state.front().first + "'");
  }
  void load(const NamedArrays& state) override {
    check(state);
    Lock lock(mutex_);
    slots_.clear();
  }

 private:
  struct Run {
    int pulls = 0;
    std::uint64_t version = 0;  // at the last pull
    double delay = 0;           // moving average of the delays of pushes
  };
  template <class T>
  using Values = std::vector<T>;
  struct Slot {
    std::vector<Run> runs;
    std::pair<Values<float>, Values<double>> before, direction;  // only the vectors of the weights' type are used
  };
  template <class T>
  static std::vector<T>& of(std::pair<Values<float>, Values<double>>& values) {
    return std::get<std::vector<T>>(values);
  }

  template <class T>
  void move_on(const PulledRun& now, std::int64_t pushes, Run& run, T* before, T* direction, T* weight) const {
    const std::int64_t count = now.end - now.begin;
    const auto updates = static_cast<double>(now.version) - static_cast<double>(run.version);
    const bool first = run.pulls == 0 || updates <= 0;  // loading a checkpoint may have lowered the version
    double distance = 0;
    if (!first) {
      constexpr double kKept = 0.9;
      const double delay = std::max(0.0, updates - static_cast<double>(pushes));
      run.delay = run.pulls == 1 ? delay : kKept * run.delay + (1 - kKept) * delay;
      distance = static_cast<double>(steps_) * (run.delay + 1) - 1;
    }
    const T kept = static_cast<T>(run.pulls <= 1 ? 0 : smoothing_);
    const T per_update = static_cast<T>(first ? 0 : 1 / updates);
    const T far = static_cast<T>(distance);
    for (std::int64_t i = 0; i < count; ++i) {
      const T here = weight[i];
      if (!first) direction[i] = kept * direction[i] + (1 - kept) * per_update * (here - before[i]);
      before[i] = here;
      if (distance > 0) weight[i] = here + far * direction[i];
    }
    run.pulls = first ? 1 : 2;
    run.version = now.version;
  }

  const double smoothing_;
  const std::int64_t steps_;
  Mutex mutex_;
  // Only the task that pulls a key uses its slot. The task shares the slot, because a load may drop it meanwhile.
  std::map<std::string, std::shared_ptr<Slot>> slots_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<WorkerRule> make_predict_rule(const Options& options) { return std::make_unique<Predict>(options); }

}  // namespace paceline

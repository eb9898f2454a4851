#pragma once
// Staleness policies: what a server does to a gradient that was computed from old weights. Chosen by name and combined
// with '+', in order: `dana+gap_aware`. Users may pass an object of their own in StoreOptions.
// Sources: Zhang et al. 2016 (inverse delay), Mishchenko et al. 2022 (delay-adaptive steps), Zheng et al. 2017 (delay
// compensation), Barkai et al. 2020 (gap aware), Hakimi et al. 2019 (DANA).

#include <paceline/catalog.h>
#include <paceline/host_device.h>
#include <paceline/optimizer.h>
#include <paceline/options.h>
#include <paceline/tile.h>

#include <memory>
#include <string>
#include <vector>

namespace paceline {

// What a policy knows of one push, the same for every element of the slice.
struct StaleContext {
  std::int64_t delay = 0;     // other updates that came between pull and push
  double learning_rate = 0;   // that will be used
  double peak_rate = 0;       // the largest of the schedule
  StepSize step_size;         // of the optimizer
  std::int64_t count = 0;     // updates the policy's state has seen before this one
  std::int64_t examples = 0;  // the gradient is the mean over that many
  int workers = 1;            // live workers
};

// Corrects tile.gradient in place. A delay of 0 must leave it bit for bit as it is. Thread-safe (constant).
class Staleness {
 public:
  virtual ~Staleness() = default;
  // Per-element state, as in Optimizer; owned by the slice, shared by all workers.
  virtual std::vector<std::string> state_names() const { return {}; }
  // True: the server keeps, per worker and slice, the weights that worker pulled (snapshots shared between workers that
  // pulled the same version). The memory it costs is reported when there are weights.
  virtual bool needs_pulled() const { return false; }
  // False: the push is refused (policy `discard`), counted and reported.
  virtual bool accepts(const StaleContext&) const { return true; }
  // False: correct() would change nothing, neither the gradient nor a state.
  virtual bool corrects(const StaleContext&) const { return true; }
  virtual void correct(const Tile<float>& tile, const StaleContext& context) const = 0;
  virtual void correct(const Tile<double>& tile, const StaleContext& context) const = 0;
};

// `inverse_delay`, `delay_compensated:lambda=2` or `dana+gap_aware`; options hold for every part that knows them. The
// worker's halves of `dana` and `predict` are a WorkerRule; their server halves are the identity. Throws
// InvalidArgument.
std::unique_ptr<Staleness> make_staleness(const std::string& policy, const Options& options);
const Catalog<std::unique_ptr<Staleness> (*)(const Options&)>& staleness_catalog();
// "dana+gap_aware" -> {"dana", "gap_aware"}
std::vector<std::string> policy_parts(const std::string& policy);
bool has_part(const std::string& policy, const std::string& part);

// One element of a tile, for policies without state written as a function of one number.
template <class T>
struct StaleElement {
  T weight, pulled;
  StaleContext context;
};

namespace detail {
template <class Rule>
class ElementPolicy final : public Staleness {
 public:
  ElementPolicy(Rule rule, bool needs_pulled) : rule_(rule), needs_pulled_(needs_pulled) {}
  bool needs_pulled() const override { return needs_pulled_; }
  bool corrects(const StaleContext& context) const override { return context.delay != 0; }
  void correct(const Tile<float>& tile, const StaleContext& context) const override { run(tile, context); }
  void correct(const Tile<double>& tile, const StaleContext& context) const override { run(tile, context); }

 private:
  template <class T>
  void run(const Tile<T>& tile, const StaleContext& context) const {
    if (context.delay == 0) return;
    for (std::int64_t i = 0; i < tile.count; ++i) {
      const T pulled = tile.pulled ? tile.pulled[i] : tile.weight[i];
      tile.gradient[i] = rule_(tile.gradient[i], StaleElement<T>{tile.weight[i], pulled, context});
    }
  }

  Rule rule_;
  bool needs_pulled_;
};
}  // namespace detail

// Makes a policy of a functor `T operator()(T gradient, const StaleElement<T>&) const`, usable on CPU and CUDA.
template <class Rule>
std::unique_ptr<Staleness> element_rule(Rule rule = {}, bool needs_pulled = true) {
  return std::make_unique<detail::ElementPolicy<Rule>>(rule, needs_pulled);
}

}  // namespace paceline

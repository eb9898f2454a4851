#pragma once
// Staleness policies: what a server does to a gradient that was computed from old weights. A mode names one policy, or
// several joined by '+', as `dana+gap_aware`. They act in the order in which the mode names them. Users may pass a
// policy of their own (extensions.h). Sources: Zhang et al. 2016 (inverse delay), Mishchenko et al. 2022
// (delay-adaptive steps), Zheng et al. 2017 (delay compensation), Barkai et al. 2020 (gap aware), Hakimi et al. 2019
// (DANA).

#include <paceline/catalog.h>
#include <paceline/extensions.h>
#include <paceline/host_device.h>
#include <paceline/optimizer.h>
#include <paceline/options.h>
#include <paceline/tile.h>

#include <memory>
#include <string>
#include <vector>

namespace paceline {

// What a policy knows about one push. The values are the same for every element of the slice.
struct StaleContext {
  std::int64_t delay = 0;     // the number of other updates between pull and push
  double learning_rate = 0;   // learning rate of this update
  double peak_rate = 0;       // the largest learning rate of the schedule
  StepSize step_size;         // step size of the optimizer
  std::int64_t count = 0;     // updates that the policy's state has seen before this one
  std::int64_t examples = 0;  // number of examples that the gradient is the mean of
  int workers = 1;            // the number of live workers
  double factor = 1;          // result of Staleness::factor() for the members above
};

// The numbers of one update that the C library may round differently on another processor. A process that repeats the
// update of another process uses the numbers of that process, and gets the same bits.
struct ResolvedScalars {
  static constexpr double kUnresolved = -1;  // learning rate of scalars that are not resolved
  double learning_rate = kUnresolved;        // learning rate of the update
  double factor = 1;                         // result of Staleness::factor() for the update
  // Are the numbers known?
  bool resolved() const { return learning_rate >= 0; }
};

// A staleness policy. A policy never changes, so it is thread-safe. The slices own the state arrays, which change.
class Staleness {
 public:
  virtual ~Staleness() = default;
  // The names of state arrays, as in Optimizer. All workers share the arrays of a slice.
  virtual std::vector<std::string> state_names() const { return {}; }
  // True: for each worker and slice, the server keeps the weights that the worker pulled. Workers that pulled the same
  // version share one copy. The server logs how much memory the copies can take.
  virtual bool needs_pulled() const { return false; }
  // False: the push is refused, counted and reported, as `discard` does.
  virtual bool accepts(const StaleContext&) const { return true; }
  // A number that correct() needs and the C library computes, such as a power of the delay. correct() finds it in
  // StaleContext::factor. It must not depend on `count`, because rows of a table with the same delay share it. An
  // update carries one factor. make_staleness() therefore throws InvalidArgument if two policies of a name such as
  // `a+b` have factors. It tries some updates to find out whether a policy has one. If a policy shows a factor only
  // later, the update throws.
  virtual double factor(const StaleContext&) const { return 1; }
  // False: correct() would change nothing, neither the gradient nor a state.
  virtual bool corrects(const StaleContext&) const { return true; }
  // Corrects tile.gradient in place, and may update tile.state. With a delay of 0, no bit of the gradient may change.
  virtual void correct(const Tile<float>& tile, const StaleContext& context) const = 0;
  virtual void correct(const Tile<double>& tile, const StaleContext& context) const = 0;
};

// Makes the policy of a name such as `inverse_delay` or `dana+gap_aware`, whose parts may be of `own`. Each part of the
// library takes the options that it knows. `dana` and `predict` work at the worker, as WorkerRules, and do nothing at
// the server. Throws InvalidArgument listing the known policies or options, and for two different policies with
// factors.
std::unique_ptr<Staleness> make_staleness(const std::string& policy, const Options& options,
                                          const Extensions& own = {});
// Every policy by name.
const Catalog<std::unique_ptr<Staleness> (*)(const Options&)>& staleness_catalog();
// The parts of a name: {"dana", "gap_aware"} for "dana+gap_aware".
std::vector<std::string> policy_parts(const std::string& policy);
// Is `part` one of the parts of `policy`?
bool has_part(const std::string& policy, const std::string& part);

// What the functor of element_rule() gets for one element.
template <class T>
struct StaleElement {
  // The weight now, and as the worker pulled it. If the server has not kept the pulled weight, both are the weight now.
  T weight, pulled;
  StaleContext context;  // what is known about the push
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

// Makes a policy without state from a functor `T operator()(T gradient, const StaleElement<T>&) const`, for float and
// double. The functor is not called for a delay of 0. `needs_pulled`: the functor reads StaleElement::pulled.
template <class Rule>
std::unique_ptr<Staleness> element_rule(Rule rule = {}, bool needs_pulled = true) {
  return std::make_unique<detail::ElementPolicy<Rule>>(rule, needs_pulled);
}

}  // namespace paceline

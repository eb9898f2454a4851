#include <paceline/staleness.h>

#include <algorithm>

#include "own_objects.h"

namespace paceline {
namespace {

// Runs several policies on the same tile, one after the other.
class Chain final : public Staleness {
 public:
  void add(const std::string& name, std::shared_ptr<const Staleness> part, bool alone) {
    const bool factor = !alone && has_factor(*part);
    if (factor) {
      require(with_factor_.empty() || with_factor_ == name, "the staleness policies ", with_factor_, " and ", name,
              " cannot be combined: each of them has a factor, and an update carries one");
      with_factor_ = name;
    }
    for (const std::string& state : part->state_names()) names_.push_back(str(name, "_", state));
    parts_.push_back({name, static_cast<int>(part->state_names().size()), factor, std::move(part)});
  }
  std::vector<std::string> state_names() const override { return names_; }
  bool needs_pulled() const override {
    for (const Part& part : parts_)
      if (part.policy->needs_pulled()) return true;
    return false;
  }
  bool accepts(const StaleContext& context) const override {
    for (const Part& part : parts_)
      if (!part.policy->accepts(context)) return false;
    return true;
  }
  // Parts of the same name have the same options, and so the same factor.
  double factor(const StaleContext& context) const override {
    if (parts_.size() == 1) return parts_.front().policy->factor(context);
    double factor = 1;
    for (const Part& part : parts_) {
      const double own = part.policy->factor(context);
      if (part.has_factor) factor = own;
      require(part.has_factor || own == 1, "the staleness policy ", part.name, " has the factor ", own,
              " in this update, but 1 in those that were tried: it cannot be combined with other policies");
    }
    return factor;
  }
  bool corrects(const StaleContext& context) const override {
    for (const Part& part : parts_)
      if (part.policy->corrects(context)) return true;
    return false;
  }
  void correct(const Tile<float>& tile, const StaleContext& context) const override { run(tile, context); }
  void correct(const Tile<double>& tile, const StaleContext& context) const override { run(tile, context); }

 private:
  struct Part {
    std::string name;
    int states;
    bool has_factor;
    std::shared_ptr<const Staleness> policy;
  };
  // Tries some updates, because a factor may be 1 in many.
  static bool has_factor(const Staleness& policy) {
    StaleContext context;
    context.peak_rate = 0.1;
    context.examples = 32;
    for (const std::int64_t delay : {0, 1, 2, 4, 16, 256, 65536})
      for (const int workers : {1, 16})
        for (const double rate : {0.1, 0.03}) {
          context.delay = delay;
          context.workers = workers;
          context.learning_rate = rate;
          if (policy.factor(context) != 1) return true;
        }
    return false;
  }
  template <class T>
  void run(Tile<T> tile, const StaleContext& context) const {
    if (parts_.size() == 1) return parts_.front().policy->correct(tile, context);
    StaleContext without_factor = context;
    without_factor.factor = 1;
    for (const Part& part : parts_) {
      part.policy->correct(tile, part.has_factor ? context : without_factor);
      tile.state += part.states;
    }
  }

  std::vector<Part> parts_;
  std::vector<std::string> names_;
  std::string with_factor_;  // the name of the parts that have a factor
};

}  // namespace

std::vector<std::string> policy_parts(const std::string& policy) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= policy.size();) {
    const std::size_t end = std::min(policy.find('+', begin), policy.size());
    parts.push_back(policy.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool has_part(const std::string& policy, const std::string& part) {
  const std::vector<std::string> parts = policy_parts(policy);
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

std::unique_ptr<Staleness> make_staleness(const std::string& policy, const Options& options, const Extensions& own) {
  auto chain = std::make_unique<Chain>();
  const std::vector<std::string> parts = policy_parts(policy);
  for (const std::string& name : parts)
    chain->add(name, make_object(own.policies, staleness_catalog(), name, options), parts.size() == 1);
  options.reject_unknown("staleness policy '" + policy + "'");
  return chain;
}

}  // namespace paceline

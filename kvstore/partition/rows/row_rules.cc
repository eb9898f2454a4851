#include "rows/row_rules.h"

namespace paceline {

std::shared_ptr<const RowRules> RowRules::make(const Spec& optimizer, const std::string& policy, const Options& options,
                                               const Extensions& own) {
  auto rules = std::make_shared<RowRules>();
  rules->optimizer = make_optimizer(optimizer);
  rules->staleness = make_staleness(policy, options, own);
  rules->preparation = Preparation::parse(optimizer.options, *rules->optimizer);
  rules->rate = LearningRate::parse(optimizer.options);
  rules->multipliers = Multipliers::parse(optimizer.options);
  rules->state_names = rules->optimizer->state_names();
  rules->optimizer_states = rules->state_names.size();
  for (const std::string& name : rules->staleness->state_names()) rules->state_names.push_back(name);
  rules->needs_pulled = rules->staleness->needs_pulled();
  return rules;
}

std::shared_ptr<const RowRules> RowRules::with_rate(double rate) const {
  require(rate >= 0, "the learning rate is ", rate, ", expected at least 0");
  auto rules = std::make_shared<RowRules>(*this);
  rules->rate.set_base(rate);
  return rules;
}

}  // namespace paceline

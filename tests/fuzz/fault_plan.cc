#include "faults/fault_plan.h"

#include "fuzz.h"

namespace paceline::fuzz {

void fault_plan(std::string_view input) {
  const std::size_t bound = 4096 + 1024 * input.size();
  const auto plan =
      within(bound, [&] { return parsed<InvalidArgument>([&] { return FaultPlan::parse(std::string(input)); }); });
  if (!plan) return;
  std::string text = "seed " + std::to_string(plan->seed);
  for (const Fault& fault : plan->faults) {
    expect(fault.amount >= 0, "an amount of ", fault.amount);
    text += "\n" + fault.text;
  }
  const FaultPlan again = FaultPlan::parse(text);
  expect(again.seed == plan->seed && again.faults.size() == plan->faults.size(), "the plan comes back as another");
}

}  // namespace paceline::fuzz

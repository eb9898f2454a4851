#pragma once
// What steps there are, and what parameters they take.

#include <paceline/augment.h>

#include <span>
#include <string_view>
#include <vector>

namespace paceline::io {

struct ParameterInfo {
  std::string_view name;
  std::vector<double> otherwise;  // the default
  int least_count = 1;            // how many numbers it holds ...
  int most_count = 1;             // ... at most
  double least = 0;               // of each number ...
  double most = 0;                // ... at most
  bool whole = false;             // numbers without a fraction
  bool ascending = false;         // two numbers, of which the second is not less; one number x is -x to x
  bool positive = false;          // above `least`
};

struct StepInfo {
  std::string_view name;
  std::vector<ParameterInfo> parameters;
};

// All steps, sorted by name.
std::span<const StepInfo> step_table();

// A step with a value for every parameter, all checked.
class CheckedStep {
 public:
  // Throws InvalidArgument.
  explicit CheckedStep(const augment::Step& step);

  std::string_view name() const { return info_->name; }
  const std::vector<double>& list(std::string_view parameter) const;
  double number(std::string_view parameter) const { return list(parameter).at(0); }
  augment::Interval interval(std::string_view parameter) const;

  // The step with the parameters alone that differ from their defaults.
  augment::Step step() const;

 private:
  const StepInfo* info_;
  std::vector<std::vector<double>> values_;  // in the order of the parameters
};

}  // namespace paceline::io

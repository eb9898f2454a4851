#include "augment/step_table.h"

#include <paceline/error.h>
#include <paceline/number.h>

#include <algorithm>
#include <cmath>

namespace paceline::io {
namespace {

constexpr double kMostPixels = 1 << 20;  // of a side
constexpr double kMostFactor = 1e6;

ParameterInfo probability(double otherwise) { return {.name = "p", .otherwise = {otherwise}, .most = 1}; }
ParameterInfo size() {
  return {.name = "size", .otherwise = {0}, .most_count = 2, .least = 0, .most = kMostPixels, .whole = true};
}
ParameterInfo pixels(std::string_view name, double otherwise) {
  return {.name = name, .otherwise = {otherwise}, .most = kMostPixels, .whole = true};
}
ParameterInfo level(std::string_view name) { return {.name = name, .otherwise = {0}, .most_count = 3, .most = 255}; }
ParameterInfo share(std::string_view name, std::vector<double> otherwise) {
  return {.name = name,
          .otherwise = std::move(otherwise),
          .least_count = 2,
          .most_count = 2,
          .most = 1,
          .ascending = true,
          .positive = true};
}
ParameterInfo factor(std::string_view name, std::vector<double> otherwise) {
  return {.name = name,
          .otherwise = std::move(otherwise),
          .least_count = 2,
          .most_count = 2,
          .most = kMostFactor,
          .ascending = true,
          .positive = true};
}
ParameterInfo degrees(std::string_view name, double most) {
  return {.name = name, .otherwise = {0, 0}, .most_count = 2, .least = -most, .most = most, .ascending = true};
}
ParameterInfo range(std::string_view name, double most) { return {.name = name, .otherwise = {0}, .most = most}; }
ParameterInfo choice(std::string_view name) { return {.name = name, .otherwise = {0}, .most = 1, .whole = true}; }
ParameterInfo alpha() { return {.name = "alpha", .otherwise = {1}, .most = kMostFactor, .positive = true}; }
ParameterInfo numbers(std::string_view name, double otherwise) {
  return {.name = name, .otherwise = {otherwise}, .most_count = 3, .least = -kMostFactor, .most = kMostFactor};
}

std::string listed(const StepInfo& step) {
  std::string names;
  for (const ParameterInfo& parameter : step.parameters) names += str(names.empty() ? "" : " ", parameter.name);
  return names.empty() ? "none" : names;
}

// Throws InvalidArgument where these numbers are none for this parameter.
void check(const StepInfo& step, const ParameterInfo& parameter, const std::vector<double>& values) {
  const auto place = [&] { return str("step '", step.name, "': ", parameter.name); };
  const int count = static_cast<int>(values.size());
  require(count >= parameter.least_count && count <= parameter.most_count, place(), " has ", count,
          count == 1 ? " number" : " numbers", ", expected ", parameter.least_count,
          parameter.most_count > parameter.least_count ? str(" to ", parameter.most_count) : "",
          parameter.most_count > 1 ? " with ':' between them" : "");
  for (const double value : values) {
    const bool inside =
        value >= parameter.least && value <= parameter.most && (!parameter.positive || value > parameter.least);
    require(inside, place(), " is ", exact_text(value), ", expected ", parameter.positive ? "more than " : "",
            exact_text(parameter.least), " to ", exact_text(parameter.most));
    require(!parameter.whole || value == std::floor(value), place(), " is ", exact_text(value),
            ", expected a whole number");
  }
  if (!parameter.ascending || count < 2) return;
  require(values[0] <= values[1], place(), " is ", exact_text(values[0]), ":", exact_text(values[1]),
          ", expected the smaller number first");
}

}  // namespace

std::span<const StepInfo> step_table() {
  static const std::vector<StepInfo> table = {
      {"affine",
       {degrees("degrees", 360),
        {.name = "translate", .otherwise = {0, 0}, .least_count = 2, .most_count = 2, .most = 1},
        factor("scale", {1, 1}),
        degrees("shear", 89),
        degrees("shear_down", 89),
        choice("nearest"),
        level("fill")}},
      {"center_crop", {size()}},
      {"color_jitter",
       {range("brightness", kMostFactor), range("contrast", kMostFactor), range("saturation", kMostFactor),
        range("hue", 0.5)}},
      {"cutmix", {alpha(), probability(1)}},
      {"erase",
       {probability(0.5), share("scale", {0.02, 0.33}), factor("ratio", {0.3, 3.3}), numbers("value", 0),
        choice("noise")}},
      {"flip", {probability(0.5)}},
      {"flip_vertical", {probability(0.5)}},
      {"grayscale", {probability(0.1)}},
      {"lighting", {{.name = "deviation", .otherwise = {0.1}, .most = kMostFactor}}},
      {"mixup", {alpha(), probability(1)}},
      {"normalize",
       {numbers("mean", 0),
        numbers("deviation", 1),
        {.name = "scale", .otherwise = {1.0 / 255}, .least = -kMostFactor, .most = kMostFactor}}},
      {"pad", {pixels("pixels", 0), level("fill")}},
      {"random_crop", {size(), pixels("pad", 0), level("fill")}},
      {"random_resized_crop", {size(), share("scale", {0.08, 1}), factor("ratio", {3.0 / 4, 4.0 / 3})}},
      {"resize", {size(), pixels("short", 0)}},
      {"rotate", {degrees("degrees", 360), choice("nearest"), level("fill")}},
  };
  return table;
}

CheckedStep::CheckedStep(const augment::Step& step) {
  const auto table = step_table();
  const auto found = std::ranges::find(table, std::string_view(step.name), &StepInfo::name);
  if (found == table.end()) {
    std::string known;
    for (const StepInfo& each : table) known += str(" ", each.name);
    throw InvalidArgument(str("unknown step '", step.name, "'; known:", known));
  }
  info_ = &*found;
  for (const auto& [name, values] : step.parameters) {
    const bool known =
        std::ranges::find(info_->parameters, std::string_view(name), &ParameterInfo::name) != info_->parameters.end();
    require(known, "step '", step.name, "' has no parameter '", name, "'; known: ", listed(*info_));
  }
  for (const ParameterInfo& parameter : info_->parameters) {
    const auto given = step.parameters.find(std::string(parameter.name));
    std::vector<double> values = given == step.parameters.end() ? parameter.otherwise : given->second;
    check(*info_, parameter, values);
    if (parameter.ascending && values.size() == 1) {
      const double most = std::abs(values[0]);
      values = {-most, most};
    }
    values_.push_back(std::move(values));
  }
  if (info_->name == "resize")
    require(number("short") == 0 || list("size") == std::vector<double>{0},
            "step 'resize' takes size or short, not both");
  if (info_->name != "normalize") return;
  const std::vector<double>& deviations = list("deviation");
  for (std::size_t c = 0; c < deviations.size(); ++c)
    require(deviations[c] != 0, "step 'normalize': the deviation of channel ", c, " is 0");
}

const std::vector<double>& CheckedStep::list(std::string_view parameter) const {
  const auto found = std::ranges::find(info_->parameters, parameter, &ParameterInfo::name);
  return values_.at(static_cast<std::size_t>(found - info_->parameters.begin()));
}

augment::Interval CheckedStep::interval(std::string_view parameter) const {
  const std::vector<double>& values = list(parameter);
  return {values.at(0), values.at(1)};
}

augment::Step CheckedStep::step() const {
  augment::Step result{std::string(info_->name), {}};
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const ParameterInfo& parameter = info_->parameters[i];
    if (values_[i] != parameter.otherwise) result.parameters.emplace(parameter.name, values_[i]);
  }
  return result;
}

}  // namespace paceline::io

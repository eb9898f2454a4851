// Steps from functions and from text.

#include <paceline/augment.h>
#include <paceline/error.h>
#include <paceline/number.h>

#include "augment/step_table.h"
#include "text_numbers.h"

namespace paceline::augment {
namespace {

using Parameters = std::map<std::string, std::vector<double>>;

Step checked(std::string name, Parameters parameters) {
  std::erase_if(parameters, [](const auto& parameter) { return parameter.second.empty(); });
  return io::CheckedStep({std::move(name), std::move(parameters)}).step();
}

std::vector<double> numbers(Size size) { return {static_cast<double>(size.height), static_cast<double>(size.width)}; }
std::vector<double> numbers(Interval interval) { return {interval.low, interval.high}; }

// Where neither side is given, the size is that of the examples.
Parameters with_size(Size size, Parameters parameters = {}) {
  require((size.height == 0) == (size.width == 0), "a size has a height and a width, not ", size.height, " x ",
          size.width);
  if (size.height != 0)
    parameters["size"] = size.height == size.width ? std::vector<double>{numbers(size)[0]} : numbers(size);
  return parameters;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

// Removes the text up to `mark`, and the mark, from the front of `text`. Removes all of `text` where it has no such
// mark. Returns what came before the mark, without blanks at either end.
std::string_view take(std::string_view& text, char mark) {
  const std::size_t end = text.find(mark);
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return trimmed(word);
}

std::vector<double> parse_numbers(std::string_view step, std::string_view name, std::string_view text) {
  std::vector<double> values;
  std::string_view rest = text;
  do {
    const std::string_view word = take(rest, ':');
    require(io::parse_number(word, values.emplace_back()), "step '", step, "': ", name, " is '", text,
            "', expected numbers with ':' between them");
  } while (!rest.empty() || text.ends_with(':'));
  return values;
}

Step parse_step(std::string_view text) {
  std::string_view rest = text;
  const std::string_view name = take(rest, '(');
  require(!name.empty(), "a step has no name: '", text, "'");
  Step step{std::string(name), {}};
  if (name.size() == text.size()) return io::CheckedStep(step).step();
  require(text.ends_with(')'), "step '", name, "' does not end with ')': '", text, "'");
  rest.remove_suffix(1);
  rest = trimmed(rest);
  while (!rest.empty()) {
    const std::string_view parameter = take(rest, ',');
    std::string_view value = parameter;
    const std::string_view key = take(value, '=');
    require(!key.empty() && parameter.find('=') != std::string_view::npos, "step '", name, "': '", parameter,
            "' is no parameter, expected name=value");
    const bool is_new = step.parameters.emplace(std::string(key), parse_numbers(name, key, trimmed(value))).second;
    require(is_new, "step '", name, "' has ", key, " twice");
  }
  return io::CheckedStep(step).step();
}

}  // namespace

std::vector<Step> parse(std::string_view text) {
  std::vector<Step> steps;
  std::string_view rest = trimmed(text);
  while (!rest.empty()) {
    const bool more = rest.find(';') != std::string_view::npos;
    const std::string_view step = take(rest, ';');
    require(!step.empty() && (!more || !trimmed(rest).empty()), "a step is empty in '", text,
            "': expected one ';' between two steps");
    steps.push_back(parse_step(step));
  }
  return steps;
}

std::string text(const std::vector<Step>& steps) {
  std::string result;
  for (const Step& step : steps) {
    result += str(result.empty() ? "" : ";", step.name);
    std::string parameters;
    for (const auto& [name, values] : step.parameters) {
      parameters += str(parameters.empty() ? "(" : ",", name, "=");
      for (std::size_t i = 0; i < values.size(); ++i) parameters += str(i ? ":" : "", exact_text(values[i]));
    }
    result += parameters.empty() ? "" : parameters + ")";
  }
  return result;
}

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const io::StepInfo& step : io::step_table()) result.emplace_back(step.name);
  return result;
}

Step resize(Size size) { return checked("resize", with_size(size)); }
Step resize_short(int pixels) {
  require(pixels > 0, "resize_short() needs a length of at least 1 pixel, not ", pixels);
  return checked("resize", {{"short", {static_cast<double>(pixels)}}});
}
Step center_crop(Size size) { return checked("center_crop", with_size(size)); }
Step random_crop(RandomCrop options) {
  return checked("random_crop",
                 with_size(options.size, {{"pad", {static_cast<double>(options.pad)}}, {"fill", options.fill}}));
}
Step random_resized_crop(RandomResizedCrop options) {
  return checked("random_resized_crop",
                 with_size(options.size, {{"scale", numbers(options.scale)}, {"ratio", numbers(options.ratio)}}));
}
Step pad(int pixels, std::vector<double> fill) {
  return checked("pad", {{"pixels", {static_cast<double>(pixels)}}, {"fill", std::move(fill)}});
}
Step flip(double probability) { return checked("flip", {{"p", {probability}}}); }
Step flip_vertical(double probability) { return checked("flip_vertical", {{"p", {probability}}}); }
Step color_jitter(ColorJitter options) {
  return checked("color_jitter", {{"brightness", {options.brightness}},
                                  {"contrast", {options.contrast}},
                                  {"saturation", {options.saturation}},
                                  {"hue", {options.hue}}});
}
Step lighting(double deviation) { return checked("lighting", {{"deviation", {deviation}}}); }
Step grayscale(double probability) { return checked("grayscale", {{"p", {probability}}}); }
Step rotate(Rotate options) {
  return checked("rotate", {{"degrees", numbers(options.degrees)},
                            {"nearest", {options.nearest ? 1.0 : 0.0}},
                            {"fill", std::move(options.fill)}});
}
Step affine(Affine options) {
  return checked("affine", {{"degrees", numbers(options.degrees)},
                            {"translate", {options.translate_across, options.translate_down}},
                            {"scale", numbers(options.scale)},
                            {"shear", numbers(options.shear_across)},
                            {"shear_down", numbers(options.shear_down)},
                            {"nearest", {options.nearest ? 1.0 : 0.0}},
                            {"fill", std::move(options.fill)}});
}
Step erase(Erase options) {
  return checked("erase", {{"p", {options.probability}},
                           {"scale", numbers(options.scale)},
                           {"ratio", numbers(options.ratio)},
                           {"value", std::move(options.value)},
                           {"noise", {options.noise ? 1.0 : 0.0}}});
}
Step normalize(Normalize options) {
  return checked(
      "normalize",
      {{"mean", std::move(options.mean)}, {"deviation", std::move(options.deviation)}, {"scale", {options.scale}}});
}
Step mixup(double alpha, double probability) { return checked("mixup", {{"alpha", {alpha}}, {"p", {probability}}}); }
Step cutmix(double alpha, double probability) { return checked("cutmix", {{"alpha", {alpha}}, {"p", {probability}}}); }

}  // namespace paceline::augment

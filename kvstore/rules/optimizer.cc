#include <paceline/number.h>
#include <paceline/optimizer.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "integer_power.h"

namespace paceline {

LearningRate LearningRate::parse(const Options& options) {
  LearningRate rate;
  rate.base_ = options.get("lr", 0.01);
  rate.examples_ = options.get("schedule_examples", std::int64_t{0});
  rate.warmup_ = options.get("schedule_warmup", std::int64_t{0});
  rate.every_ = options.get("schedule_every", std::int64_t{0});
  rate.end_ = options.get("schedule_end", 0.0);
  rate.factor_ = options.get("schedule_factor", 0.1);
  const std::string form = options.get("schedule", "constant");
  if (form == "constant") {
    rate.form_ = Form::kConstant;
  } else if (form == "linear" || form == "cosine") {
    rate.form_ = form == "linear" ? Form::kLinear : Form::kCosine;
    require(rate.examples_ > 0, "schedule=", form, " needs schedule_examples, the examples until its end");
  } else if (form == "step") {
    rate.form_ = Form::kStep;
    require(rate.every_ > 0, "schedule=step needs schedule_every, the examples between two steps");
  } else {
    throw InvalidArgument("unknown schedule '" + form + "'; known: constant linear step cosine");
  }
  require(rate.base_ >= 0 && std::isfinite(rate.base_), "lr is ", rate.base_,
          ", expected a finite number of at least 0");
  require(rate.end_ >= 0 && std::isfinite(rate.end_), "schedule_end is ", rate.end_,
          ", expected a finite number of at least 0");
  require(rate.factor_ >= 0 && std::isfinite(rate.factor_), "schedule_factor is ", rate.factor_,
          ", expected a finite number of at least 0");
  require(rate.warmup_ >= 0, "schedule_warmup is ", rate.warmup_, ", expected at least 0");
  return rate;
}

double LearningRate::at(std::int64_t examples) const {
  if (examples < warmup_) return base_ * static_cast<double>(examples + 1) / static_cast<double>(warmup_ + 1);
  const double progress =
      examples_ > 0 ? std::min(1.0, static_cast<double>(examples) / static_cast<double>(examples_)) : 0;
  switch (form_) {
    case Form::kConstant: break;
    case Form::kLinear: return base_ * (1 - progress * (1 - end_));
    case Form::kCosine: return base_ * (end_ + (1 - end_) * 0.5 * (1 + std::cos(std::numbers::pi * progress)));
    case Form::kStep: return base_ * integer_power(factor_, examples / every_);
  }
  return base_;
}

Preparation Preparation::parse(const Options& options) {
  Preparation preparation;
  preparation.rescale = options.get("rescale", 1.0);
  preparation.clip_gradient = options.get("clip_gradient", 0.0);
  preparation.weight_decay = options.get("weight_decay", 0.0);
  require(std::isfinite(preparation.rescale), "rescale is ", preparation.rescale, ", expected a finite number");
  for (const auto& [name, value] :
       {std::pair{"clip_gradient", preparation.clip_gradient}, {"weight_decay", preparation.weight_decay}})
    require(value >= 0 && std::isfinite(value), name, " is ", value, ", expected a finite number of at least 0");
  return preparation;
}

Preparation Preparation::parse(const Options& options, const Optimizer& optimizer) {
  Preparation preparation = parse(options);
  if (optimizer.decays_weights()) preparation.weight_decay = 0;
  return preparation;
}

template <class T>
void Preparation::apply(T* gradient, const T* weight, std::int64_t count) const {
  if (rescale != 1)
    for (std::int64_t i = 0; i < count; ++i) gradient[i] *= static_cast<T>(rescale);
  if (clip_gradient > 0) {
    const T bound = static_cast<T>(clip_gradient);
    for (std::int64_t i = 0; i < count; ++i) gradient[i] = std::clamp(gradient[i], -bound, bound);
  }
  if (weight_decay != 0)
    for (std::int64_t i = 0; i < count; ++i) gradient[i] += static_cast<T>(weight_decay) * weight[i];
}
template void Preparation::apply(float*, const float*, std::int64_t) const;
template void Preparation::apply(double*, const double*, std::int64_t) const;

void Optimizer::update_cuda(std::span<const DeviceUpdate>, const Preparation&, Device, void*) const {
  throw NotAvailable("this optimizer has no CUDA kernel in this build; keep the weights on the CPU");
}

std::unique_ptr<Optimizer> make_optimizer(const Spec& spec) {
  LearningRate::parse(spec.options);
  Preparation::parse(spec.options);
  Multipliers::parse(spec.options);
  auto optimizer = optimizer_catalog().at(spec.name)(spec.options);
  spec.options.reject_unknown("optimizer '" + spec.name + "'");
  return optimizer;
}

namespace optim {
namespace {

void set_multipliers(Options& options, const char* key, const std::vector<Multiplier>& multipliers) {
  std::string text;
  for (const Multiplier& one : multipliers) {
    require(!one.pattern.empty() && one.pattern.find_first_of(",:+") == std::string::npos, key, ": the pattern '",
            one.pattern, "' is empty or has a ',', ':' or '+'; write '?' for such a character");
    std::string factor = exact_text(one.factor);
    std::erase(factor, '+');  // removes the '+' of an exponent, because '+' joins multipliers
    text += (text.empty() ? "" : "+") + one.pattern + ":" + factor;
  }
  if (!text.empty()) options.set(key, text);
}

// Copies the options that all optimizers share from the struct `given` to `options`.
template <class Struct>
void set_common(Options& options, const Struct& given) {
  options.set("lr", exact_text(given.lr));
  if (given.weight_decay != 0) options.set("weight_decay", exact_text(given.weight_decay));
  if (given.clip_gradient != 0) options.set("clip_gradient", exact_text(given.clip_gradient));
  set_multipliers(options, "lr_mult", given.lr_mult);
  set_multipliers(options, "decay_mult", given.decay_mult);
  const Schedule& schedule = given.schedule;
  if (schedule.warmup != 0) options.set("schedule_warmup", std::to_string(schedule.warmup));
  if (schedule.form == "constant") return;
  options.set("schedule", schedule.form);
  if (schedule.examples != 0) options.set("schedule_examples", std::to_string(schedule.examples));
  if (schedule.end != 0) options.set("schedule_end", exact_text(schedule.end));
  if (schedule.every != 0) {
    options.set("schedule_every", std::to_string(schedule.every));
    options.set("schedule_factor", exact_text(schedule.factor));
  }
}

}  // namespace

SGD::operator Spec() const {
  require(momentum != 0 || !nesterov, "optim::SGD: nesterov needs a momentum");
  Spec spec{momentum == 0 ? "sgd" : nesterov ? "nesterov" : "momentum", {}};
  set_common(spec.options, *this);
  if (momentum != 0) spec.options.set("momentum", exact_text(momentum));
  return spec;
}

Assign::operator Spec() const { return Spec{"assign", {}}; }

Adam::operator Spec() const {
  Spec spec{"adam", {}};
  set_common(spec.options, *this);
  spec.options.set("beta1", exact_text(beta1));
  spec.options.set("beta2", exact_text(beta2));
  spec.options.set("epsilon", exact_text(epsilon));
  return spec;
}

AdamW::operator Spec() const {
  Spec spec = Adam{lr, beta1, beta2, epsilon, 0, clip_gradient, schedule, lr_mult, decay_mult};
  spec.name = "adamw";
  spec.options.set("weight_decay", exact_text(weight_decay));
  return spec;
}

}  // namespace optim
}  // namespace paceline

#include "time_law.h"

#include <paceline/error.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

namespace paceline::sim {
namespace {

double number(const Spec& spec, const char* key, double otherwise) {
  const double value = spec.options.get<double>(key, otherwise);
  require(std::isfinite(value) && value >= 0, "[kvsim] ", spec.text(), ": ", key, " is ", value,
          ", expected a number of at least 0");
  return value;
}

std::vector<double> read_samples(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw IoError("cannot read the times in '" + file + "'");
  std::vector<double> samples;
  for (double value; in >> value;) samples.push_back(value);
  if (!in.eof()) throw Corrupt(str(file, ": entry ", samples.size() + 1, " is no number of seconds"));
  return samples;
}

}  // namespace

TimeLaw TimeLaw::parse(const std::string& text) {
  const Spec spec = Spec::parse(text);
  TimeLaw law;
  if (spec.name == "constant") {
    law.first_ = number(spec, "seconds", 1);
  } else if (spec.name == "uniform") {
    law.kind_ = Kind::kUniform;
    law.first_ = number(spec, "low", 0);
    law.second_ = number(spec, "high", 1);
    require(law.first_ <= law.second_, "[kvsim] ", text, ": low is above high");
  } else if (spec.name == "exponential") {
    law.kind_ = Kind::kExponential;
    law.first_ = number(spec, "mean", 1);
    law.second_ = number(spec, "shift", 0);
  } else if (spec.name == "erlang") {
    law.kind_ = Kind::kErlang;
    law.first_ = number(spec, "mean", 1);
    law.second_ = number(spec, "k", 1);
    require(law.second_ >= 1 && law.second_ == std::floor(law.second_), "[kvsim] ", text,
            ": k is a whole number of at least 1");
  } else if (spec.name == "lognormal") {
    law.kind_ = Kind::kLognormal;
    law.first_ = number(spec, "median", 1);
    law.second_ = number(spec, "sigma", 1);
  } else if (spec.name == "empirical") {
    law = empirical(read_samples(spec.options.get("file", "")));
  } else {
    throw InvalidArgument("unknown law of times '" + spec.name +
                          "'; known: constant uniform exponential erlang lognormal empirical");
  }
  law.straggle_ = number(spec, "straggle", 0);
  law.factor_ = number(spec, "factor", 1);
  require(law.straggle_ <= 1, "[kvsim] ", text, ": straggle is a share, 0 to 1");
  spec.options.reject_unknown("law '" + spec.name + "'");
  return law;
}

TimeLaw TimeLaw::constant(double seconds) {
  TimeLaw law;
  law.first_ = seconds;
  return law;
}

TimeLaw TimeLaw::empirical(std::vector<double> samples) {
  require(!samples.empty(), "a law of measured times needs at least one");
  std::sort(samples.begin(), samples.end());
  require(samples.front() >= 0, "a measured time is negative");
  TimeLaw law;
  law.kind_ = Kind::kEmpirical;
  law.samples_ = std::make_shared<const std::vector<double>>(std::move(samples));
  return law;
}

double TimeLaw::draw(Draws draws) const {
  const double stretch = straggle_ > 0 && draws.uniform() < straggle_ ? factor_ : 1;
  switch (kind_) {
    case Kind::kConstant: return stretch * first_;
    case Kind::kUniform: return stretch * (first_ + (second_ - first_) * draws.uniform());
    case Kind::kExponential: return stretch * (second_ + first_ * draws.exponential());
    case Kind::kErlang: {
      double sum = 0;
      for (int i = 0; i < static_cast<int>(second_); ++i) sum += draws.exponential();
      return stretch * first_ * sum / second_;
    }
    case Kind::kLognormal: return stretch * first_ * std::exp(second_ * draws.normal());
    case Kind::kEmpirical:
      return stretch * (*samples_)[static_cast<std::size_t>(draws.uniform() * static_cast<double>(samples_->size()))];
  }
  return 0;
}

double TimeLaw::mean() const {
  const double stretch = 1 + straggle_ * (factor_ - 1);
  switch (kind_) {
    case Kind::kConstant:
    case Kind::kErlang: return stretch * first_;
    case Kind::kUniform: return stretch * (first_ + second_) / 2;
    case Kind::kExponential: return stretch * (first_ + second_);
    case Kind::kLognormal: return stretch * first_ * std::exp(second_ * second_ / 2);
    case Kind::kEmpirical:
      return stretch * std::accumulate(samples_->begin(), samples_->end(), 0.0) / static_cast<double>(samples_->size());
  }
  return 0;
}

}  // namespace paceline::sim

#pragma once
// How long something takes, as a distribution named in the product's grammar:
//   constant:seconds=T                        uniform:low=A,high=B
//   exponential:mean=T[,shift=A]              A + Exp(T)
//   erlang:mean=T,k=K                         lognormal:median=T,sigma=S
//   empirical:file=F                          what was measured, one number of seconds a line; drawn from its CDF
// Every law takes straggle=P,factor=F: a share P of the draws takes F times as long.

#include <paceline/options.h>

#include <memory>
#include <vector>

#include "draws.h"

namespace paceline::sim {

class TimeLaw {
 public:
  // Throws InvalidArgument on unknown names, keys and values; IoError where the file cannot be read.
  static TimeLaw parse(const std::string& text);
  static TimeLaw constant(double seconds);
  // Of these samples; throws InvalidArgument if there are none or one is negative.
  static TimeLaw empirical(std::vector<double> samples);

  double draw(Draws draws) const;
  double mean() const;

 private:
  enum class Kind { kConstant, kUniform, kExponential, kErlang, kLognormal, kEmpirical };

  Kind kind_ = Kind::kConstant;
  double first_ = 0, second_ = 0;  // the law's two parameters, in the order of the list above
  double straggle_ = 0, factor_ = 1;
  std::shared_ptr<const std::vector<double>> samples_;  // sorted
};

}  // namespace paceline::sim

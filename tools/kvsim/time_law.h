#pragma once
// How long something takes, as a random distribution. Its name and options are a Spec (options.h):
//   constant:seconds=T                        uniform:low=A,high=B
//   exponential:mean=T[,shift=A]              A + Exp(T)
//   erlang:mean=T,k=K                         lognormal:median=T,sigma=S
//   empirical:file=F                          draws one of the times in the file, a number of seconds on each line
// Every law takes straggle=P,factor=F: a share P of the draws takes F times as long.

#include <paceline/options.h>

#include <memory>
#include <vector>

#include "draws.h"

namespace paceline::sim {

class TimeLaw {
 public:
  // Throws InvalidArgument on unknown names and keys, and on wrong values. Throws IoError where the file cannot be
  // read, and Corrupt where it holds something else than numbers.
  static TimeLaw parse(const std::string& text);
  static TimeLaw constant(double seconds);
  // Draws one of these samples. Throws InvalidArgument if there are none or one is negative.
  static TimeLaw empirical(std::vector<double> samples);

  double draw(Draws draws) const;
  double mean() const;

 private:
  enum class Kind { kConstant, kUniform, kExponential, kErlang, kLognormal, kEmpirical };

  Kind kind_ = Kind::kConstant;
  double first_ = 0, second_ = 0;  // the parameters of a law that has them, in the order of the list above
  double straggle_ = 0, factor_ = 1;
  std::shared_ptr<const std::vector<double>> samples_;  // sorted
};

}  // namespace paceline::sim

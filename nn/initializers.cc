#include <paceline/initializer.h>
#include <paceline/kernel.h>

#include <cmath>

namespace paceline::nn {
namespace {

double fan_in(const NDArray& weight) {
  double fan = 1;
  for (int axis = 1; axis < weight.ndim(); ++axis) fan *= static_cast<double>(weight.size(axis));
  return fan;
}

double fan_out(const NDArray& weight) {
  return static_cast<double>(weight.size()) / (weight.ndim() > 1 ? static_cast<double>(weight.size(1)) : 1);
}

}  // namespace

Initializer constant(double value) {
  return [value](const NDArray& weight, std::uint64_t) { weight.fill(value); };
}

Initializer uniform(double scale) {
  return [scale](const NDArray& weight, std::uint64_t seed) { kernels::fill_uniform(weight, -scale, scale, seed); };
}

Initializer normal(double deviation) {
  return [deviation](const NDArray& weight, std::uint64_t seed) { kernels::fill_normal(weight, 0, deviation, seed); };
}

Initializer xavier_uniform(double gain) {
  return [gain](const NDArray& weight, std::uint64_t seed) {
    uniform(gain * std::sqrt(6 / (fan_in(weight) + fan_out(weight))))(weight, seed);
  };
}

Initializer he_normal() {
  return [](const NDArray& weight, std::uint64_t seed) { normal(std::sqrt(2 / fan_in(weight)))(weight, seed); };
}

Initializer lecun_uniform() {
  return [](const NDArray& weight, std::uint64_t seed) { uniform(1 / std::sqrt(fan_in(weight)))(weight, seed); };
}

}  // namespace paceline::nn

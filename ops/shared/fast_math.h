#pragma once
// exp, tanh and erfc for float32 without branches or tables, so that loops over them become vector code. At most 2
// units in the last place (erfc: 12) from the true value over the whole range; NaN, infinities and subnormal results
// included. The other types use the standard library. Inlined always: a loop with a call in it does not become vector
// code.

#include <paceline/host_device.h>

#include <bit>
#include <cmath>

namespace paceline {

PACELINE_HOST_DEVICE inline double fast_exp(double x) { return std::exp(x); }
PACELINE_HOST_DEVICE inline double fast_tanh(double x) { return std::tanh(x); }

[[gnu::always_inline]] PACELINE_HOST_DEVICE inline float fast_exp(float x) {
  const float below = x > 89.0f ? 89.0f : x;
  const float inside = below < -104.0f ? -104.0f : below;
  const float nearest = (inside * 1.44269504f + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23 rounds to an integer
  const float halves = nearest == nearest ? nearest : 0.0f;
  float r = inside - nearest * 0.693359375f;  // ln 2 in two parts
  r = r + nearest * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^k in two factors, because k reaches beyond the exponents of normal numbers on both sides.
  const int k = static_cast<int>(halves);
  const int half = k >> 1;
  return p * std::bit_cast<float>((half + 127) << 23) * std::bit_cast<float>((k - half + 127) << 23);
}

[[gnu::always_inline]] PACELINE_HOST_DEVICE inline float fast_tanh(float x) {
  const float size = x < 0 ? -x : x;
  const float bounded = size > 10.0f ? 10.0f : size;
  const float large = 1.0f - 2.0f / (fast_exp(2 * bounded) + 1.0f);
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float small = p * z * x + x;
  return size < 0.625f ? small : (x < 0 ? -large : large);
}

PACELINE_HOST_DEVICE inline double fast_erfc(double x) { return std::erfc(x); }

// Of a size z, with t = 1 / (1 + z / 2): t exp(p(t) - z^2), p fitted to ln(erfc(z) exp(z^2) / t) for z up to 10.2,
// where the result leaves the range.
[[gnu::always_inline]] PACELINE_HOST_DEVICE inline float fast_erfc(float x) {
  const float size = x < 0 ? -x : x;
  const float z = size > 10.2f ? 10.2f : size;
  const float t = 1.0f / (1.0f + 0.5f * z);
  float p = -0.143183514f;
  p = p * t + 0.979818225f;
  p = p * t - 2.80927563f;
  p = p * t + 4.27278805f;
  p = p * t - 3.58921313f;
  p = p * t + 1.69414496f;
  p = p * t - 0.724712729f;
  p = p * t + 0.229663014f;
  p = p * t + 0.353787661f;
  p = p * t + 1.00175846f;
  p = p * t - 1.26557541f;
  // The upper digits of z, whose square is exact: z^2 itself would be rounded before exp() makes much of it.
  const float upper = std::bit_cast<float>(std::bit_cast<int>(z) & ~0xfff);
  const float tail = t * fast_exp(-upper * upper) * fast_exp((upper - z) * (upper + z) + p);
  return x < 0 ? 2.0f - tail : tail;
}

}  // namespace paceline

#pragma once
// Averaging of weights, float32 or float64.

#include <paceline/dtype.h>

#include <cstdint>

namespace paceline {

template <class T>
void draw(const T* target, double share, std::int64_t count, T* weight, T* moved) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T difference = static_cast<T>(share) * (target[i] - weight[i]);
    weight[i] += difference;
    if (moved) moved[i] = difference;
  }
}

// Moves weights towards `target` by `share` of the difference. Writes the movement to `moved` unless that is null.
inline void draw(DType dtype, const void* target, double share, std::int64_t count, void* weight,
                 void* moved = nullptr) {
  if (dtype == DType::kFloat32)
    draw(static_cast<const float*>(target), share, count, static_cast<float*>(weight), static_cast<float*>(moved));
  else
    draw(static_cast<const double*>(target), share, count, static_cast<double*>(weight), static_cast<double*>(moved));
}

// Writes from - what to `what`.
template <class T>
void subtract_from(const T* from, std::int64_t count, T* what) {
  for (std::int64_t i = 0; i < count; ++i) what[i] = from[i] - what[i];
}

inline void subtract_from(DType dtype, const void* from, std::int64_t count, void* what) {
  if (dtype == DType::kFloat32)
    subtract_from(static_cast<const float*>(from), count, static_cast<float*>(what));
  else
    subtract_from(static_cast<const double*>(from), count, static_cast<double*>(what));
}

}  // namespace paceline

#pragma once
// Products of matrices by plain loops, columns first as cuBLAS has them: the numbers of a test are few.

#include <cublas_v2.h>

#include <bit>
#include <cstdint>

namespace cuda_emulation {

struct Half {
  std::uint16_t bits;
};
struct Brain {
  std::uint16_t bits;
};

inline float from(Half value) { return static_cast<float>(std::bit_cast<_Float16>(value.bits)); }
inline float from(Brain value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }
inline float from(float value) { return value; }
inline double from(double value) { return value; }

inline void to(Half& result, float value) { result.bits = std::bit_cast<std::uint16_t>(static_cast<_Float16>(value)); }
inline void to(Brain& result, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  // To the nearest, ties to even; a NaN stays one.
  result.bits = static_cast<std::uint16_t>(value != value ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline void to(float& result, float value) { result = value; }
inline void to(double& result, double value) { result = value; }

struct Product {
  bool transpose_a, transpose_b;
  std::int64_t rows, columns, depth, batch;
  const void *a, *b;
  void* c;
  std::int64_t a_leading, b_leading, c_leading, a_stride, b_stride, c_stride;
  bool rounds = false;  // float32 factors to TF32

  std::int64_t a_place(std::int64_t i, std::int64_t k) const {
    return transpose_a ? i * a_leading + k : k * a_leading + i;
  }
  std::int64_t b_place(std::int64_t k, std::int64_t j) const {
    return transpose_b ? k * b_leading + j : j * b_leading + k;
  }
};

// To the nearest of TF32's 10 bits behind the point.
inline float in_tf32(float value) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + 0x1000) & ~std::uint32_t{0x1fff});
}
inline double in_tf32(double value) { return value; }

// c = finish(i, j, alpha a b + beta c)
template <class T, class Sum, class Finish>
void multiply(const Product& p, Sum alpha, Sum beta, const Finish& finish) {
  for (std::int64_t n = 0; n < p.batch; ++n) {
    const T* const a = static_cast<const T*>(p.a) + n * p.a_stride;
    const T* const b = static_cast<const T*>(p.b) + n * p.b_stride;
    T* const c = static_cast<T*>(p.c) + n * p.c_stride;
    for (std::int64_t j = 0; j < p.columns; ++j)
      for (std::int64_t i = 0; i < p.rows; ++i) {
        Sum sum = 0;
        for (std::int64_t k = 0; k < p.depth; ++k) {
          const auto left = from(a[p.a_place(i, k)]), right = from(b[p.b_place(k, j)]);
          sum += p.rounds ? in_tf32(left) * in_tf32(right) : left * right;
        }
        T& result = c[j * p.c_leading + i];
        // What is multiplied by 0 is not read: it may be NaN.
        to(result, finish(i, j, alpha * sum + (beta == Sum(0) ? Sum(0) : beta * from(result))));
      }
  }
}

}  // namespace cuda_emulation

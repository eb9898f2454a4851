#pragma once
// Neighbouring elements in one access of a CUDA kernel, and the halves by the device's own conversions.

#include <paceline/detail/convert.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cstdint>

namespace paceline::detail {

inline constexpr int kAccessBytes = 16;  // the most that a thread moves at once

template <class T>
__device__ inline accumulator_t<T> load(const T& value) {
  if constexpr (std::is_same_v<T, float16>)
    return __half2float(__ushort_as_half(value.bits));
  else
    return static_cast<accumulator_t<T>>(value);
}

// As convert<To>(value).
template <class To, class From>
__device__ inline To stored(From value) {
  To result;
  if constexpr (kIsHalf<From>)
    return stored<To>(load(value));
  else if constexpr (std::is_same_v<To, float16>)
    result.bits = __half_as_ushort(__float2half_rn(static_cast<float>(value)));
  else if constexpr (std::is_same_v<To, bfloat16>)
    result.bits = __bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(value)));
  else
    result = convert<To>(value);
  return result;
}

template <class T, int kWidth>
struct alignas(std::min<std::size_t>(kWidth * sizeof(T), kAccessBytes)) Vector {
  T at[kWidth];
};

// Elements of a vector of which the widest of the types fills one access.
template <class... T>
inline constexpr int kVectorWidth = kAccessBytes / static_cast<int>(std::max({sizeof(T)...}));

template <int kWidth, class T>
__device__ inline Vector<T, kWidth> read_vector(const T* from) {
  return *reinterpret_cast<const Vector<T, kWidth>*>(from);
}

template <class T, int kWidth>
__device__ inline void write_vector(T* to, const Vector<T, kWidth>& values) {
  *reinterpret_cast<Vector<T, kWidth>*>(to) = values;
}

// May vectors of `kWidth` elements begin here?
template <int kWidth, class T>
bool is_aligned(const T* at) {
  return reinterpret_cast<std::uintptr_t>(at) % alignof(Vector<T, kWidth>) == 0;
}

}  // namespace paceline::detail

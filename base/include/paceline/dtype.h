#pragma once
// Element types. The numbers are MXNet's type flags, so they are also what files and messages carry.

#include <paceline/error.h>
#include <paceline/host_device.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace paceline {

// The type of an array's elements.
enum class DType : std::int8_t {
  kFloat32 = 0,    // float
  kFloat64 = 1,    // double
  kFloat16 = 2,    // float16: IEEE binary16
  kUint8 = 3,      // std::uint8_t
  kInt32 = 4,      // std::int32_t
  kInt8 = 5,       // std::int8_t
  kInt64 = 6,      // std::int64_t
  kBool = 7,       // bool, one byte
  kBfloat16 = 12,  // bfloat16: the upper half of a float
};

// IEEE binary16 storage. Arithmetic goes through float.
struct float16 {
  std::uint16_t bits = 0;  // sign, 5 bits of exponent, 10 of fraction
  float16() = default;
  // Conversion rounds to nearest, ties to even; NaN and infinity stay what they are.
  PACELINE_HOST_DEVICE inline float16(float value);
  PACELINE_HOST_DEVICE inline operator float() const;
};

// The upper half of a float32. Arithmetic goes through float.
struct bfloat16 {
  std::uint16_t bits = 0;  // sign, 8 bits of exponent, 7 of fraction
  bfloat16() = default;
  // Conversion rounds to nearest, ties to even; NaN and infinity stay what they are.
  PACELINE_HOST_DEVICE inline bfloat16(float value);
  PACELINE_HOST_DEVICE inline operator float() const;
};

std::size_t size_of(DType dtype);          // bytes of an element
std::string name_of(DType dtype);          // "float32"
DType parse_dtype(std::string_view name);  // the type of that name; throws InvalidArgument listing the known ones
bool is_valid(std::int64_t type_flag);     // may this number be cast to DType?
bool is_floating(DType dtype);             // float64, float32, float16 or bfloat16

// Carries a type to a generic lambda: visit_dtype().
template <class T>
struct TypeTag {
  using type = T;  // the type
};

// The DType of a C++ type.
template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::kFloat32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::kFloat64;
}
template <>
constexpr DType dtype_of<float16>() {
  return DType::kFloat16;
}
template <>
constexpr DType dtype_of<bfloat16>() {
  return DType::kBfloat16;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::kUint8;
}
template <>
constexpr DType dtype_of<std::int8_t>() {
  return DType::kInt8;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::kInt32;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::kInt64;
}
template <>
constexpr DType dtype_of<bool>() {
  return DType::kBool;
}

// Calls `visitor(TypeTag<T>{})` with the C++ type of `dtype` and returns its result. Throws InvalidArgument for a
// number that is no DType.
template <class Visitor>
decltype(auto) visit_dtype(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DType::kFloat32: return visitor(TypeTag<float>{});
    case DType::kFloat64: return visitor(TypeTag<double>{});
    case DType::kFloat16: return visitor(TypeTag<float16>{});
    case DType::kBfloat16: return visitor(TypeTag<bfloat16>{});
    case DType::kUint8: return visitor(TypeTag<std::uint8_t>{});
    case DType::kInt8: return visitor(TypeTag<std::int8_t>{});
    case DType::kInt32: return visitor(TypeTag<std::int32_t>{});
    case DType::kInt64: return visitor(TypeTag<std::int64_t>{});
    case DType::kBool: return visitor(TypeTag<bool>{});
  }
  throw InvalidArgument(str("unknown element type ", static_cast<int>(dtype)));
}

// The same for the floating types only; throws InvalidArgument naming `who` for the others.
template <class Visitor>
decltype(auto) visit_floating(DType dtype, std::string_view who, Visitor&& visitor) {
  switch (dtype) {
    case DType::kFloat32: return visitor(TypeTag<float>{});
    case DType::kFloat64: return visitor(TypeTag<double>{});
    case DType::kFloat16: return visitor(TypeTag<float16>{});
    case DType::kBfloat16: return visitor(TypeTag<bfloat16>{});
    default: throw InvalidArgument(str("[", who, "] needs a floating type, got ", name_of(dtype)));
  }
}

// The type in which sums and products of T are accumulated: float for the half types, else T.
template <class T>
struct Accumulator {
  using type = T;  // itself
};
template <>
struct Accumulator<float16> {
  using type = float;  // wider
};
template <>
struct Accumulator<bfloat16> {
  using type = float;  // wider
};
template <class T>
using accumulator_t = typename Accumulator<T>::type;

PACELINE_HOST_DEVICE inline bfloat16::bfloat16(float value) {
  std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  if ((u & 0x7fffffffu) > 0x7f800000u)
    bits = static_cast<std::uint16_t>((u >> 16) | 0x40u);
  else
    bits = static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

PACELINE_HOST_DEVICE inline bfloat16::operator float() const {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

PACELINE_HOST_DEVICE inline float16::float16(float value) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    bits = static_cast<std::uint16_t>(sign | 0x7e00u);
  } else if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more
    bits = static_cast<std::uint16_t>(sign | 0x7c00u);
  } else if (magnitude < 0x38800000u) {  // below the smallest normal: the float adder does the rounding
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    bits = static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  } else {
    magnitude += 0xc8000fffu + ((magnitude >> 13) & 1u);
    bits = static_cast<std::uint16_t>(sign | (magnitude >> 13));
  }
}

PACELINE_HOST_DEVICE inline float16::operator float() const {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude < 0x400u) {
    const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;  // 2^-24
    return sign ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

}  // namespace paceline

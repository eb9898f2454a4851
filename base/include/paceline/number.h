#pragma once
// A C++ number that takes part in a computation with arrays. Its category, boolean, integer or floating, may lift the
// type of the result; its width does not.

#include <paceline/dtype.h>

#include <bit>
#include <concepts>
#include <type_traits>
#include <utility>

namespace paceline {

enum class Category : std::uint8_t { kBool, kInteger, kFloating };

Category category_of(DType dtype);

class Number {
 public:
  // Throws InvalidArgument for an integer that a double does not hold exactly.
  template <std::integral T>
  Number(T value)
      : value_(static_cast<double>(value)), category_(std::same_as<T, bool> ? Category::kBool : Category::kInteger) {
    if constexpr (sizeof(T) > 4) {
      auto magnitude = static_cast<std::make_unsigned_t<T>>(value);
      if (std::cmp_less(value, 0)) magnitude = 0 - magnitude;
      require(magnitude == 0 || (magnitude >> std::countr_zero(magnitude)) < (1ull << 53), "the number ", value,
              " has more than 53 significant bits; put it into an array of int64");
    }
  }
  template <std::floating_point T>
  Number(T value) : value_(static_cast<double>(value)), category_(Category::kFloating) {}

  double value() const { return value_; }
  Category category() const { return category_; }

 private:
  double value_;
  Category category_;
};

// Does the type hold the number: an integer exactly, a floating type within its range? NaN and the infinities are
// numbers of every floating type; bool holds 0 and 1.
bool holds(DType dtype, double number);
// Throws InvalidArgument "[who] ..." where it does not.
void require_holds(const char* who, DType dtype, double number);

// The type of a result of both: that of the two whose category is higher; of two integers or two floating types, one
// that holds the values of both (int32 for uint8 with int8, float32 for float16 with bfloat16). PyTorch's table, but
// that it has int16 for uint8 with int8.
DType result_type(DType a, DType b);
// Of an array of type `a` and a number: a, unless the number's category is higher; then int64 or float32.
DType result_type(DType a, Category number);

}  // namespace paceline

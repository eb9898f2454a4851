#pragma once
// C++ numbers in computations with arrays, and the types of results.

#include <paceline/dtype.h>

#include <bit>
#include <concepts>
#include <string>
#include <type_traits>
#include <utility>

namespace paceline {

// The rank of a type in promotion, from low to high.
enum class Category : std::uint8_t { kBool, kInteger, kFloating };

// The category of an element type.
Category category_of(DType dtype);

// A C++ number that takes part in a computation with arrays. Its category may raise the type of the result; its width
// does not.
class Number {
 public:
  // Takes a bool or an integer. Throws InvalidArgument for an integer that a double does not hold exactly.
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
  // Takes any floating-point number as it is.
  template <std::floating_point T>
  Number(T value) : value_(static_cast<double>(value)), category_(Category::kFloating) {}

  // The number and its category, as given.
  double value() const { return value_; }
  Category category() const { return category_; }

 private:
  double value_;
  Category category_;
};

// Can the type hold the number: an integer type exactly, a floating type within its range? NaN and the infinities are
// numbers of every floating type; bool holds 0 and 1.
bool holds(DType dtype, double number);
// Throws InvalidArgument "[who] ..." where holds() is false.
void require_holds(const char* who, DType dtype, double number);

// The shortest text that reads back as the same number.
std::string exact_text(double number);
std::string exact_text(float number);

// The type of a result of both operands. The operand with the higher category decides. Within a category it is the
// smallest type that holds the values of both: float32 for float16 with bfloat16. This is PyTorch's table but for uint8
// with int8, which gives int32 here and int16 there.
DType result_type(DType a, DType b);
// The type of a result of an array of type `a` and a number: `a`, or int64 or float32 where the number's category is
// higher.
DType result_type(DType a, Category number);

}  // namespace paceline

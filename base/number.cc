#include <paceline/number.h>

#include <charconv>
#include <cmath>
#include <limits>

namespace paceline {
namespace {

template <class T>
std::string shortest_text(T number) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, number).ptr};
}

}  // namespace

std::string exact_text(double number) { return shortest_text(number); }
std::string exact_text(float number) { return shortest_text(number); }

Category category_of(DType dtype) {
  if (is_floating(dtype)) return Category::kFloating;
  return dtype == DType::kBool ? Category::kBool : Category::kInteger;
}

bool holds(DType dtype, double number) {
  return visit_dtype(dtype, [number]<class T>(TypeTag<T>) {
    if constexpr (std::is_same_v<T, bool>) {
      return number == 0 || number == 1;
    } else if constexpr (std::is_integral_v<T>) {
      // One more than the largest is a power of two, which a double holds.
      const double above = 2.0 * static_cast<double>(std::numeric_limits<T>::max() / 2 + 1);
      return std::trunc(number) == number && number >= static_cast<double>(std::numeric_limits<T>::min()) &&
             number < above;
    } else {
      return !std::isfinite(number) || std::isfinite(static_cast<double>(static_cast<T>(number)));
    }
  });
}

void require_holds(const char* who, DType dtype, double number) {
  require(holds(dtype, number), "[", who, "] ", name_of(dtype), " cannot hold the number ", exact_text(number),
          "; choose another number, or cast the array to a type that holds it");
}

DType result_type(DType a, DType b) {
  if (a == b) return a;
  const Category of_a = category_of(a), of_b = category_of(b);
  if (of_a != of_b) return of_a > of_b ? a : b;
  const std::size_t size_a = size_of(a), size_b = size_of(b);
  if (size_a != size_b) return size_a > size_b ? a : b;
  return of_a == Category::kFloating ? DType::kFloat32 : DType::kInt32;  // two halves; uint8 with int8
}

DType result_type(DType a, Category number) {
  if (number <= category_of(a)) return a;
  return number == Category::kInteger ? DType::kInt64 : DType::kFloat32;
}

}  // namespace paceline

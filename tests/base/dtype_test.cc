#include <paceline/dtype.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace paceline {
namespace {

// The value of a binary floating-point number with the given fields, by the book.
double decode(std::uint16_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
  const double fraction = std::ldexp(bits & ((1 << fraction_bits) - 1), -fraction_bits);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1 + fraction, exponent - bias);
}

double decode(float16 value) { return decode(value.bits, 5, 10); }
double decode(bfloat16 value) { return decode(value.bits, 8, 7); }

template <class Half>
class HalfTest : public testing::Test {};
using Halves = testing::Types<float16, bfloat16>;
TYPED_TEST_SUITE(HalfTest, Halves);

TYPED_TEST(HalfTest, EveryPatternGoesToFloatAndBack) {
  for (int bits = 0; bits <= 0xffff; ++bits) {
    TypeParam half;
    half.bits = static_cast<std::uint16_t>(bits);
    const double expected = decode(half);
    const float actual = half;
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(TypeParam(actual)))) << bits;
    } else {
      ASSERT_EQ(actual, expected) << bits;
      ASSERT_EQ(std::signbit(actual), std::signbit(expected)) << bits;
      ASSERT_EQ(TypeParam(actual).bits, half.bits) << bits;
    }
  }
}

// Between each two neighbours: the lower below the middle, the upper above it, the even one in the middle.
TYPED_TEST(HalfTest, RoundsToNearestEven) {
  for (int bits = 0; bits < 0x7fff; ++bits) {
    TypeParam lower;
    TypeParam upper;
    lower.bits = static_cast<std::uint16_t>(bits);
    upper.bits = static_cast<std::uint16_t>(bits + 1);
    if (!std::isfinite(decode(lower))) break;
    // Beyond the largest number, infinity is rounded to as if it were the next number.
    double above = decode(upper);
    if (std::isinf(above)) {
      TypeParam before;
      before.bits = static_cast<std::uint16_t>(bits - 1);
      above = 2 * decode(lower) - decode(before);
    }
    const double middle = (decode(lower) + above) / 2;
    const auto exact = static_cast<float>(middle);
    if (exact == middle) {
      const TypeParam even = bits % 2 == 0 ? lower : upper;
      ASSERT_EQ(TypeParam(exact).bits, even.bits) << bits;
      ASSERT_EQ(TypeParam(-exact).bits, even.bits | 0x8000) << bits;
    }
    const float huge = std::numeric_limits<float>::max();
    ASSERT_EQ(TypeParam(std::nextafter(exact, 0.0f)).bits, lower.bits) << bits;
    if (exact < huge) {
      ASSERT_EQ(TypeParam(std::nextafter(exact, huge)).bits, upper.bits) << bits;
    }
  }
}

TYPED_TEST(HalfTest, KeepsInfinityAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(static_cast<float>(TypeParam(infinity)), infinity);
  EXPECT_EQ(static_cast<float>(TypeParam(-infinity)), -infinity);
  for (const std::uint32_t bits : {0x7f800001u, 0x7fc00000u, 0xff800001u, 0x7fffffffu, 0xffffffffu})
    EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam(std::bit_cast<float>(bits))))) << bits;
  EXPECT_TRUE(std::isinf(static_cast<float>(float16(1e30f))));
}

TEST(DType, NamesSizesAndFlags) {
  struct Known {
    DType dtype;
    int flag;
    const char* name;
    std::size_t size;
    bool floating;
  };
  const std::vector<Known> known = {
      {DType::kFloat32, 0, "float32", 4, true},   {DType::kFloat64, 1, "float64", 8, true},
      {DType::kFloat16, 2, "float16", 2, true},   {DType::kUint8, 3, "uint8", 1, false},
      {DType::kInt32, 4, "int32", 4, false},      {DType::kInt8, 5, "int8", 1, false},
      {DType::kInt64, 6, "int64", 8, false},      {DType::kBool, 7, "bool", 1, false},
      {DType::kBfloat16, 12, "bfloat16", 2, true}};
  std::vector<bool> valid(300);
  for (const Known& entry : known) {
    EXPECT_EQ(static_cast<int>(entry.dtype), entry.flag);
    EXPECT_EQ(name_of(entry.dtype), entry.name);
    EXPECT_EQ(parse_dtype(entry.name), entry.dtype);
    EXPECT_EQ(size_of(entry.dtype), entry.size);
    EXPECT_EQ(is_floating(entry.dtype), entry.floating);
    visit_dtype(entry.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      EXPECT_EQ(sizeof(T), entry.size);
      EXPECT_EQ(dtype_of<T>(), entry.dtype);
    });
    valid[static_cast<std::size_t>(entry.flag)] = true;
  }
  for (int flag = 0; flag < 300; ++flag) EXPECT_EQ(is_valid(flag), valid[static_cast<std::size_t>(flag)]) << flag;
  EXPECT_FALSE(is_valid(-1));
  EXPECT_FALSE(is_valid(256));
  EXPECT_THROW(parse_dtype("float"), InvalidArgument);
  EXPECT_THROW(size_of(static_cast<DType>(9)), InvalidArgument);
  EXPECT_THROW(visit_floating(DType::kInt8, "dense", [](auto) {}), InvalidArgument);
}

}  // namespace
}  // namespace paceline

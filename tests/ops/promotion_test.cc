// The types of results: those of PyTorch 2.15, but for the pair below that is ours.
#include <paceline/error.h>
#include <paceline/ops.h>
#include <support/refusal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace paceline {
namespace {

using test::refusal_of;
using testing::AllOf;
using testing::HasSubstr;

constexpr DType kTypes[] = {DType::kBool,    DType::kUint8,    DType::kInt8,    DType::kInt32,  DType::kInt64,
                            DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64};

// By row and column in the order of kTypes. u8 with i8 is int16 in PyTorch, which has one: int32 is ours.
constexpr const char* kArrays[9][9] = {
    {"bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"},
    {"uint8", "uint8", "int32", "int32", "int64", "float16", "bfloat16", "float32", "float64"},
    {"int8", "int32", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"},
    {"int32", "int32", "int32", "int32", "int64", "float16", "bfloat16", "float32", "float64"},
    {"int64", "int64", "int64", "int64", "int64", "float16", "bfloat16", "float32", "float64"},
    {"float16", "float16", "float16", "float16", "float16", "float16", "float32", "float32", "float64"},
    {"bfloat16", "bfloat16", "bfloat16", "bfloat16", "bfloat16", "float32", "bfloat16", "float32", "float64"},
    {"float32", "float32", "float32", "float32", "float32", "float32", "float32", "float32", "float64"},
    {"float64", "float64", "float64", "float64", "float64", "float64", "float64", "float64", "float64"}};
// With true, 1 and 1.5.
constexpr const char* kNumbers[9][3] = {
    {"bool", "int64", "float32"},         {"uint8", "uint8", "float32"},     {"int8", "int8", "float32"},
    {"int32", "int32", "float32"},        {"int64", "int64", "float32"},     {"float16", "float16", "float16"},
    {"bfloat16", "bfloat16", "bfloat16"}, {"float32", "float32", "float32"}, {"float64", "float64", "float64"}};
// An array with axes (row) beside one without (column).
constexpr const char* kWithoutAxes[9][9] = {
    {"bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"},
    {"uint8", "uint8", "uint8", "uint8", "uint8", "float16", "bfloat16", "float32", "float64"},
    {"int8", "int8", "int8", "int8", "int8", "float16", "bfloat16", "float32", "float64"},
    {"int32", "int32", "int32", "int32", "int32", "float16", "bfloat16", "float32", "float64"},
    {"int64", "int64", "int64", "int64", "int64", "float16", "bfloat16", "float32", "float64"},
    {"float16", "float16", "float16", "float16", "float16", "float16", "float16", "float16", "float16"},
    {"bfloat16", "bfloat16", "bfloat16", "bfloat16", "bfloat16", "bfloat16", "bfloat16", "bfloat16", "bfloat16"},
    {"float32", "float32", "float32", "float32", "float32", "float32", "float32", "float32", "float32"},
    {"float64", "float64", "float64", "float64", "float64", "float64", "float64", "float64", "float64"}};

NDArray one(DType dtype, const Shape& shape = {1}) { return NDArray::full(shape, 1, dtype); }

TEST(Promotion, OfTwoArrays) {
  for (int i = 0; i < 9; ++i)
    for (int j = 0; j < 9; ++j) {
      const NDArray a = one(kTypes[i]), b = one(kTypes[j]), scalar = one(kTypes[j], {});
      SCOPED_TRACE(a.describe() + " with " + b.describe());
      EXPECT_EQ(name_of(result_type(a, b)), kArrays[i][j]);
      EXPECT_EQ(name_of(result_type(a, scalar)), kWithoutAxes[i][j]);
      EXPECT_EQ(name_of(result_type(scalar, a)), kWithoutAxes[i][j]);
      EXPECT_EQ(name_of(where(NDArray::full({1}, 1, DType::kBool), a, b).dtype()), kArrays[i][j]);
      EXPECT_EQ(equal(a, b).dtype(), DType::kBool);
      if (i == 0 && j == 0) continue;  // arithmetic takes no bool
      EXPECT_EQ(name_of((a + b).dtype()), kArrays[i][j]);
      EXPECT_EQ((a + b).item<double>(), 2);
      EXPECT_EQ(name_of(maximum(a, b).dtype()), kArrays[i][j]);
      EXPECT_EQ(name_of((a / b).dtype()), i < 5 && j < 5 ? "float32" : kArrays[i][j]);
    }
}

TEST(Promotion, OfAnArrayAndANumber) {
  const Number numbers[] = {true, 1, 1.5};
  for (int i = 0; i < 9; ++i)
    for (int j = 0; j < 3; ++j) {
      const NDArray a = one(kTypes[i]);
      SCOPED_TRACE(a.describe() + " with " + std::to_string(numbers[j].value()));
      EXPECT_EQ(name_of(result_type(a, numbers[j])), kNumbers[i][j]);
      EXPECT_EQ(less(a, numbers[j]).item<bool>(), j == 2);
      EXPECT_EQ(name_of(where(NDArray::full({1}, 1, DType::kBool), a, numbers[j]).dtype()), kNumbers[i][j]);
      if (std::string(kNumbers[i][j]) == "bool") continue;
      EXPECT_EQ(name_of((a * numbers[j]).dtype()), kNumbers[i][j]);
      EXPECT_EQ((a * numbers[j]).item<double>(), numbers[j].value());
      EXPECT_EQ(name_of((a / numbers[j]).dtype()), i < 5 ? "float32" : kNumbers[i][j]);
    }
  EXPECT_TRUE(less(NDArray::zeros({1}, DType::kInt32), 0.5).item<bool>());
  EXPECT_EQ(clip(NDArray::full({1}, 5, DType::kInt32), 0, 3).dtype(), DType::kInt32);
  EXPECT_EQ(clip(NDArray::full({1}, 5, DType::kInt32), 0, 2.5).item<double>(), 2.5);
}

TEST(Promotion, RefusesNumbersThatTheTypeCannotHold) {
  const NDArray bytes = one(DType::kUint8), halves = one(DType::kFloat16);
  EXPECT_THAT(refusal_of([&] { bytes + 300; }),
              AllOf(HasSubstr("[add_scalar] uint8 cannot hold the number 300"), HasSubstr("cast the array")));
  EXPECT_THAT(refusal_of([&] { less(bytes, -1); }), HasSubstr("uint8 cannot hold"));
  EXPECT_THAT(refusal_of([&] { halves * 1e6; }), HasSubstr("float16 cannot hold"));
  EXPECT_THAT(refusal_of([&] { bytes.fill(0.5); }), HasSubstr("[fill] uint8 cannot hold the number 0.5"));
  EXPECT_THAT(refusal_of([&] { NDArray::full({1}, 2, DType::kBool); }), HasSubstr("bool cannot hold"));
  EXPECT_THAT(refusal_of([&] { where(NDArray::full({1}, 1, DType::kBool), bytes, 256); }), HasSubstr("[where]"));
  EXPECT_THAT(refusal_of([&] { Number((std::int64_t{1} << 60) + 1); }), HasSubstr("53 significant bits"));
  EXPECT_EQ(Number(std::int64_t{1} << 60).value(), 1152921504606846976.0);
  EXPECT_EQ(refusal_of([&] { bytes + 254; }), "");
}

TEST(Promotion, InPlaceTheTypeStays) {
  const NDArray whole = one(DType::kInt32), real = one(DType::kFloat32);
  EXPECT_THAT(refusal_of([&] { whole += 0.5; }), HasSubstr("gives float32, which cannot overwrite int32 (1,)"));
  EXPECT_THAT(refusal_of([&] { whole += real; }), HasSubstr("gives float32"));
  EXPECT_THAT(refusal_of([&] { whole /= 2; }), HasSubstr("cannot overwrite"));
  real += whole;
  real += 1;
  EXPECT_EQ(real.item<float>(), 3);
}

}  // namespace
}  // namespace paceline

#include <paceline/ops.h>
#include <support/every_call.h>
#include <support/operator_case.h>
#include <support/tolerance.h>

#include <gtest/gtest.h>

#include <cmath>

namespace paceline::test {
namespace {

// The definition of attention for one batch. `mask`, where there is one, is added to the scores.
CaseArray direct(const CaseArray& q, const CaseArray& k, const CaseArray& v, double scale, bool causal,
                 const CaseArray& mask) {
  const auto rows = static_cast<std::size_t>(q.shape[0]), keys = static_cast<std::size_t>(k.shape[0]);
  const auto depth = static_cast<std::size_t>(q.shape[1]), width = static_cast<std::size_t>(v.shape[1]);
  CaseArray y{{q.shape[0], v.shape[1]}, std::vector<double>(rows * width)};
  for (std::size_t i = 0; i < rows; ++i) {
    std::vector<double> share(keys);
    double total = 0;
    for (std::size_t j = 0; j < keys; ++j) {
      double score = mask.none ? 0 : mask.values[i * keys + j];
      for (std::size_t e = 0; e < depth; ++e) score += scale * q.values[i * depth + e] * k.values[j * depth + e];
      share[j] = causal && j > i ? 0 : std::exp(score);
      total += share[j];
    }
    for (std::size_t j = 0; j < keys; ++j)
      for (std::size_t e = 0; e < width && total > 0; ++e)
        y.values[i * width + e] += share[j] / total * v.values[j * width + e];
  }
  return y;
}

OperatorCase one(const std::string& name, std::int64_t queries, std::int64_t keys, const AttentionAttributes& how,
                 const CaseArray& mask = no_array()) {
  const CaseArray q = sample({queries, 3}, 1), k = sample({keys, 3}, 2), v = sample({keys, 4}, 3);
  CaseArray added = mask;
  if (mask.dtype == DType::kBool) added = mapped(mask, [](double seen) { return seen != 0 ? 0 : -INFINITY; });
  return {.name = name,
          .inputs = {q, k, v, mask},
          .attributes = with(how),
          .expected = {direct(q, k, v, how.scale.value_or(1 / std::sqrt(3)), how.causal, added)},
          .tolerance = 8};
}

const RegisterCases kAttention(
    "attention",
    {one("plain", 4, 5, {}),
     one("causal", 5, 3, {.causal = true}),
     one("scaled", 2, 6, {.scale = 0.3}),
     one("added mask", 3, 4, {}, sample({3, 4}, 5)),
     one("a blind query", 2, 3, {}, typed(DType::kBool, {2, 3}, {1, 0, 1, 0, 0, 0})),
     one("causal and masked", 3, 3, {.causal = true}, typed(DType::kBool, {3, 3}, {0, 1, 1, 1, 0, 1, 1, 1, 0})),
     {.name = "leading axes broadcast",
      .inputs = {sample({2, 1, 3, 2}, 1), sample({3, 4, 2}, 2), sample({1, 4, 5}, 3), sample({3, 1, 4}, 4)},
      .tolerance = 8},
     {.name = "no batches",
      .inputs = {sample({0, 3, 2}, 1), sample({0, 4, 2}, 2), sample({0, 4, 5}, 3), no_array()},
      .expected = {array({0, 3, 5}, {})},
      .gradient = false},
     {.name = "no keys",
      .inputs = {sample({3, 2}, 1), sample({0, 2}, 2), sample({0, 1}, 3), no_array()},
      .expected = {array({3, 1}, {0, 0, 0})},
      .gradient = false}},
    {{"do not fit", {sample({3, 2}, 1), sample({4, 3}, 2), sample({4, 2}, 3), no_array()}},
     {"expected one floating type", {sample({3}, 1), sample({4, 3}, 2), sample({4, 2}, 3), no_array()}},
     {"mask is int32", {sample({1, 2}, 1), sample({1, 2}, 2), sample({1, 2}, 3), typed(DType::kInt32, {1, 1}, {1})}}});

TEST(Attention, LiesInMemoryAsItsOperandsDo) {
  // (examples, steps, heads, width)
  const auto heads = [](double value) { return NDArray::full({2, 5, 3, 4}, value).permute({0, 2, 1, 3}); };
  const OpDef& op = find_operator("attention");
  OpCall call;
  call.inputs = {heads(1), heads(2), heads(3), NDArray()};
  call.attribute_data = with(AttentionAttributes{});
  for (const NDArray& x : call.inputs) call.input_specs.push_back({x.is_none() ? Shape() : x.shape(), DType::kFloat32});
  const NDArray out = attention(call.inputs[0], call.inputs[1], call.inputs[2]);
  EXPECT_TRUE(out.permute({0, 2, 1, 3}).is_contiguous());
  call.outputs = {out, NDArray({2, 3, 5, 2})};
  call.outputs[1].fill(1);
  const auto gradients = op.gradient_rule()(call, {heads(1)});
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(gradients.at(static_cast<std::size_t>(i)).dense.permute({0, 2, 1, 3}).is_contiguous()) << i;
}

struct HalvesCase {
  std::int64_t queries, keys, depth, width;
  bool causal;
  DType mask;  // kInt8: there is no mask; kBool: true lets a key be seen; other types: the mask is added
  DType dtype;
};

// The result and the gradients, computed in `type` from numbers that the case's type holds.
std::vector<std::vector<double>> attend_in(DType type, Device device, const HalvesCase& one) {
  const auto make = [&](const Shape& shape, std::uint64_t seed) {
    const NDArray x(shape);
    kernels::fill_normal(x, 0, 1, seed);
    return x.cast(one.dtype).cast(type).to(device);
  };
  NDArray mask;
  if (one.mask != DType::kInt8) mask = make({one.queries, one.keys}, 4);
  if (one.mask == DType::kBool) mask = greater(mask, NDArray::full({1}, -1, type, device));
  EveryCall last;
  std::vector<NDArray> found;
  {
    const RecordingScope recording(&last);
    found.push_back(attention(make({2, one.queries, one.depth}, 1), make({one.keys, one.depth}, 2),
                              make({2, one.keys, one.width}, 3), mask, {.causal = one.causal}));
  }
  const OpDef& op = find_operator("attention");
  for (const Gradient& gradient : op.gradient_rule()(last.calls.back(), {make(found[0].shape(), 5)}))
    if (!gradient.is_none()) found.push_back(gradient.dense);
  std::vector<std::vector<double>> result;
  for (const NDArray& x : found) result.push_back(x.to(Device()).to_vector<double>());
  return result;
}

TEST(Attention, CudaHalvesFollowFloat64) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  constexpr DType kHalf = DType::kFloat16, kBrain = DType::kBfloat16, kNone = DType::kInt8, kBool = DType::kBool;
  for (const HalvesCase& one : {HalvesCase{70, 70, 16, 8, true, kNone, kBrain},
                                {17, 70, 5, 9, false, kBool, kHalf},
                                {66, 34, 72, 40, false, kHalf, kHalf},
                                {20, 40, 8, 8, true, kBrain, kBrain}}) {
    SCOPED_TRACE(str(one.queries, " x ", one.keys, ", mask ", name_of(one.mask), ", ", name_of(one.dtype)));
    const auto there = attend_in(one.dtype, Device("cuda:0"), one), here = attend_in(DType::kFloat64, Device(), one);
    ASSERT_EQ(there.size(), here.size());
    for (std::size_t i = 0; i < here.size(); ++i)
      EXPECT_TRUE(all_near(there[i], here[i], tolerance_of(one.dtype))) << "array " << i;
  }
}

}  // namespace
}  // namespace paceline::test

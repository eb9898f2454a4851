#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

#include <cmath>

namespace paceline::test {
namespace {

// The definition for one batch; every mask is one to add.
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

}  // namespace
}  // namespace paceline::test

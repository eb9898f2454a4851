// Attention tile by tile beside the same written with whole matrices of scores.
#include <gtest/gtest.h>
#include <paceline/autograd.h>
#include <paceline/cores.h>
#include <paceline/kernel.h>
#include <paceline/ops.h>

#include <cmath>

#include "memory_pool.h"

namespace paceline {
namespace {

struct Problem {
  Shape query, key, value, mask;
  bool causal = false, bools = false;
};

struct Result {
  std::vector<NDArray> arrays;  // out, gradients of query, key, value and mask
};

NDArray numbers(const Shape& shape, DType dtype, std::uint64_t seed, Engine& engine) {
  const NDArray x(shape, dtype, {}, engine);
  kernels::fill_normal(x, 0, 1, seed);
  return x;
}

NDArray with_whole_scores(const NDArray& query, const NDArray& key, const NDArray& value, const NDArray& mask,
                          const AttentionAttributes& how) {
  NDArray scores = batch_matmul(query, key, false, true) * (1 / std::sqrt(static_cast<double>(query.size(-1))));
  if (how.causal) {
    const auto count = [&](const Shape& shape, int axis) {
      return cumsum(NDArray::full(shape, 1, DType::kInt64, {}, query.engine()), axis);
    };
    scores = where(greater_equal(count({query.size(-2), 1}, 0), count({1, key.size(-2)}, 1)), scores, -INFINITY);
  }
  if (!mask.is_none()) scores = mask.dtype() == DType::kBool ? where(mask, scores, -INFINITY) : scores + mask;
  return batch_matmul(softmax(scores), value);
}

template <class Attention>
Result run(const Problem& problem, DType dtype, Engine& engine, const Attention& attend) {
  std::vector<NDArray> inputs{numbers(problem.query, dtype, 1, engine), numbers(problem.key, dtype, 2, engine),
                              numbers(problem.value, dtype, 3, engine)};
  if (problem.mask.ndim() > 0) inputs.push_back(numbers(problem.mask, dtype, 4, engine));
  Tape tape;
  Result result;
  for (const NDArray& input : inputs) {
    result.arrays.push_back(NDArray(input.shape(), dtype, {}, engine));
    tape.watch(input, result.arrays.back());
  }
  NDArray mask = inputs.size() > 3 ? inputs[3] : NDArray();
  // The first key is always seen, so that no row is blind, where the whole matrix gives NaN.
  if (problem.bools) {
    mask = greater(mask, 0);
    mask.narrow(-1, 0, 1).fill(1);
  }
  const NDArray out = attend(inputs[0], inputs[1], inputs[2], mask, AttentionAttributes{.causal = problem.causal});
  tape.backward(sum(out * numbers(out.shape(), dtype, 5, engine)));
  result.arrays.insert(result.arrays.begin(), out);
  return result;
}

const auto kTiles = [](const auto&... x) { return attention(x...); };

class AttentionTest : public testing::TestWithParam<Problem> {};

TEST_P(AttentionTest, GivesWhatWholeScoresGive) {
  const Problem& problem = GetParam();
  const Result tiles = run(problem, DType::kFloat64, default_engine(), kTiles);
  const Result whole = run(problem, DType::kFloat64, default_engine(), with_whole_scores);
  for (std::size_t i = 0; i < tiles.arrays.size(); ++i) {
    const auto found = tiles.arrays[i].to_vector<double>(), expected = whole.arrays[i].to_vector<double>();
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t k = 0; k < found.size(); ++k) ASSERT_NEAR(found[k], expected[k], 1e-12) << i << " at " << k;
  }
}

TEST_P(AttentionTest, SameBitsForAnyNumberOfThreads) {
  const auto engine = make_serial_engine();  // runs on this thread, with its team
  std::vector<std::vector<float>> first;
  for (const int threads : {1, 2, 3}) {
    const TeamScope team(threads);
    const Result result = run(GetParam(), DType::kFloat32, *engine, kTiles);
    std::vector<std::vector<float>> values;
    for (const NDArray& array : result.arrays) values.push_back(array.to_vector<float>());
    if (first.empty()) first = values;
    EXPECT_EQ(values, first) << threads << " threads";
  }
}

// Tiles are 64 rows and 128 columns: parts of one, several, and lengths that they do not divide.
INSTANTIATE_TEST_SUITE_P(Problems, AttentionTest,
                         testing::Values(Problem{{2, 3, 40, 8}, {2, 3, 50, 8}, {2, 3, 50, 6}, {}},
                                         Problem{{2, 130, 16}, {2, 300, 16}, {2, 300, 5}, {}},
                                         Problem{{3, 200, 8}, {3, 200, 8}, {3, 200, 8}, {}, true},
                                         Problem{{1, 70, 4}, {1, 300, 4}, {1, 300, 4}, {}, true},
                                         Problem{{1, 300, 4}, {1, 70, 4}, {1, 70, 4}, {}, true},
                                         Problem{{2, 2, 130, 8}, {2, 1, 140, 8}, {1, 2, 140, 8}, {130, 140}},
                                         Problem{{2, 2, 130, 8}, {2, 2, 140, 8}, {2, 2, 140, 8}, {2, 1, 1, 140}, true},
                                         Problem{{2, 130, 8}, {2, 260, 8}, {2, 260, 8}, {130, 260}, false, true}));

// In float32, -1e9 and a score are -1e9: the gradient needs the logarithm of the row's sum beside it.
TEST(AttentionMaskTest, ARowThatIsMaskedByLargeNumbersHasItsGradient) {
  const auto masked = [](const auto& attend) {
    return run({{2, 70, 8}, {2, 200, 8}, {2, 200, 8}, {70, 200}}, DType::kFloat32, default_engine(),
               [&](const NDArray& query, const NDArray& key, const NDArray& value, const NDArray& given,
                   const AttentionAttributes& how) {
                 const NDArray mask = given.clone();
                 mask.narrow(0, 3, 5).fill(-1e9);
                 return attend(query, key, value, mask, how);
               });
  };
  const Result tiles = masked(kTiles), whole = masked(with_whole_scores);
  for (std::size_t i = 0; i < tiles.arrays.size(); ++i) {
    const auto found = tiles.arrays[i].to_vector<float>(), expected = whole.arrays[i].to_vector<float>();
    for (std::size_t k = 0; k < found.size(); ++k) ASSERT_NEAR(found[k], expected[k], 1e-5) << i << " at " << k;
  }
}

TEST(AttentionMemoryTest, GrowsWithTheRows) {
  constexpr std::int64_t kSteps = 4096, kScores = kSteps * kSteps * 4;
  detail::MemoryPool& pool = detail::memory_pool(Device{});
  default_engine().wait_all();
  pool.restart_peak();
  const std::int64_t before = pool.statistics().bytes_in_use;
  const Shape shape{1, kSteps, 4};
  const Result result = run({shape, shape, shape, {}, true}, DType::kFloat32, default_engine(), kTiles);
  for (const NDArray& array : result.arrays) array.wait();
  EXPECT_LT(pool.restart_peak() - before, kScores / 16);
}

}  // namespace
}  // namespace paceline

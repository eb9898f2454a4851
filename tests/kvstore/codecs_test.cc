// Codecs against what is published of them.
#include <gtest/gtest.h>
#include <paceline/compression.h>
#include <paceline/updater.h>

#include <algorithm>
#include <cmath>

#include "pushed.h"

namespace paceline::test {
namespace {

constexpr std::int64_t kMany = 100000;

// Cubes of Gaussian numbers.
std::vector<float> heavy_tailed(std::int64_t count, unsigned seed) {
  std::vector<float> values = gaussian(count, seed);
  for (float& value : values) value = value * value * value;
  return values;
}

double square(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

// |decoded - x|^2 / |x|^2
double relative_error(const Codec& codec, const std::vector<float>& values) {
  std::vector<float> difference = push(codec, values).decoded;
  for (std::size_t i = 0; i < values.size(); ++i) difference[i] -= values[i];
  return square(difference) / square(values);
}

// Of rounding at random to the levels of buckets of 512, relative to |x|^2.
double qsgd_variance(const std::vector<float>& values, int levels) {
  constexpr std::size_t kBucket = 512;
  double sum = 0;
  for (std::size_t begin = 0; begin < values.size(); begin += kBucket) {
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
    const std::vector<float> bucket(first,
                                    first + static_cast<std::ptrdiff_t>(std::min(kBucket, values.size() - begin)));
    const double step = std::sqrt(square(bucket)) / levels;
    for (const float value : bucket) {
      const double place = std::abs(static_cast<double>(value)) / step, above = place - std::floor(place);
      sum += step * step * above * (1 - above);
    }
  }
  return sum / square(values);
}

// T2.1: MXNet's bytes, threshold 4.
TEST(Codecs, TwoBitWritesTheBytesOfMxnet) {
  const auto codec = codec_of("2bit:threshold=4");
  std::vector<std::vector<float>> state{{-3, 1, -1, 5, -2, 2, 3, -7, -2, -100}};
  const Pushed pushed = push(*codec, {-6, -2, 3, 1, 10, 5, -3, 2, -8, 0}, &state);
  EXPECT_EQ(pushed.bytes, (std::vector<std::byte>{std::byte{0x83}, std::byte{0xF2}, std::byte{0xA0}, std::byte{0}}));
  EXPECT_EQ(pushed.decoded, (std::vector<float>{-4, 0, 0, 4, 4, 4, 0, -4, -4, -4}));
  EXPECT_EQ(state[0], (std::vector<float>{-5, -1, 2, 2, 4, 3, 0, -1, -6, -96}));
}

TEST(Codecs, TwoBitAnswersTheNightlySequenceOfMxnet) {
  for (std::int64_t count = 1; count <= 40; ++count) {
    const auto codec = codec_of("2bit:threshold=0.5");
    std::vector<std::vector<float>> state;
    const auto next = [&](float value) {
      return push(*codec, std::vector<float>(static_cast<std::size_t>(count), value), &state).decoded;
    };
    const std::vector<float> nothing(static_cast<std::size_t>(count), 0),
        threshold(static_cast<std::size_t>(count), 0.5f);
    EXPECT_EQ(next(0.4f), nothing);
    EXPECT_EQ(next(0.5f - 0.4f), threshold);
    EXPECT_EQ(next(0.2f), nothing);
    EXPECT_EQ(next(0.5f - 0.2f), threshold);
    EXPECT_EQ(codec->max_bytes(count), static_cast<std::size_t>((count + 15) / 16 * 4));
  }
}

// T2.1: bytes and residuals are those of the rule, written down plainly, for every number of elements in the last byte.
TEST(Codecs, TwoBitRoundTripsWhateverTheSize) {
  for (std::int64_t count = 1; count <= 40; ++count) {
    const auto codec = codec_of("2bit:threshold=0.5");
    std::vector<std::vector<float>> state;
    std::vector<float> residual(static_cast<std::size_t>(count));
    for (unsigned step = 0; step < 5; ++step) {
      const std::vector<float> values = gaussian(count, 50 * static_cast<unsigned>(count) + step);
      std::vector<std::byte> bytes(static_cast<std::size_t>((count + 15) / 16 * 4));
      std::vector<float> delivered(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        residual[i] += values[i];
        const unsigned code = residual[i] >= 0.5f ? 3 : residual[i] <= -0.5f ? 2 : 0;
        delivered[i] = code == 3 ? 0.5f : code == 2 ? -0.5f : 0;
        residual[i] -= delivered[i];
        bytes[i / 4] |= static_cast<std::byte>(code << (6 - 2 * (i % 4)));
      }
      const Pushed pushed = push(*codec, values, &state);
      EXPECT_EQ(pushed.bytes, bytes) << count;
      EXPECT_EQ(pushed.decoded, delivered) << count;
      EXPECT_EQ(state[0], residual) << count;
    }
  }
}

TEST(Codecs, TwoBitWithoutThresholdSendsANaN) {
  for (const char* const text : {"2bit", "2bit:error_feedback=0"}) {
    const std::vector<float> sent = push(*codec_of(text), {std::nanf(""), 1, 1, 1, 1}).decoded;
    EXPECT_TRUE(std::isnan(sent.front())) << text;
  }
}

TEST(Codecs, ANaNIsSentOnceAndLeavesNothingToSend) {
  for (const char* const text : {"2bit", "1bit:error_feedback=1"}) {
    std::vector<std::vector<float>> state;
    push(*codec_of(text), {std::nanf(""), 1, 1, 1, 1}, &state);
    EXPECT_EQ(state[0].front(), 0) << text;
  }
}

TEST(Codecs, OneBitSendsTwoNumbersAndABitForEachElement) {
  for (const std::int64_t count : {1, 8, 9, 16})
    EXPECT_EQ(codec_of("1bit")->max_bytes(count), static_cast<std::size_t>(8 + (count + 7) / 8)) << count;
}

// T2.2, exact: a threshold that is a power of two and gradients on a grid.
TEST(Codecs, TwoBitConservesExactly) {
  const auto codec = codec_of("2bit:threshold=0.5");
  std::mt19937 random(1);
  std::vector<std::vector<float>> state;
  std::vector<float> given(100), delivered(100);
  for (int step = 0; step < 1000; ++step) {
    std::vector<float> values(100);
    for (float& value : values) value = (static_cast<float>(random() % 65) - 32) / 64;
    const std::vector<float> sent = push(*codec, values, &state).decoded;
    for (std::size_t i = 0; i < values.size(); ++i) {
      given[i] += values[i];
      delivered[i] += sent[i];
      ASSERT_EQ(delivered[i] + state[0][i], given[i]);
    }
  }
}

// T2.3
TEST(Codecs, ErrorsAreThosePublished) {
  const std::vector<float> normal = gaussian(kMany, 1), heavy = heavy_tailed(kMany, 1);
  const auto expect = [&](const std::string& text, double on_normal, double on_heavy) {
    const auto codec = codec_of(text + (text.find(':') == std::string::npos ? ":" : ",") + "error_feedback=0");
    EXPECT_NEAR(relative_error(*codec, normal), on_normal, 0.02 * on_normal) << text;
    EXPECT_NEAR(relative_error(*codec, heavy), on_heavy, 0.02 * on_heavy) << text;
  };
  expect("top_k:ratio=0.001", 0.9875, 0.8586);
  expect("top_k:ratio=0.01", 0.9165, 0.5367);
  expect("top_k:ratio=0.1", 0.5614, 0.0893);
  EXPECT_NEAR(relative_error(*codec_of("bf16"), normal), 2.8e-6, 0.02 * 2.8e-6);
  expect("1bit", 0.3636, 0.829);
  expect("random_k:ratio=0.1", 0.9, 0.9);
  const auto scaled_sign = [](const std::vector<float>& values) {
    double sum = 0;
    for (const float value : values) sum += std::abs(static_cast<double>(value));
    return 1 - sum * sum / static_cast<double>(values.size()) / square(values);
  };
  expect("sign", scaled_sign(normal), scaled_sign(heavy));
  // The last is published to one digit only; what it is of these numbers follows from how they lie between the levels.
  const std::vector<std::pair<int, double>> qsgd{{1, 17.0}, {3, 5.0}, {7, 1.58}, {127, 0.005}};
  for (const auto& [levels, published] : qsgd) {
    const double variance = qsgd_variance(normal, levels);
    EXPECT_NEAR(variance, published, levels == 127 ? 0.0005 : 0.02 * published) << levels;
    EXPECT_NEAR(relative_error(*codec_of(str("qsgd:levels=", levels)), normal), variance, 0.02 * variance) << levels;
  }
}

// T2.5: the mean of independent decodes comes as close as the mean of independent unbiased numbers.
TEST(Codecs, QsgdIsUnbiased) {
  const std::vector<float> values = gaussian(kMany, 4);
  const auto codec = codec_of("qsgd:levels=7");
  constexpr int kDecodes = 20;
  std::vector<float> mean(values.size());
  double one = 0;
  for (int i = 0; i < kDecodes; ++i) {
    std::vector<float> decoded = push(*codec, values, nullptr, {.slice = 5, .push = i}).decoded;
    for (std::size_t j = 0; j < values.size(); ++j) {
      mean[j] += decoded[j] / kDecodes;
      decoded[j] -= values[j];
    }
    one += square(decoded) / kDecodes;
  }
  for (std::size_t j = 0; j < values.size(); ++j) mean[j] -= values[j];
  EXPECT_NEAR(square(mean), one / kDecodes, 0.03 * one / kDecodes);
  const auto decoded = [&](const EncodeContext& context) { return push(*codec, values, nullptr, context).decoded; };
  EXPECT_NE(decoded({.slice = 5, .worker = 0}), decoded({.slice = 5, .worker = 1}));
}

// The number of levels divided by such a norm is no float.
TEST(Codecs, QsgdLeavesZerosOfATinyNormAlone) {
  for (const int levels : {1, 7, 127}) {
    SCOPED_TRACE(levels);
    const float tiny = static_cast<float>(levels) * 1e-39f;
    const std::vector<float> decoded = push(*codec_of(str("qsgd:levels=", levels)), {0, tiny, -tiny, 0}).decoded;
    EXPECT_EQ(decoded[0], 0);
    EXPECT_EQ(decoded[3], 0);
    EXPECT_GE(decoded[1], 0);
    EXPECT_LE(decoded[2], 0);
  }
}

// T2.4, counterexample 1 (Karimireddy et al. 2019): g is 4 in a quarter of the steps, else -1, on [-1, 1].
TEST(Codecs, SignsNeedErrorFeedbackWhenGradientsAreSkewed) {
  const auto run = [](const std::string& text) {
    const auto codec = codec_of(text);
    std::mt19937 random(6);
    std::vector<std::vector<float>> state;
    double x = 0, tail = 0;
    constexpr int kSteps = 20000;
    for (int step = 0; step < kSteps; ++step) {
      const float gradient = random() % 4 == 0 ? 4 : -1;
      x = std::clamp(x - 0.0005 * static_cast<double>(push(*codec, {gradient}, &state).decoded[0]), -1.0, 1.0);
      if (step >= kSteps / 2) tail += x / (kSteps - kSteps / 2);
    }
    return tail;
  };
  EXPECT_LE(run("sign"), -0.99);
  EXPECT_NEAR(run("sign:majority=1"), 1, 0.001);
}

// T2.4, counterexample 2: f = |x1 + x2| / 2 + |x1 - x2| from (1, 1).
TEST(Codecs, SignsNeedErrorFeedbackWhereTheySpanTooLittle) {
  const auto run = [](const std::string& text) {
    const auto codec = codec_of(text);
    std::vector<std::vector<float>> state;
    double x = 1, y = 1;
    const auto sign = [](double value) { return value > 0 ? 1.0 : value < 0 ? -1.0 : 0.0; };
    for (int step = 1; step <= 20000; ++step) {
      const double a = 0.5 * sign(x + y), b = sign(x - y);
      // At a kink the one-sided gradient away from it: the subgradient 0 would end the run.
      const auto decoded =
          push(*codec, {static_cast<float>(a + (b == 0 ? 1 : b)), static_cast<float>(a - (b == 0 ? 1 : b))}, &state)
              .decoded;
      const double rate = 0.1 / std::sqrt(step);
      x -= rate * static_cast<double>(decoded[0]);
      y -= rate * static_cast<double>(decoded[1]);
    }
    return std::pair{0.5 * std::abs(x + y), std::abs(x - y)};
  };
  const auto [low, level] = run("sign");
  EXPECT_LE(low + level, 0.002);
  // Signs alone only go along x + y = 2: f stays at 1, but for the last step.
  const auto [stuck, apart] = run("sign:majority=1");
  EXPECT_NEAR(stuck, 1, 1e-9);
  EXPECT_LE(apart, 2 * 0.1 / std::sqrt(20000));
}

// In a round every worker has a vote per element, whatever its gradient's size; a tie moves nothing, for else weights
// that get noise alone would drift.
TEST(Codecs, MajorityOfSignsIsApplied) {
  const auto updater = make_updater();
  updater->set_rules(Spec::parse("sgd:lr=1"), "none", {});
  const std::vector<float> zeros(4);
  const int slice = updater->add_slice({"w", 0, 4, DType::kFloat32}, zeros.data());
  const auto codec = codec_of("sign:majority=1");
  const std::vector<std::vector<float>> gradients = {{-100, 1, 1, 0}, {1, 1, -1, -3}, {2, -50, -1, 4}, {3, -1, -1, -9}};
  std::vector<Pushed> pushed;
  std::vector<Contribution> round;
  for (const auto& gradient : gradients) pushed.push_back(push(*codec, gradient));
  for (int i = 0; i < 4; ++i) {
    const auto& bytes = pushed[static_cast<std::size_t>(i)].bytes;
    round.push_back({i, 0, 1 + 10 * i, bytes.data(), codec.get(), bytes.size()});
  }
  updater->apply_round(slice, round);
  std::vector<float> weights(4);
  updater->read(slice, -1, weights.data());
  EXPECT_EQ(weights, (std::vector<float>{-1, 0, 1, 0}));
}

TEST(Codecs, RandomPlacesAreTheSameAtEveryWorker) {
  const auto codec = codec_of("random_k:ratio=0.05,error_feedback=0");
  const std::vector<float> ones(5000, 1);
  const auto at = [&](std::int64_t push_number, int worker) {
    return push(*codec, ones, nullptr, {.slice = 9, .push = push_number, .worker = worker}).decoded;
  };
  EXPECT_EQ(at(0, 0), at(0, 1));
  EXPECT_NE(at(0, 0), at(1, 0));
  const std::vector<float> sent = at(2, 0);
  EXPECT_EQ(std::count(sent.begin(), sent.end(), 1.0f), 250);
}

// T2.6: a matrix of the codec's rank arrives whole, and one that changes slowly is followed.
TEST(Codecs, PowerSgdSendsMatricesOfItsRankWhole) {
  constexpr std::size_t kRows = 120, kColumns = 80;
  const auto low_rank = [](int rank, unsigned seed) {
    const std::vector<float> a = gaussian(rank * static_cast<std::int64_t>(kRows), seed),
                             b = gaussian(rank * static_cast<std::int64_t>(kColumns), seed + 1);
    std::vector<float> matrix(kRows * kColumns + 7);
    for (std::size_t k = 0; k < static_cast<std::size_t>(rank); ++k)
      for (std::size_t i = 0; i < kRows; ++i)
        for (std::size_t j = 0; j < kColumns; ++j) matrix[i * kColumns + j] += a[k * kRows + i] * b[k * kColumns + j];
    for (std::size_t i = 0; i < 7; ++i) matrix[kRows * kColumns + i] = static_cast<float>(i);
    return matrix;
  };
  const auto error = [](const std::vector<float>& decoded, const std::vector<float>& matrix) {
    std::vector<float> difference = decoded;
    for (std::size_t i = 0; i < matrix.size(); ++i) difference[i] -= matrix[i];
    return std::sqrt(square(difference) / square(matrix));
  };
  const EncodeContext context{.columns = kColumns};
  for (const int rank : {1, 2, 4}) {
    const auto codec = codec_of(str("power_sgd:error_feedback=0,rank=", rank));
    std::vector<std::vector<float>> state;
    const std::vector<float> matrix = low_rank(rank, 20);
    push(*codec, matrix, &state, context);
    const Pushed warm = push(*codec, matrix, &state, context);
    EXPECT_LT(error(warm.decoded, matrix), 1e-5) << rank;
    EXPECT_EQ(warm.bytes.size(), 16 + 4 * (static_cast<std::size_t>(rank) * (kRows + kColumns) + 7));
    EXPECT_EQ(std::vector<float>(warm.decoded.end() - 7, warm.decoded.end()),
              std::vector<float>(matrix.end() - 7, matrix.end()));
    // Less than its rank, and nothing at all.
    EXPECT_LT(error(push(*codec, low_rank(1, 30), &state, context).decoded, low_rank(1, 30)), 1e-5);
    const std::vector<float> zeros(matrix.size());
    EXPECT_EQ(push(*codec, zeros, &state, context).decoded, zeros);
    EXPECT_LT(error(push(*codec, low_rank(1, 40), &state, context).decoded, low_rank(1, 40)), 1e-5);
  }
  // The power iteration finds the largest part: of singular values 10 and 1, the first.
  const auto codec = codec_of("power_sgd:error_feedback=0,rank=1");
  std::vector<float> sum = low_rank(1, 50);
  const std::vector<float> minor = low_rank(1, 60);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = 10 * sum[i] + minor[i];
  std::vector<std::vector<float>> state;
  for (int i = 0; i < 5; ++i) push(*codec, sum, &state, context);
  EXPECT_LT(error(push(*codec, sum, &state, context).decoded, sum), 0.15);
  // Vectors, and matrices that are too small, travel raw.
  EXPECT_EQ(push(*codec, minor, nullptr, {}).decoded, minor);
  EXPECT_EQ(push(*codec, {1, 2, 3, 4}, nullptr, {.columns = 2}).decoded, (std::vector<float>{1, 2, 3, 4}));
}

TEST(Codecs, VotesOfNothingTakeTurns) {
  const auto codec = codec_of("sign:majority=1");
  EXPECT_EQ(push(*codec, {0, -1, 2}, nullptr, {.push = 4}).decoded, (std::vector<float>{1, -1, 1}));
  EXPECT_EQ(push(*codec, {0, -1, 2}, nullptr, {.push = 5}).decoded, (std::vector<float>{-1, -1, 1}));
}

// Signum: the vote is on the sign of the momentum, so that one odd gradient does not turn it.
TEST(Codecs, VotesAreOnTheMomentum) {
  const auto plain = codec_of("sign:majority=1,momentum=0.5"),
             nesterov = codec_of("sign:majority=1,momentum=0.5,nesterov=1");
  std::vector<std::vector<float>> state;
  EXPECT_EQ(push(*plain, {4, -4, 1}, &state).decoded, (std::vector<float>{1, -1, 1}));
  EXPECT_EQ(push(*plain, {-1, 1, -1}, &state).decoded, (std::vector<float>{1, -1, -1}));
  EXPECT_EQ(state[0], (std::vector<float>{1, -1, -0.5f}));
  state = {{3, -3, 0}};
  EXPECT_EQ(push(*nesterov, {-1, 1, 2}, &state).decoded, (std::vector<float>{-1, 1, 1}));  // -1 + 0.5 * 0.5
  EXPECT_EQ(state[0], (std::vector<float>{0.5f, -0.5f, 2}));
  EXPECT_THROW(codec_of("sign:majority=1,momentum=1"), InvalidArgument);
  EXPECT_THROW(codec_of("sign:momentum=0.5"), InvalidArgument);
}

// Momentum correction: until something is sent, DGC is momentum summed up; where it was sent, both are forgotten.
TEST(Codecs, DgcKeepsMomentumAndMasksWhatItSent) {
  const auto codec = codec_of("dgc:ratio=0.25,warmup=0,momentum=0.5");
  std::vector<std::vector<float>> state;
  EXPECT_EQ(push(*codec, {1, 2, 4, 8}, &state).decoded, (std::vector<float>{0, 0, 0, 8}));
  EXPECT_EQ(state[1], (std::vector<float>{1, 2, 4, 0}));  // velocity
  // u = 0.5 u + g, v += u: 4 + (2 + 4) is sent.
  EXPECT_EQ(push(*codec, {1, 2, 4, 8}, &state).decoded, (std::vector<float>{0, 0, 10, 0}));
  EXPECT_EQ(state[0], (std::vector<float>{1 + 1.5f, 2 + 3, 0, 8}));
  EXPECT_EQ(state[1], (std::vector<float>{1.5f, 3, 0, 8}));
}

TEST(Codecs, DgcWarmsUpAndClips) {
  const auto codec = codec_of("dgc:ratio=0.01,warmup=2,momentum=0");
  const std::vector<float> values = gaussian(1000, 7);
  std::vector<std::vector<float>> state;
  std::vector<std::int64_t> sent;
  for (int i = 0; i < 8; ++i) {
    const auto decoded = push(*codec, values, &state, {.push = i}).decoded;
    sent.push_back(1000 - std::count(decoded.begin(), decoded.end(), 0.0f));
  }
  EXPECT_EQ(sent, (std::vector<std::int64_t>{250, 250, 63, 63, 16, 16, 10, 10}));

  const auto clipping = codec_of("dgc:ratio=1,warmup=0,clip_norm=10");
  EXPECT_EQ(push(*clipping, {30, 40}, nullptr, {.workers = 4}).decoded, (std::vector<float>{3, 4}));
}

// T2.8
TEST(Codecs, OnlyAFixedThresholdLimitsTheRate) {
  const auto rate = [](const std::string& text, const std::vector<float>& gradient) {
    const auto codec = codec_of(text);
    std::vector<std::vector<float>> state;
    double sent = 0, given = 0;
    for (int step = 0; step < 100; ++step) {
      const std::vector<float> decoded = push(*codec, gradient, &state).decoded;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        sent += std::abs(static_cast<double>(decoded[i]));
        given += std::abs(static_cast<double>(gradient[i]));
      }
    }
    return sent / given;
  };
  const std::vector<float> ones(100, 1.0f);
  EXPECT_DOUBLE_EQ(rate("2bit:threshold=0.5", ones), 0.5);
  EXPECT_GE(rate("2bit", ones), 0.95);
  EXPECT_GE(rate("2bit", gaussian(1000, 2)), 0.95);
  EXPECT_GE(rate("2bit", heavy_tailed(1000, 2)), 0.9);
}

TEST(Codecs, Fp16NeitherOverflowsNorVanishes) {
  const auto codec = codec_of("fp16");
  for (const float scale : {1e-38f, 1e-12f, 1e-7f, 1.0f, 1e5f, 1e30f}) {
    std::vector<float> values = gaussian(1000, 3);
    for (float& value : values) value *= scale;
    EXPECT_LT(relative_error(*codec, values), 1e-6) << scale;
  }
}

TEST(Codecs, IsWorthIfTheLinkIsSlow) {
  const CompressionCost cost{4e6, 2e6, 0.5e-3, 0.5e-3};
  EXPECT_TRUE(worth_compressing(cost, 1.25e9));  // saves 1.6 ms
  EXPECT_FALSE(worth_compressing(cost, 5e9));    // saves 0.4 ms
  EXPECT_FALSE(worth_compressing({4e6, 5e6, 0, 0}, 1.25e9));
}

}  // namespace
}  // namespace paceline::test

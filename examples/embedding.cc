// A table too large to pull whole: a million words, of which each step pulls, and pushes gradients for, those it meets.
// Words of the same parity occur together; their vectors learn to point the same way. Alone, or in a job:
//   launch.py -n 2 -s 2 embedding dist_async
#include <paceline/exit_code.h>
#include <paceline/kvstore.h>
#include <paceline/log.h>

#include <cmath>
#include <cstdio>
#include <random>

using namespace paceline;

constexpr std::int64_t kWords = 1000000, kWidth = 8, kPairs = 256;

// The product of the vectors 2p and 2p + 1.
float product_of(const float* vectors, std::int64_t pair) {
  float product = 0;
  for (int e = 0; e < kWidth; ++e) product += vectors[2 * pair * kWidth + e] * vectors[(2 * pair + 1) * kWidth + e];
  return product;
}

int main(int argc, char** argv) {
  start_logging(argv[0]);
  try {
    const auto kv = KVStore::create(argc > 1 ? argv[1] : "local");
    kv->init_table({"words", kWords, kWidth, DType::kFloat32, Spec::parse("normal:sigma=0.3,seed=1")});
    kv->set_optimizer(optim::Adam{.lr = 0.2});

    std::mt19937_64 random(static_cast<std::uint64_t>(kv->rank()));
    int right = 0;
    for (int step = 0; step < 400; ++step) {
      // Few words are common and most are rare.
      std::vector<std::int64_t> words(2 * kPairs);
      for (std::int64_t& word : words)
        word = static_cast<std::int64_t>(1000 / (1e-9 * static_cast<double>(random() % 1000000000) + 1e-3)) - 999;
      const NDArray ids = NDArray::from<std::int64_t>(words, {2 * kPairs});
      const NDArray rows = NDArray::zeros({2 * kPairs, kWidth}), gradients = NDArray::zeros({2 * kPairs, kWidth});
      kv->pull_rows({{"words", ids, rows}});
      rows.wait();
      gradients.wait();
      const float* vectors = rows.data_as<const float>();
      float* slopes = gradients.data_as<float>();
      right = 0;
      for (std::int64_t p = 0; p < kPairs; ++p) {
        const bool together = (words[2 * p] + words[2 * p + 1]) % 2 == 0;
        const float product = product_of(vectors, p);
        right += (product > 0) == together;
        const float slope = 1 / (1 + std::exp(-product)) - (together ? 1.0F : 0.0F);
        for (int e = 0; e < kWidth; ++e) {
          slopes[2 * p * kWidth + e] = slope * vectors[(2 * p + 1) * kWidth + e];
          slopes[(2 * p + 1) * kWidth + e] = slope * vectors[2 * p * kWidth + e];
        }
      }
      kv->push_rows({{"words", ids, gradients}}, kPairs);
      kv->step_end();
    }
    kv->barrier();
    if (kv->rank() == 0)
      std::printf("%s of the last pairs told apart, %s words in memory\n", right > kPairs * 3 / 4 ? "most" : "few",
                  kv->report().rows_held < kWords / 10 ? "few" : "all");
    kv->finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "embedding: %s\n", error.what());
    return exit_code_of(error);
  }
}

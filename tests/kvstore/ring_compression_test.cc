// Mode ring with gradients that travel encoded.
#include <gtest/gtest.h>
#include <paceline/error.h>
#include <support/cluster_in_process.h>

#include <array>
#include <cmath>
#include <random>

namespace paceline::test {
namespace {

constexpr int kWorkers = 3, kSteps = 30;
constexpr std::int64_t kRows = 300, kColumns = 500;  // two pieces

// Descends from 0 towards a random target of each worker's; the weights of every worker.
std::vector<std::vector<float>> train(const std::string& mode, double momentum, bool faulty = false,
                                      const std::vector<std::string>& hosts = {}) {
  ClusterInProcess cluster(
      {.mode = mode, .workers = kWorkers, .servers = 0, .faulty = faulty, .serial = false, .hosts = hosts});
  std::vector<std::vector<float>> weights(kWorkers);
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    std::vector<float> target(kRows * kColumns);
    std::minstd_rand random(static_cast<unsigned>(worker) + 1);
    for (float& t : target) t = static_cast<float>(random()) / static_cast<float>(std::minstd_rand::max()) - 0.5f;
    const NDArray large = NDArray::zeros(Shape{kRows, kColumns}, DType::kFloat32, {}, engine);
    const NDArray twofold = NDArray::zeros(Shape{5}, DType::kFloat64, {}, engine);  // travels raw
    store.init({{"large", large}, {"twofold", twofold}});
    store.set_optimizer(optim::SGD{.lr = 0.1, .momentum = momentum});
    for (int step = 0; step < kSteps; ++step) {
      std::vector<float> gradient = large.to_vector<float>();
      for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] -= target[i];
      const NDArray both[] = {NDArray::from<float>(gradient, large.shape(), {}, engine),
                              NDArray::full(Shape{5}, worker, DType::kFloat64, {}, engine)};
      store.push_pull({{"large", both[0]}, {"twofold", both[1]}}, {{"large", large}, {"twofold", twofold}}, 1);
      store.step_end();
    }
    EXPECT_EQ(store.report().refused, 0);
    std::vector<float>& mine = weights[static_cast<std::size_t>(worker)];
    mine = large.to_vector<float>();
    for (const double weight : twofold.to_vector<double>()) mine.push_back(static_cast<float>(weight));
  });
  return weights;
}

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0, norm = 0;
  for (std::size_t i = 0; i < a.size() - 5; ++i) {
    sum += std::pow(static_cast<double>(a[i] - b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(sum / norm);
}

struct Case {
  const char* compression;
  double loses;  // at most, of the distance from the start
};

class RingCompression : public testing::TestWithParam<Case> {};

// However it travels, all apply the same values, and they are the dense ones up to what the codec loses.
TEST_P(RingCompression, EverybodyAppliesTheSame) {
  for (const double momentum : {0.0, 0.5}) {
    static std::map<double, std::vector<float>> dense;
    if (dense[momentum].empty()) dense[momentum] = train("ring", momentum)[0];
    const auto weights = train(str("ring:compression=", GetParam().compression), momentum);
    for (const auto& others : weights) EXPECT_TRUE(others == weights[0]);
    const double lost = difference(weights[0], dense[momentum]);
    EXPECT_LE(lost, GetParam().loses);
    EXPECT_GT(lost, 0);  // it was encoded
    EXPECT_EQ(weights[0].back(), dense[momentum].back());
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, RingCompression,
                         testing::Values(Case{"bf16", 0.01}, Case{"bf16,pull=none", 0.01}, Case{"fp16", 0.001},
                                         Case{"bf16,error_feedback=1", 0.01}, Case{"2bit,threshold=0.2", 0.25},
                                         Case{"1bit", 0.2}, Case{"power_sgd,rank=16", 0.9},
                                         Case{"top_k,ratio=0.2", 0.2}, Case{"top_k,ratio=0.2,pull=bf16", 0.2},
                                         Case{"random_k,ratio=0.2", 0.5}, Case{"sign", 0.5}, Case{"qsgd", 0.5},
                                         Case{"none,pull=bf16", 0.01}),
                         [](const auto& info) {
                           std::string name = info.param.compression;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

TEST(RingCompressed, UnderFaults) {
  const auto weights = train("ring:compression=top_k,ratio=0.2,pull=bf16", 0.5, true);
  for (const auto& others : weights) EXPECT_TRUE(others == weights[0]);
}

TEST(RingCompressed, WhereAHostAddsUpFirst) {
  for (const char* compression : {"fp16", "1bit"}) {
    const auto weights = train(str("ring:compression=", compression), 0.5, false, {"a", "a", "b"});
    for (const auto& others : weights) EXPECT_TRUE(others == weights[0]);
    EXPECT_LE(difference(weights[0], train("ring", 0.5)[0]), 0.2);
  }
}

// The residual of 0.4 a step reaches the threshold in the third.
TEST(RingCompressed, ACallThatIsRefusedLeavesNothingBehind) {
  ClusterInProcess cluster({.mode = "ring:compression=2bit,threshold=1,min_bytes=1,pull=none", .servers = 0});
  cluster.run([&](int worker, KVStore& store) {
    const auto full = [&](std::int64_t size, float value) {
      return NDArray::full(Shape{size}, value, DType::kFloat32, {}, cluster.engine(worker));
    };
    const NDArray a = full(4, 0), b = full(4, 0), gradient = full(4, -0.4f);
    store.init({{"a", a}, {"b", b}});
    store.set_optimizer(optim::SGD{.lr = 1});
    for (int step = 0; step < 3; ++step) {
      EXPECT_THROW(store.push_pull({{"a", gradient}, {"b", gradient}}, {{"a", a}, {"b", full(5, 0)}}, 1),
                   InvalidArgument);
      EXPECT_THROW(store.push_pull({{"a", gradient}, {"b", gradient}, {"a", gradient}}, {}, 1), InvalidArgument);
      store.push_pull({{"a", gradient}, {"b", gradient}}, {{"a", a}, {"b", b}}, 1);
      store.step_end();
      for (const NDArray& weight : {a, b})
        EXPECT_EQ(weight.to_vector<float>(), std::vector<float>(4, step < 2 ? 0.0f : 1.0f)) << "step " << step;
    }
  });
}

TEST(RingCompressed, WarnsOnceThatACheckpointLacksTheResidual) {
  const auto warnings = [](const std::string& mode) {
    testing::internal::CaptureStderr();
    {
      ClusterInProcess cluster({.mode = mode, .workers = 1, .servers = 0});
      cluster.run([&](int worker, KVStore& store) {
        store.init({{"w", NDArray::zeros(Shape{4}, DType::kFloat32, {}, cluster.engine(worker))}});
        for (int i = 0; i < 2; ++i) store.save();
      });
    }
    const std::string log = testing::internal::GetCapturedStderr();
    int count = 0;
    for (std::size_t at = 0; (at = log.find("lacks the state of its codec", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  EXPECT_EQ(warnings("ring:compression=top_k,min_bytes=1"), 1);
  EXPECT_EQ(warnings("ring:compression=bf16"), 0);
}

TEST(RingCompressed, SaysWhatItDoesNotTake) {
  ClusterConfig config;
  config.servers = 0;
  const auto error = [&](const std::string& compression) {
    return error_of_call([&] { KVStore::join(config, "ring:compression=" + compression); });
  };
  EXPECT_NE(error("power_sgd,rounds=2").find("takes two rounds"), std::string::npos) << error("power_sgd,rounds=2");
  EXPECT_NE(error("sign,majority=1").find("takes the momentum"), std::string::npos) << error("sign,majority=1");
  EXPECT_NE(error("dgc").find("takes the momentum"), std::string::npos) << error("dgc");
  EXPECT_NE(error("bf16,bandwidth=measured").find("measures no links"), std::string::npos);
}

}  // namespace
}  // namespace paceline::test

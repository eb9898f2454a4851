// Staleness policies through real servers: checkpoints between modes, prediction, policies of the user's own.
#include <gtest/gtest.h>
#include <paceline/error.h>
#include <support/cluster_in_process.h>

#include <chrono>
#include <cmath>
#include <future>
#include <random>

#include "failed_array.h"

namespace paceline::test {
namespace {

constexpr std::int64_t kSize = 6;
const Spec kNesterov = optim::SGD{.lr = 0.1, .momentum = 0.9, .nesterov = true};

NDArray vector_of(const std::vector<double>& values, Engine& engine) {
  return NDArray::from<double>(values, Shape{static_cast<std::int64_t>(values.size())}, {}, engine);
}

NDArray begin(KVStore& store, Engine& engine, const Spec& optimizer = kNesterov) {
  const NDArray weight = NDArray::full(Shape{kSize}, 1, DType::kFloat64, {}, engine);
  store.init({{"w", weight}});
  store.set_optimizer(optimizer);
  return weight;
}

class Factor final : public Staleness {
 public:
  double factor(const StaleContext& context) const override { return static_cast<double>(1 + context.delay); }
  void correct(const Tile<float>&, const StaleContext&) const override {}
  void correct(const Tile<double>&, const StaleContext&) const override {}
};

TEST(StalenessChains, OnePartMayHaveAFactor) {
  const Extensions own{.policies = {{"mine", std::make_shared<Factor>()}}};
  make_staleness("gap_aware+mine", {}, own);
  make_staleness("mine+inverse_delay", {{"power", "0"}}, own);
  make_staleness("inverse_delay+inverse_delay", {});
  for (const char* const chain : {"mine+inverse_delay", "inverse_delay+gap_aware+mine"}) {
    try {
      make_staleness(chain, {}, own);
      FAIL() << chain;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("cannot be combined: each of them has a factor"), std::string::npos);
    }
  }
}

// Gradients of a quadratic, from the worker's own weights.
void train(KVStore& store, const NDArray& weight, Engine& engine, int steps) {
  for (int step = 0; step < steps; ++step) {
    std::vector<double> gradient = weight.to_vector<double>();
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] *= 0.1 * static_cast<double>(i + 1);
    store.push_pull({{"w", vector_of(gradient, engine)}}, {{"w", weight}});
    store.step_end();
    weight.wait();
  }
}

// Trains 7 steps, saves, and loads into a new job for 7 more. Arrays outlive the clusters, so all share an engine.
std::vector<double> trained_in(const std::string& first, const std::string& second, const Spec& optimizer = kNesterov) {
  const auto engine = make_threaded_engine();  // a barrier of dist_local pulls before its round is over
  const auto run = [&](const std::string& mode, const StoreState* load, StoreState* save) {
    std::vector<double> result;
    const auto work = [&](KVStore& store) {
      const NDArray weight = begin(store, *engine, optimizer);
      if (load) store.load(*load);
      train(store, weight, *engine, 7);
      *save = store.save();
      result = weight.to_vector<double>();
    };
    if (mode == "local") {
      StoreOptions options;
      options.engine = engine.get();
      work(*KVStore::create("local", options));
    } else {
      ClusterInProcess cluster({.mode = mode, .workers = 1, .engine = engine.get()});
      work(cluster.worker(0));
    }
    return result;
  };
  StoreState state, last;
  run(first, nullptr, &state);
  return run(second, &state, &last);
}

TEST(Checkpoints, MomentumMovesBetweenServersAndWorkers) {
  const std::vector<double> expected = trained_in("local", "local");
  const std::vector<std::string> modes{"local", "dist_sync", "dist_async:staleness=dana", "dist_async"};
  for (const std::string& first : modes)
    for (const std::string& second : modes) EXPECT_EQ(trained_in(first, second), expected) << first << " " << second;
}

// The servers compute the new weights from differences, which rounds them.
TEST(Checkpoints, LocalTrainingGoesOnFromEveryMode) {
  const std::vector<double> expected = trained_in("local", "local");
  for (const char* first : {"local", "dist_sync", "dist_async:staleness=dana", "dist_async"}) {
    SCOPED_TRACE(first);
    const std::vector<double> weights = trained_in(first, "dist_local:steps=1");
    ASSERT_EQ(weights.size(), expected.size());
    for (std::size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(weights[i], expected[i], 1e-12) << i;
  }
}

TEST(Checkpoints, AStateThatOneWorkerRefusesIsRefusedByAll) {
  const auto engine = make_threaded_engine();
  StoreOptions options;
  options.engine = engine.get();
  const auto local = KVStore::create("local", options);
  train(*local, begin(*local, *engine), *engine, 1);
  StoreState state = local->save();
  state.arrays.emplace_back("worker0:w/residual", NDArray::zeros(Shape{kSize}, DType::kFloat32, {}, *engine));
  ClusterInProcess cluster({.mode = "dist_async", .engine = engine.get()});
  cluster.run([&](int worker, KVStore& store) {
    const NDArray weight = begin(store, *engine);
    EXPECT_EQ(error_of_call([&] { store.load(worker == 0 ? state : StoreState{}); }),
              "[dana] has no state 'w/residual'")
        << worker;
    store.barrier();
    store.pull("w", weight);
    EXPECT_EQ(weight.to_vector<double>(), std::vector<double>(kSize, 1)) << worker;
  });
}

TEST(Checkpoints, StateOfAnotherPolicyIsDropped) {
  const Spec adam = optim::Adam{.lr = 0.1};
  const std::vector<double> expected = trained_in("local", "local", adam);
  for (const char* second : {"local", "dist_sync", "dist_async:staleness=delay_compensated"})
    EXPECT_EQ(trained_in("dist_async:staleness=gap_aware", second, adam), expected) << second;
}

TEST(Checkpoints, ManyWorkersMomentaAddUp) {
  const auto engine = make_serial_engine();
  StoreState state, again;
  {
    ClusterInProcess cluster({.mode = "dist_async:staleness=dana", .engine = engine.get()});
    std::vector<NDArray> weights(2);
    cluster.run([&](int worker, KVStore& store) { weights[static_cast<std::size_t>(worker)] = begin(store, *engine); });
    // Velocities of 2 and of 3 * 1.9.
    cluster.worker(0).push("w", NDArray::full(Shape{kSize}, 2, DType::kFloat64, {}, *engine));
    for (int i = 0; i < 2; ++i)
      cluster.worker(1).push("w", NDArray::full(Shape{kSize}, 3, DType::kFloat64, {}, *engine));
    cluster.run([&](int worker, KVStore& store) {
      StoreState saved = store.save();
      if (worker == 0) state = std::move(saved);
    });
  }
  StoreOptions options;
  options.engine = engine.get();
  const auto local = KVStore::create("local", options);
  begin(*local, *engine);
  local->load(state);
  for (const auto& [name, array] : local->save().arrays)
    if (name == "w:momentum") {
      EXPECT_DOUBLE_EQ(array.to_vector<double>().front(), 2 + 3 * 1.9);
      return;
    }
  FAIL() << "the momentum was lost";
}

// Where weights move evenly, a prediction is exact: each gradient is computed at the weights that it is applied to.
TEST(Predict, FindsWeightsThatMoveEvenly) {
  constexpr int kWorkers = 4;
  const auto engine = make_serial_engine();
  ClusterInProcess cluster(
      {.mode = "dist_async:staleness=predict", .workers = kWorkers, .servers = 1, .engine = engine.get()});
  std::vector<NDArray> weights(kWorkers);
  cluster.run([&](int worker, KVStore& store) {
    weights[static_cast<std::size_t>(worker)] = begin(store, *engine, optim::SGD{.lr = 0.125});
  });
  const NDArray gradient = NDArray::full(Shape{kSize}, 1, DType::kFloat64, {}, *engine);
  for (int push = 0; push < 10 * kWorkers; ++push) {
    const auto worker = static_cast<std::size_t>(push % kWorkers);
    const double now = 1 - 0.125 * push;  // the servers' weights
    if (push >= 3 * kWorkers) {
      EXPECT_DOUBLE_EQ(weights[worker].to_vector<double>()[2], now);
    }
    cluster.worker(static_cast<int>(worker)).push_pull({{"w", gradient}}, {{"w", weights[worker]}});
  }
  // A pull without a push gives the weights as they are.
  cluster.worker(0).pull("w", weights[0]);
  EXPECT_DOUBLE_EQ(weights[0].to_vector<double>()[2], 1 - 0.125 * 10 * kWorkers);
}

TEST(Predict, WeightsOfAFailedPushFailToo) {
  ClusterInProcess cluster({.mode = "dist_async:staleness=predict", .workers = 1, .servers = 1, .serial = false});
  cluster.run([&](int, KVStore& store) {
    Engine& engine = cluster.engine(0);
    const NDArray weight = begin(store, engine, optim::SGD{.lr = 1});
    for (const bool fails : {false, true, false}) {
      const NDArray gradient = NDArray::full(Shape{kSize}, -1, DType::kFloat64, {}, engine);
      if (fails) fail(gradient);
      store.push_pull({{"w", gradient}}, {{"w", weight}});
      store.step_end();
      if (fails)
        EXPECT_THROW(weight.wait(), InvalidArgument);
      else
        EXPECT_EQ(error_of_call([&] { weight.wait(); }), "");
    }
  });
}

// T1.2, T1.6 in small: prediction brings the noise floor of a constant delay of 7 towards that of no delay.
TEST(Predict, LowersTheNoiseFloor) {
  constexpr int kWorkers = 8, kSteps = 1500;
  constexpr std::int64_t kElements = 512;
  const auto floor_with = [&](const std::string& policy) {
    const auto engine = make_serial_engine();
    ClusterInProcess cluster(
        {.mode = "dist_async:staleness=" + policy, .workers = kWorkers, .servers = 1, .engine = engine.get()});
    std::vector<NDArray> weights(kWorkers);
    cluster.run([&](int worker, KVStore& store) {
      NDArray& weight = weights[static_cast<std::size_t>(worker)];
      weight = NDArray::zeros(Shape{kElements}, DType::kFloat64, {}, *engine);
      store.init({{"w", weight}});
      store.set_optimizer(optim::SGD{.lr = 0.05});
    });
    std::mt19937_64 random(3);
    std::normal_distribution<double> normal;
    const NDArray exact = NDArray::zeros(Shape{kElements}, DType::kFloat64, {}, *engine);
    double sum = 0;
    int samples = 0;
    for (int step = 0; step < kSteps; ++step) {
      const auto worker = static_cast<std::size_t>(step % kWorkers);
      std::vector<double> gradient = weights[worker].to_vector<double>();
      for (double& g : gradient) g += normal(random);
      cluster.worker(static_cast<int>(worker))
          .push_pull({{"w", vector_of(gradient, *engine)}}, {{"w", weights[worker]}});
      if (step < kSteps / 4 || step % 10 != 0) continue;
      cluster.worker(0).pull("w", exact);
      for (const double w : exact.to_vector<double>()) sum += w * w;
      samples += static_cast<int>(kElements);
    }
    return sum / samples;
  };
  const double plain = floor_with("none"), predicted = floor_with("predict");
  const double no_delay = 0.05 / (2 - 0.05);
  EXPECT_NEAR(plain, 0.0365, 0.003);  // the closed form for a constant delay of 7
  EXPECT_LT(predicted, 0.9 * plain);
  EXPECT_GT(predicted, no_delay);
}

// Adds the exact change of a quadratic's gradient.
class ExactHessian final : public Staleness {
 public:
  explicit ExactHessian(std::vector<double> hessian) : hessian_(std::move(hessian)) {}
  bool needs_pulled() const override { return true; }
  void correct(const Tile<float>&, const StaleContext&) const override { ADD_FAILURE() << "the key is float64"; }
  void correct(const Tile<double>& tile, const StaleContext& context) const override {
    if (context.delay == 0) return;
    const auto size = static_cast<std::size_t>(tile.count);
    for (std::size_t i = 0; i < size; ++i)
      for (std::size_t j = 0; j < size; ++j)
        tile.gradient[i] += hessian_[i * size + j] * (tile.weight[j] - tile.pulled[j]);
  }

 private:
  std::vector<double> hessian_;
};

// T1.4: with the exact Hessian every schedule of delays gives the trajectory without delay, noise included.
TEST(OwnPolicy, TheExactHessianUndoesEveryDelay) {
  constexpr int kWorkers = 6, kSteps = 400;
  constexpr std::size_t kDimensions = 12;
  std::mt19937_64 random(9);
  std::normal_distribution<double> normal;
  std::vector<double> root(kDimensions * kDimensions), hessian(root.size());
  for (double& value : root) value = normal(random);
  for (std::size_t i = 0; i < kDimensions; ++i)
    for (std::size_t j = 0; j < kDimensions; ++j)
      for (std::size_t k = 0; k < kDimensions; ++k)
        hessian[i * kDimensions + j] += root[i * kDimensions + k] * root[j * kDimensions + k] / kDimensions;
  const auto product = [&](const std::vector<double>& w) {
    std::vector<double> result(kDimensions);
    for (std::size_t i = 0; i < kDimensions; ++i)
      for (std::size_t j = 0; j < kDimensions; ++j) result[i] += hessian[i * kDimensions + j] * w[j];
    return result;
  };

  const auto engine = make_serial_engine();
  ClusterInProcess cluster({.mode = "dist_async:staleness=exact_hessian",
                            .workers = kWorkers,
                            .servers = 1,
                            .engine = engine.get(),
                            .own = {.policies = {{"exact_hessian", std::make_shared<ExactHessian>(hessian)}}}});
  if (cluster.has_processes()) {
    // An object cannot be sent: paceline_server says so.
    cluster.run([&](int, KVStore& store) { EXPECT_THROW(begin(store, *engine), InvalidArgument); });
    return;
  }
  constexpr double kRate = 0.2;
  std::vector<double> expected(kDimensions, 1);
  std::vector<NDArray> weights(kWorkers);
  cluster.run([&](int worker, KVStore& store) {
    weights[static_cast<std::size_t>(worker)] = vector_of(expected, *engine);
    store.init({{"w", weights[static_cast<std::size_t>(worker)]}});
    store.set_optimizer(optim::SGD{.lr = kRate});
  });
  double largest = 0;
  for (int step = 0; step < kSteps; ++step) {
    const std::size_t worker = random() % kWorkers;
    std::vector<double> noise(kDimensions);
    for (double& value : noise) value = normal(random);
    std::vector<double> gradient = product(weights[worker].to_vector<double>()), fresh = product(expected);
    for (std::size_t i = 0; i < kDimensions; ++i) {
      gradient[i] += noise[i];
      expected[i] -= kRate * (fresh[i] + noise[i]);
    }
    cluster.worker(static_cast<int>(worker)).push_pull({{"w", vector_of(gradient, *engine)}}, {{"w", weights[worker]}});
    const std::vector<double> now = weights[worker].to_vector<double>();
    for (std::size_t i = 0; i < kDimensions; ++i) largest = std::max(largest, std::abs(now[i] - expected[i]));
  }
  EXPECT_LT(largest, 1e-12);
}

// Takes no gradient of the key of twos before a gradient of another key was taken.
class Waiting final : public Staleness {
 public:
  void correct(const Tile<float>&, const StaleContext&) const override { ADD_FAILURE() << "the keys are float64"; }
  void correct(const Tile<double>& tile, const StaleContext&) const override {
    if (tile.weight[0] != 2) return other_taken_.set_value();
    begun_.set_value();
    EXPECT_EQ(other_taken_.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  }
  void wait_for_begin() const { begun_.get_future().wait(); }

 private:
  mutable std::promise<void> begun_, other_taken_;
};

// The server has two threads; keys of different calls of init are in different partitions, which are dealt to them.
TEST(OwnPolicy, ASlowKeyDoesNotHoldTheRest) {
  const auto policy = std::make_shared<Waiting>();
  ClusterInProcess cluster(
      {.mode = "dist_async:staleness=waiting", .servers = 1, .own = {.policies = {{"waiting", policy}}}});
  if (cluster.has_processes()) GTEST_SKIP() << "an object cannot be sent to another process";
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    store.init({{"slow", vector_of({2}, engine)}});
    store.init({{"quick", vector_of({1}, engine)}});
    store.set_optimizer(optim::SGD{.lr = 1});
    if (worker == 1) policy->wait_for_begin();
    const NDArray weight = vector_of({0}, engine);
    const char* const key = worker == 0 ? "slow" : "quick";
    store.push_pull({{key, vector_of({1}, engine)}}, {{key, weight}});
    EXPECT_EQ(weight.to_vector<double>(), std::vector<double>{worker == 0 ? 1.0 : 0.0});
  });
}

// Both arrays get the weights after the push, and the policy remembers those.
TEST(OwnPolicy, AKeyPulledTwiceInOneCallIsReadTwice) {
  for (const char* const staleness : {"gap_aware", "delay_compensated", "none"}) {
    const auto engine = make_serial_engine();
    ClusterInProcess cluster(
        {.mode = std::string("dist_async:staleness=") + staleness, .workers = 1, .engine = engine.get()});
    KVStore& store = cluster.worker(0);
    const NDArray first = begin(store, *engine, optim::SGD{.lr = 1});
    const NDArray second = NDArray::zeros(Shape{kSize}, DType::kFloat64, {}, *engine);
    for (int step = 1; step <= 3; ++step) {
      const NDArray gradient = NDArray::full(Shape{kSize}, -1, DType::kFloat64, {}, *engine);
      store.push_pull({{"w", gradient}}, {{"w", first}, {"w", second}});
      EXPECT_EQ(first.to_vector<double>(), std::vector<double>(kSize, 1.0 + step)) << staleness;
      EXPECT_EQ(second.to_vector<double>(), first.to_vector<double>()) << staleness;
      store.step_end();
    }
    EXPECT_EQ(store.report().all_delays().mean(), 0) << staleness;
  }
}

// When the first step ends, all keys are there and it is known which policy they are under.
TEST(OwnPolicy, ServersLogWhatThePolicyCostsInMemory) {
  const std::string bytes = std::to_string(kSize * sizeof(double)), twice = std::to_string(2 * kSize * sizeof(double));
  const auto engine = make_serial_engine();
  for (const char* const staleness : {"gap_aware", "none"}) {
    testing::internal::CaptureStderr();
    bool elsewhere = false;
    {  // step_end() waits for no answer: the line is there when the job is over
      ClusterInProcess cluster(
          {.mode = std::string("dist_async:staleness=") + staleness, .servers = 1, .engine = engine.get()});
      elsewhere = cluster.has_processes();
      cluster.run([&](int, KVStore& store) {
        begin(store, *engine, optim::SGD{.lr = 0.1});
        for (int step = 0; step < 3; ++step) store.step_end();
      });
    }
    const std::string log = testing::internal::GetCapturedStderr();
    std::fputs(log.c_str(), stderr);
    if (elsewhere) GTEST_SKIP() << "the server's log is elsewhere";
    const std::string line = "the staleness policy remembers at most " + twice +
                             " bytes of pulled weights (2 workers, " + bytes + " bytes of weights here) and keeps " +
                             bytes + " bytes of state";
    const std::size_t at = log.find(line);
    EXPECT_EQ(at != std::string::npos, std::string(staleness) == "gap_aware");
    EXPECT_EQ(log.find("the staleness policy remembers", at == std::string::npos ? 0 : at + 1), std::string::npos);
  }
}

// What a policy remembers never exceeds what is announced: a copy per worker, shared where versions are.
TEST(OwnPolicy, RememberedWeightsAreAtMostACopyPerWorker) {
  constexpr int kWorkers = 3;
  const auto engine = make_serial_engine();
  ClusterInProcess cluster({.mode = "dist_async:staleness=gap_aware", .workers = kWorkers, .engine = engine.get()});
  std::vector<NDArray> weights(kWorkers);
  cluster.run([&](int worker, KVStore& store) {
    weights[static_cast<std::size_t>(worker)] = begin(store, *engine, optim::SGD{.lr = 0.1});
  });
  const std::size_t copy = kSize * sizeof(double);
  EXPECT_EQ(cluster.worker(0).report().pulled_bytes, copy);  // all of the same version
  for (int step = 0; step < 40; ++step) {
    const auto worker = static_cast<std::size_t>((step * step) % kWorkers);
    if (step % 3 != 0) cluster.worker(static_cast<int>(worker)).push("w", weights[worker]);
    if (step % 2 == 0) cluster.worker(static_cast<int>(worker)).pull("w", weights[worker]);
    EXPECT_LE(cluster.worker(0).report().pulled_bytes, kWorkers * copy) << step;
  }
}

}  // namespace
}  // namespace paceline::test

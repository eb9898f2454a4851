// The staleness correction against closed-form theory, through real servers: Levin & May 1976 for the limits of
// constant delay, Mitliagkas et al. 2016 for workers without memory, Zheng et al. 2017, Hakimi et al. 2019. What takes
// longer than a test may is disabled here and run as tests/benchmarks/convergence.md says.
#include <gtest/gtest.h>
#include <support/cluster_in_process.h>
#include <support/logistic_problem.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <random>
#include <thread>

#include "one_key.h"

namespace paceline::test {
namespace {

// T1.3: three workers pull w = 1, then push g = 2 in turn. With the weights that each worker pulled the third push is
// compensated for two updates.
TEST(Theory, DelayCompensationUsesTheWeightsEachWorkerPulled) {
  struct Case {
    const char* staleness;
    std::vector<double> expected;
  };
  const std::vector<Case> cases = {
      {"delay_compensated,adaptive=0,lambda=0.5,clip=0", {0.8, 0.64, 0.512}},
      {"delay_compensated,lambda=2,clip=0", {0.8, 0.8 - 0.1 * (2 - 2.562050)}},
      {"delay_compensated,lambda=2,clip=1", {0.8, 0.8}},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.staleness);
    ClusterInProcess cluster({.mode = std::string("dist_async:staleness=") + test.staleness, .workers = 3});
    const auto weights = start(cluster, {1}, optim::SGD{.lr = 0.1});
    for (std::size_t i = 0; i < test.expected.size(); ++i)
      EXPECT_NEAR(push_pull(cluster, static_cast<int>(i), weights[i], 2), test.expected[i], 1e-6);
  }
}

// T1.1: with atomic push_pull, sum of the delays + sum of the ages of what the workers hold is (M - 1) N, always.
TEST(Theory, DelaysAndAgesObeyTheVersionIdentity) {
  constexpr int kWorkers = 5;
  ClusterInProcess cluster({.workers = kWorkers});
  const auto weights = start(cluster, {0}, optim::SGD{.lr = 1});
  std::mt19937 random(7);
  std::vector<std::int64_t> pulled(kWorkers, 0);
  std::int64_t delays = 0;
  for (std::int64_t n = 1; n <= 300; ++n) {
    const int worker = std::discrete_distribution<int>({1, 1, 2, 3, 10})(random);
    // Each push subtracts 1: the weight is minus the version.
    const auto version = static_cast<std::int64_t>(-push_pull(cluster, worker, weights[worker], 1));
    ASSERT_EQ(version, n);
    delays += n - 1 - pulled[static_cast<std::size_t>(worker)];
    pulled[static_cast<std::size_t>(worker)] = n;
    std::int64_t ages = 0;
    for (const std::int64_t seen : pulled) ages += n - seen;
    ASSERT_EQ(delays + ages, (kWorkers - 1) * n);
    if (n % 100 != 0) continue;
    const Histogram histogram = cluster.worker(0).report().all_delays();
    std::int64_t sum = 0;
    for (const auto& [delay, count] : histogram.counts()) sum += delay * count;
    EXPECT_EQ(histogram.count(), n);
    EXPECT_EQ(sum, delays);
  }
}

// w^2 / 2 under a constant delay tau, by round-robin workers: the growth of log |w| from the second quarter of the
// steps to the last.
double growth(int tau, const Spec& optimizer, int steps) {
  ClusterInProcess cluster({.workers = tau + 1, .servers = 1});
  const auto weights = start(cluster, {1}, optimizer);
  std::array<double, 4> largest{};
  for (int step = 0; step < steps; ++step) {
    const int worker = step % (tau + 1);
    const NDArray& weight = weights[static_cast<std::size_t>(worker)];
    const double w = std::abs(push_pull(cluster, worker, weight, weight.item<double>()));
    if (w > 1e200) return 1000;
    auto& quarter = largest[static_cast<std::size_t>(4LL * step / steps)];
    quarter = std::max(quarter, w);
    if (quarter < 1e-200) return -1000;
  }
  return std::log(largest[3] / largest[1]);
}

void expect_limit(int tau, double momentum, double limit, int steps) {
  SCOPED_TRACE("tau " + std::to_string(tau) + ", momentum " + std::to_string(momentum));
  EXPECT_LT(growth(tau, optim::SGD{.lr = 0.99 * limit, .momentum = momentum}, steps), -0.05);
  EXPECT_GT(growth(tau, optim::SGD{.lr = 1.01 * limit, .momentum = momentum}, steps), 0.05);
}

// T1.2: plain asynchronous SGD is stable below 2 sin(pi / (2 (2 tau + 1))).
double plain_limit(int tau) { return 2 * std::sin(M_PI / (2 * (2 * tau + 1))); }

TEST(Theory, ConstantDelayIsStableUpToTheExactLimit) {
  for (const int tau : {0, 1, 3, 7}) expect_limit(tau, 0, plain_limit(tau), 600 * (tau + 1));
}

TEST(Theory, DISABLED_LongDelaysAreStableUpToTheExactLimit) {
  for (const int tau : {15, 31, 63}) {
    expect_limit(tau, 0, plain_limit(tau), 4000 * (tau + 1));
    std::printf("tau %d: converges at 0.99, diverges at 1.01 of %.6f\n", tau, plain_limit(tau));
  }
}

// T1.2m: momentum at the server makes it worse. Limits: |e^{i theta} - 1| |e^{i theta} - m| where the phases meet.
struct MomentumLimit {
  int tau;
  double momentum, limit;
};

TEST(Theory, ServerMomentumOfAHalfIsStableUpToTheExactLimit) {
  for (const auto& [tau, momentum, limit] : {MomentumLimit{0, 0.5, 3.0}, {1, 0.5, 0.5}, {3, 0.5, 0.199267}})
    expect_limit(tau, momentum, limit, 1500 * (tau + 1));
}

TEST(Theory, ServerMomentumOfNineTenthsIsStableUpToTheExactLimit) {
  for (const auto& [tau, momentum, limit] : {MomentumLimit{0, 0.9, 3.8}, {1, 0.9, 0.1}, {3, 0.9, 0.034784}})
    expect_limit(tau, momentum, limit, 1500 * (tau + 1));
}

TEST(Theory, DISABLED_ServerMomentumUnderLongDelays) {
  for (const auto& [tau, momentum, limit] : {MomentumLimit{7, 0.5, 0.095753},
                                             {15, 0.5, 0.048037},
                                             {31, 0.5, 0.024222},
                                             {63, 0.5, 0.012184},
                                             {7, 0.9, 0.015752},
                                             {15, 0.9, 0.007929},
                                             {31, 0.9, 0.004179},
                                             {63, 0.9, 0.002216}}) {
    expect_limit(tau, momentum, limit, 8000 * (tau + 1));
    std::printf("tau %d, momentum %.1f: converges at 0.99, diverges at 1.01 of %.6f\n", tau, momentum, limit);
  }
}

// At the rate where two roots meet, tau^tau / (tau + 1)^(tau + 1), the error shrinks by tau / (tau + 1) a step.
void expect_best_rate(int tau) {
  const double best = std::pow(tau, tau) / std::pow(tau + 1, tau + 1);
  ClusterInProcess cluster({.workers = tau + 1, .servers = 1});
  const auto weights = start(cluster, {1}, optim::SGD{.lr = best});
  double before = 1, after = 1;
  const int steps = tau == 0 ? 1 : 60 * (tau + 1);
  for (int step = 0; step < steps; ++step) {
    before = after;
    const int worker = step % (tau + 1);
    after = push_pull(cluster, worker, weights[worker], weights[worker].item<double>());
  }
  EXPECT_NEAR(after / before, tau / (tau + 1.0), 0.02 * tau / (tau + 1.0)) << "tau " << tau;
}

TEST(Theory, ConstantDelayConvergesAtTheBestRate) {
  for (const int tau : {0, 1, 3, 7, 15}) expect_best_rate(tau);
}

TEST(Theory, DISABLED_LongDelaysConvergeAtTheBestRate) {
  for (const int tau : {31, 63}) expect_best_rate(tau);
}

// Unit noise on every update of 4,096 independent elements: g = w + xi / rate.
class NoisyQuadratic {
 public:
  static constexpr std::size_t kElements = 4096;

  NoisyQuadratic(int workers, double rate)
      : rate_(rate),
        cluster_({.workers = workers, .servers = 1}),
        weights_(start(cluster_, std::vector<double>(kElements), optim::SGD{.lr = rate})) {}

  // A push of `worker`; the mean square of the weights after it.
  double push(int worker) {
    const NDArray& weight = weights_[static_cast<std::size_t>(worker)];
    std::vector<double> gradient = weight.to_vector<double>();
    for (double& g : gradient) g += normal_(random_) / rate_;
    push_pull(cluster_, worker, weight, gradient);
    double sum = 0;
    for (const double w : weight.to_vector<double>()) sum += w * w;
    return sum / kElements;
  }
  ClusterInProcess& cluster() { return cluster_; }

 private:
  const double rate_;
  std::mt19937_64 random_{17};
  std::normal_distribution<double> normal_;
  ClusterInProcess cluster_;
  std::vector<NDArray> weights_;
};

// T1.6: the stationary variance under a constant delay.
TEST(Theory, ConstantDelayHasTheExactNoiseFloor) {
  for (const auto& [tau, rate, expected] :
       {std::tuple{3, 0.13351, 6.100}, {7, 0.10453, 11.546}, {15, 0.05065, 23.832}}) {
    const double phi = std::asin(rate / 2);
    const double rho = std::cos(phi * (2 * tau - 1) / 2 + M_PI / 4) / std::cos(phi * (2 * tau + 1) / 2 - M_PI / 4);
    EXPECT_NEAR(1 / (rate * (2 * rho - rate)), expected, 1e-3 * expected);
    NoisyQuadratic quadratic(tau + 1, rate);
    const int steps = 150 * (tau + 1), settled = 30 * (tau + 1);
    double sum = 0;
    for (int step = 0; step < steps; ++step) {
      const double square = quadratic.push(step % (tau + 1));
      if (step >= settled) sum += square;
    }
    EXPECT_NEAR(sum / (steps - settled), expected, 0.01 * expected) << "tau " << tau;
  }
}

// The exact covariance of (w, v_1 .. v_M) for one sequence of workers: w -= a v_i + xi; v_i = w.
class Covariance {
 public:
  Covariance(int workers, double rate)
      : size_(static_cast<std::size_t>(workers) + 1), rate_(rate), values_(size_ * size_, 0.0) {}
  double push(int worker) {
    const auto i = static_cast<std::size_t>(worker) + 1;
    square_ += 1 - 2 * rate_ * at(0, i) + rate_ * rate_ * at(i, i);
    for (std::size_t k = 1; k < size_; ++k) at(0, k) -= rate_ * at(i, k);
    for (std::size_t k = 1; k < size_; ++k) at(i, k) = at(k, i) = at(0, k);
    at(0, i) = at(i, i) = square_;
    return square_;
  }

 private:
  double& at(std::size_t i, std::size_t k) { return values_[i * size_ + k]; }
  std::size_t size_;
  double rate_, square_ = 0;
  std::vector<double> values_;  // row 0: covariances of w with the v
};

// T1.7: M workers of which a random one pushes. All elements share one sequence of workers, so what the sequence does
// to the variance is computed, and the closed form is tested on a sequence long enough.
TEST(Theory, MemorylessWorkersHaveTheExactVariance) {
  constexpr int kWorkers = 8, kSteps = 4000;
  constexpr double kRate = 0.16992;
  NoisyQuadratic quadratic(kWorkers, kRate);
  Covariance covariance(kWorkers, kRate);
  std::mt19937_64 random(5);
  double measured = 0, computed = 0;
  for (int step = 0; step < kSteps; ++step) {
    const int worker = static_cast<int>(random() % kWorkers);
    const double square = quadratic.push(worker), variance = covariance.push(worker);
    if (step < 200) continue;
    measured += square;
    computed += variance;
  }
  EXPECT_NEAR(measured / computed, 1, 0.01);

  // The law of the delays: geometric, mean M - 1.
  const Histogram delays = quadratic.cluster().worker(0).report().all_delays();
  const double slices = static_cast<double>(delays.count()) / kSteps;  // of the key; each counts every push
  EXPECT_NEAR(delays.mean(), kWorkers - 1, 0.005 * (kWorkers - 1));
  std::array<double, 31> seen{};  // the last: 30 and more
  for (const auto& [delay, count] : delays.counts())
    seen[static_cast<std::size_t>(std::min<std::int64_t>(delay, 30))] += static_cast<double>(count) / slices;
  double chi_square = 0;
  for (std::size_t k = 0; k < seen.size(); ++k) {
    const double tail = kSteps * std::pow(1 - 1.0 / kWorkers, static_cast<double>(k));
    const double expected = k + 1 < seen.size() ? tail / kWorkers : tail;
    chi_square += (seen[k] - expected) * (seen[k] - expected) / expected;
  }
  EXPECT_LT(chi_square, 50.9);  // p > 0.01 with 30 degrees of freedom

  const auto mean_square = [&](double rate, int steps) {
    Covariance long_run(kWorkers, rate);
    double sum = 0;
    for (int step = 0; step < steps; ++step) sum += long_run.push(static_cast<int>(random() % kWorkers));
    return sum / steps;
  };
  const double closed = (kWorkers * kRate + 1) / (kRate * (2 + kRate - kWorkers * kRate * kRate));
  EXPECT_NEAR(closed, 7.161, 1e-3);
  EXPECT_NEAR(mean_square(kRate, 2'000'000), closed, 0.01 * closed);
  const double limit = (1 + std::sqrt(1.0 + 8 * kWorkers)) / (2 * kWorkers);
  EXPECT_LT(mean_square(0.8 * limit, 200'000), 100);
  EXPECT_GT(mean_square(1.1 * limit, 200'000), 1000);  // and more the longer it goes on

  // The store's own weights follow the computed variance past the limit, too.
  NoisyQuadratic unstable(kWorkers, 1.1 * limit);
  Covariance growing(kWorkers, 1.1 * limit);
  measured = computed = 0;
  for (int step = 0; step < 1000; ++step) {
    const int worker = static_cast<int>(random() % kWorkers);
    measured += unstable.push(worker);
    computed += growing.push(worker);
  }
  EXPECT_NEAR(measured / computed, 1, 0.05);
}

// T1.9: two workers with other data, one twice as fast. Where the store ends is biased to the fast one, more so under
// inverse_delay; pushes weighted by one over the worker's rate have no bias.
TEST(Theory, FixedPointsOfWorkersWithOtherData) {
  struct Case {
    const char* staleness;
    double fast_weight, expected;
  };
  for (const Case& test : {Case{"none", 1, 1.0}, {"inverse_delay", 1, 0.6}, {"none", 0.5, 1.5}}) {
    ClusterInProcess cluster({.mode = std::string("dist_async:staleness=") + test.staleness, .servers = 1});
    const auto weights = start(cluster, {test.expected + 0.3}, optim::SGD{.lr = 0.001});
    double w = 0;
    for (int cycle = 0; cycle < 2500; ++cycle) {
      for (int fast = 0; fast < 2; ++fast)
        push_pull(cluster, 0, weights[0], test.fast_weight * weights[0].item<double>());
      w = push_pull(cluster, 1, weights[1], weights[1].item<double>() - 3);
    }
    EXPECT_NEAR(w, test.expected, 0.01) << test.staleness << " " << test.fast_weight;
  }
}

// T1.8: whatever the workers' speeds, a worker at clock c has seen every update with a clock below c - bound; a worker
// that is killed holds nobody back once it is taken for lost, which is after the silence deadline by the scheduler's
// count of silence, and no later than a heartbeat after it.
TEST(Theory, BoundedStalenessShowsEveryUpdateOlderThanTheBound) {
  constexpr int kWorkers = 16, kSteps = 8, kBound = 2;
  constexpr double kSilence = 12;
  ClusterInProcess cluster({.mode = "dist_async:staleness=none,bound=2",
                            .workers = kWorkers,
                            .serial = false,
                            .tells = false,
                            .silence_seconds = kSilence});
  testing::internal::CaptureStderr();
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray weight = array_of({0}, engine);
    store.init({{"w", weight}});
    store.set_optimizer(optim::SGD{.lr = 1});
    store.barrier();
    std::mt19937 random(static_cast<unsigned>(worker));
    for (int clock = 0; clock < kSteps; ++clock) {
      const double updates = weight.item<double>();  // every push adds 1
      EXPECT_GE(updates, (kWorkers - 1) * std::max(0, clock - kBound) + clock);
      EXPECT_LE(updates, kWorkers * kSteps);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      store.push_pull({{"w", array_of({-1}, engine)}}, {{"w", weight}});
      store.step_end();
    }
    store.barrier();
    store.pull("w", weight);
    EXPECT_EQ(weight.item<double>(), kWorkers * kSteps);
    EXPECT_LE(store.report().furthest_ahead, kBound);
    store.barrier();
    if (worker == 5) return cluster.kill_worker(5);
    for (int step = 0; step < kBound + 3; ++step) {
      store.push_pull({{"w", array_of({-1}, engine)}}, {{"w", weight}});
      store.step_end();
      weight.wait();
    }
    store.barrier();
    store.pull("w", weight);
    EXPECT_EQ(weight.item<double>(), kWorkers * kSteps + (kWorkers - 1) * (kBound + 3));
  });
  const std::string log = testing::internal::GetCapturedStderr();
  std::fputs(log.c_str(), stderr);
  if (cluster.has_processes()) return;  // the scheduler's log is elsewhere
  const std::string lost = "was lost: nothing heard of it for ";
  const std::size_t at = log.find(lost);
  ASSERT_NE(at, std::string::npos);
  EXPECT_NEAR(std::stod(log.substr(at + lost.size())), kSilence, 0.11) << "a heartbeat of 0.05 s, to one decimal";
}

// T1.12: a constant delay on a convex problem.
double logistic_excess(const LogisticProblem& problem, const std::string& staleness, int workers, double rate,
                       std::size_t batch) {
  constexpr int kSteps = 3000;
  ClusterInProcess cluster({.mode = "dist_async:staleness=" + staleness, .workers = workers, .servers = 1});
  const auto weights = start(cluster, std::vector<double>(LogisticProblem::kFeatures), optim::SGD{.lr = rate});
  std::mt19937_64 random(2);
  std::vector<std::size_t> examples(batch);
  std::vector<double> last;
  for (int step = 0; step < kSteps; ++step) {
    const int worker = step % workers;
    const NDArray& weight = weights[static_cast<std::size_t>(worker)];
    for (std::size_t& example : examples) example = random() % LogisticProblem::kExamples;
    push_pull(cluster, worker, weight, problem.gradient(weight.to_vector<double>(), examples),
              static_cast<std::int64_t>(batch));
    last = weight.to_vector<double>();
  }
  return problem.excess(last);
}

void expect_clipped_close_to_no_delay(double rate) {
  const LogisticProblem problem;
  const double no_delay = logistic_excess(problem, "none", 1, rate, 32);
  EXPECT_LT(logistic_excess(problem, "delay_compensated", 8, rate, 32), 1.2 * no_delay);
  // The correction is needed, and stays bounded however strong it is.
  EXPECT_GT(logistic_excess(problem, "none", 8, rate, 32), 1.1 * no_delay);
  EXPECT_LT(logistic_excess(problem, "delay_compensated,lambda=32", 8, rate, 32), 2 * no_delay);
}

TEST(Theory, ClippedDelayCompensationIsCloseToNoDelayAtALowRate) { expect_clipped_close_to_no_delay(0.5); }

TEST(Theory, ClippedDelayCompensationIsCloseToNoDelayAtAHighRate) { expect_clipped_close_to_no_delay(2); }

TEST(Theory, DISABLED_LogisticTable) {
  const LogisticProblem problem;
  std::printf("| B, M, lr | no delay | none | default lambda | 0.5 | 2 | 8 | 32 | constant, lambda = B |\n");
  for (const std::size_t batch : {std::size_t{32}, std::size_t{256}})
    for (const int workers : {8, 32})
      for (const double rate : {0.5, 2.0}) {
        const double no_delay = logistic_excess(problem, "none", 1, rate, batch);
        std::printf("| %zu, %d, %.1f | %.5f", batch, workers, rate, no_delay);
        for (const char* policy :
             {"none", "delay_compensated", "delay_compensated,lambda=0.5", "delay_compensated,lambda=2",
              "delay_compensated,lambda=8", "delay_compensated,lambda=32", "delay_compensated,adaptive=0"}) {
          const double excess = logistic_excess(problem, policy, workers, rate, batch);
          std::printf(" | %.5f", excess);
          if (std::string(policy) != "none") {
            EXPECT_TRUE(std::isfinite(excess)) << policy;
          }
          if (batch == 32 && std::string(policy) == "delay_compensated,lambda=2") {
            EXPECT_LE(excess, 1.2 * no_delay) << workers << " " << rate;
          }
        }
        std::printf(" |\n");
        std::fflush(stdout);
      }
}

// T1.3c: one worker has no delay, so every policy is plain SGD, and dana is NAG, bit for bit.
TEST(Theory, EveryPolicyIsTheOptimizerItselfForOneWorker) {
  const auto run = [](const std::string& staleness, const Spec& optimizer) {
    ClusterInProcess cluster({.mode = "dist_async:staleness=" + staleness, .workers = 1, .servers = 1});
    const NDArray weight = start(cluster, {0.5, -2, 3}, optimizer)[0];
    std::mt19937 random(11);
    std::normal_distribution<double> normal;
    for (int step = 0; step < 1000; ++step) {
      const NDArray gradient = array_of({normal(random), normal(random), normal(random)}, cluster.engine(0));
      cluster.worker(0).push_pull({{"w", gradient}}, {{"w", weight}});
      cluster.worker(0).step_end();
    }
    return weight.to_vector<double>();
  };
  const Spec sgd = optim::SGD{.lr = 0.01, .weight_decay = 0.001};
  const Spec nag = optim::SGD{.lr = 0.01, .momentum = 0.9, .nesterov = true, .weight_decay = 0.001};
  const auto plain = run("none", sgd), nesterov = run("none", nag);
  for (const auto& [policy, make] : staleness_catalog().entries()) {
    if (policy == "dana") continue;
    EXPECT_EQ(run(policy, sgd), plain) << policy;
    EXPECT_EQ(run(policy, nag), nesterov) << policy;
  }
  EXPECT_EQ(run("dana", nag), nesterov);
  EXPECT_EQ(run("dana+gap_aware", nag), nesterov);
}

// T1.5: DANA-Slim through the real servers equals DANA-Zero, computed here.
TEST(Theory, DanaSlimEqualsDanaZero) {
  constexpr int kWorkers = 8, kSize = 20, kSteps = 5000;
  constexpr double kRate = 0.01, kMomentum = 0.9;
  ClusterInProcess cluster({.mode = "dist_async:staleness=dana", .workers = kWorkers});
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  std::vector<double> initial(kSize), curvature(kSize);
  for (double& w : initial) w = normal(random);
  for (int i = 0; i < kSize; ++i) curvature[static_cast<std::size_t>(i)] = 0.05 + i * 0.05;
  const auto weights = start(cluster, initial, optim::SGD{.lr = kRate, .momentum = kMomentum});

  std::vector<double> w = initial, sum(kSize, 0);
  std::vector<std::vector<double>> velocity(kWorkers, sum), sent(kWorkers, initial);
  double largest = 0;
  for (int step = 0; step < kSteps; ++step) {
    const auto worker = static_cast<std::size_t>(random() % kWorkers);
    std::vector<double> gradient(kSize), oracle_gradient(kSize);
    const std::vector<double> held = weights[worker].to_vector<double>();
    for (std::size_t i = 0; i < kSize; ++i) {
      gradient[i] = curvature[i] * held[i];
      oracle_gradient[i] = curvature[i] * sent[worker][i];
    }
    cluster.worker(static_cast<int>(worker))
        .push_pull({{"w", array_of(gradient, cluster.engine(static_cast<int>(worker)))}}, {{"w", weights[worker]}});
    const std::vector<double> now = weights[worker].to_vector<double>();
    for (std::size_t i = 0; i < kSize; ++i) {
      double& v = velocity[worker][i];
      sum[i] -= v;
      v = kMomentum * v + oracle_gradient[i];
      sum[i] += v;
      w[i] -= kRate * v;
      sent[worker][i] = w[i] - kRate * kMomentum * sum[i];
      largest = std::max(largest, std::abs(sent[worker][i] - now[i]));
    }
  }
  EXPECT_LT(largest, 1e-12);
}

}  // namespace
}  // namespace paceline::test

// The simulator against what is known in closed form (T6.1, T3.1 and T5.1 of algorithms).
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "simulation.h"

namespace paceline::sim {
namespace {

Result simulate(const Model& model) { return Simulation(model).run(); }

// Only the workers' times and the server's service matter.
Model bare(const std::string& mode, int workers, const std::string& compute) {
  Model model;
  model.mode = Spec::parse(mode);
  model.workers = workers;
  model.compute = TimeLaw::parse(compute);
  return model;
}

double relative(double value, double expected) { return std::abs(value / expected - 1); }

double machine_repairman(int workers, double think, double service) {
  const double r = service / think;
  double term = 1, sum = 1;
  for (int k = 1; k <= workers; ++k) {
    term *= r * (workers - k + 1);
    sum += term;
  }
  return (1 - 1 / sum) / service;
}

TEST(ClosedForms, MachineRepairman) {
  const struct {
    int workers;
    double service, known;
  } cases[] = {{1, .05, .9524},    {4, .05, 3.7814}, {8, .05, 7.4604},  {16, .05, 14.1593},
               {32, .05, 19.9324}, {64, .05, 20},    {64, .01, 62.434}, {128, .01, 99.903}};
  for (const auto& c : cases) {
    EXPECT_LT(relative(machine_repairman(c.workers, 1, c.service), c.known), 1e-4);
    Model model = bare("dist_async", c.workers, "exponential:mean=1");
    model.server_push.fixed_seconds = c.service;
    model.service = TimeLaw::parse("exponential:mean=1");
    model.iterations = 200000 / c.workers;
    EXPECT_LT(relative(simulate(model).steps_per_second, c.known), 0.01) << c.workers << " " << c.service;
  }
}

TEST(ClosedForms, FixedTimesFillTheServerExactly) {
  for (const int workers : {1, 4, 16, 21, 64}) {
    Model model = bare("dist_async", workers, "constant:seconds=1");
    model.server_push.fixed_seconds = 0.05;
    model.iterations = 2000;
    EXPECT_LT(relative(simulate(model).steps_per_second, std::min(workers / 1.05, 20.0)), 1e-3) << workers;
  }
}

TEST(ClosedForms, DelaysAndAgesAreTheOtherWorkersUpdates) {
  for (const char* law : {"constant:seconds=1", "exponential:mean=1", "lognormal:median=1,sigma=1"}) {
    Model model = bare("dist_async", 16, law);
    model.servers = 3;
    model.server_push.fixed_seconds = 0.01;
    model.slow_workers = 2;
    model.slow_factor = 5;
    model.iterations = 200;
    const Result result = simulate(model);
    EXPECT_EQ(result.delays_and_ages, result.expected_delays_and_ages) << law;
  }
}

TEST(ClosedForms, DelaysOfMemorylessWorkersAreGeometric) {
  Model model = bare("dist_async", 8, "exponential:mean=1");
  model.iterations = 100000;
  const Result result = simulate(model);
  EXPECT_LT(relative(result.delays.mean(), 7), 0.005);
  EXPECT_LT(relative(result.delay_deviation, std::sqrt(8.0 * 7)), 0.01);
  const double count = static_cast<double>(result.delays.count());
  double below = 0, distance = 0;
  for (std::int64_t delay = 0; delay < 200; ++delay) {
    const auto found = result.delays.counts().find(delay);
    if (found != result.delays.counts().end()) below += static_cast<double>(found->second) / count;
    distance = std::max(distance, std::abs(below - (1 - std::pow(7.0 / 8, static_cast<double>(delay + 1)))));
  }
  EXPECT_LT(distance, 0.004);
}

struct Quantiles {
  const char* name;
  int workers;
  const char* law;
  double deviation;
  std::int64_t p50, p95, p99;
};

class DelaysByLaw : public testing::TestWithParam<Quantiles> {};

TEST_P(DelaysByLaw, HaveTheKnownQuantiles) {
  const Quantiles& known = GetParam();
  Model model = bare("dist_async", known.workers, known.law);
  model.iterations = 1000000 / known.workers;
  // All begin at once, which equal workers still show after the table's two million updates.
  const bool equal = known.deviation < 1;
  if (equal) {
    model.warm_up = 0;
    model.iterations *= 2;
  }
  const Result result = simulate(model);
  EXPECT_LT(relative(result.delays.mean(), known.workers - 1), 0.01);
  const double rounding = equal ? 0.005 : 0;  // the table gives those two digits
  EXPECT_NEAR(result.delay_deviation, known.deviation, 0.01 * known.deviation + rounding);
  // Delays are whole numbers: one per cent of them, rounded.
  for (const auto& [share, delay] : {std::pair{0.5, known.p50}, {0.95, known.p95}, {0.99, known.p99}})
    EXPECT_NEAR(result.delays.quantile(share), delay, std::round(0.01 * static_cast<double>(delay))) << share;
}

INSTANTIATE_TEST_SUITE_P(ClosedForms, DelaysByLaw,
                         testing::Values(Quantiles{"Equal16", 16, "uniform:low=0.99,high=1.01", .34, 15, 15, 16},
                                         Quantiles{"Equal64", 64, "uniform:low=0.99,high=1.01", .84, 63, 64, 65},
                                         Quantiles{"Erlang16", 16, "erlang:mean=1,k=4", 7.9, 14, 30, 39},
                                         Quantiles{"Memoryless16", 16, "exponential:mean=1", 15.5, 10, 46, 71},
                                         Quantiles{"Lognormal16", 16, "lognormal:median=1,sigma=1", 20.1, 9, 48, 95},
                                         Quantiles{"Memoryless64", 64, "exponential:mean=1", 63.5, 44, 190, 292},
                                         Quantiles{"Lognormal64", 64, "lognormal:median=1,sigma=1", 83.2, 38, 198,
                                                   394}),
                         [](const auto& test) { return test.param.name; });

double harmonic(int n) {
  double sum = 0;
  for (int i = 1; i <= n; ++i) sum += 1.0 / i;
  return sum;
}

// A round of the first `workers - backup` of `workers` that all begin at its start.
double round_seconds(int workers, int backup, const std::string& law, int rounds) {
  Model model = bare("dist_sync:backup=" + std::to_string(backup), workers, law);
  model.cancel_late = true;
  model.iterations = rounds;
  return 1 / simulate(model).rounds_per_second;
}

TEST(ClosedForms, RoundsWaitForTheFirstOfTheWorkers) {
  const struct {
    int first;
    double known;
  } cases[] = {{32, 4.0585}, {31, 3.0585}, {28, 1.9752}, {16, .6778}, {8, .2825}};
  for (const auto& c : cases) {
    EXPECT_LT(relative(harmonic(32) - harmonic(32 - c.first), c.known), 1e-3);
    EXPECT_LT(relative(round_seconds(32, 32 - c.first, "exponential:mean=1", 6000), c.known), 0.01) << c.first;
  }
  // K gradients of whoever is first (K-batch-sync, K-async) take K of these.
  Model async = bare("dist_async", 32, "exponential:mean=1");
  async.iterations = 5000;
  EXPECT_LT(relative(1 / simulate(async).steps_per_second, 1.0 / 32), 0.01);
}

TEST(ClosedForms, BackupWorkersCutTheTail) {
  const struct {
    int backup;
    double known;
  } cases[] = {{0, 2.144}, {2, 1.803}, {4, 1.672}, {8, 1.527}, {20, 1.331}};
  for (const auto& c : cases)
    EXPECT_LT(relative(round_seconds(100 + c.backup, c.backup, "lognormal:median=1,sigma=0.3", 1500), c.known), 0.01)
        << c.backup;
}

// T5.1: 2 % of the machines take ten times as long. The table does not say how the others vary; of constant, normal,
// lognormal, exponential and uniform noise this law comes closest to all of its row: 0.7 % by its exact expectation.
// Without noise the row is missed by 2.5 to 4.5 %. More rounds where they differ more.
struct Backups {
  int backup, rounds;
  double known;
};

class FewTenTimesSlower : public testing::TestWithParam<Backups> {};

TEST_P(FewTenTimesSlower, AreHiddenByBackups) {
  const auto [backup, rounds, known] = GetParam();
  const char* law = "uniform:low=1,high=1.05,straggle=0.02,factor=10";
  EXPECT_LT(relative(round_seconds(100 + backup, backup, law, rounds), known), 0.02);
}

INSTANTIATE_TEST_SUITE_P(ClosedForms, FewTenTimesSlower,
                         testing::Values(Backups{0, 6000, 9.14}, Backups{2, 15000, 4.11}, Backups{4, 15000, 1.58},
                                         Backups{6, 15000, 1.09}, Backups{8, 2000, 1.05}),
                         [](const auto& test) { return str("With", test.param.backup); });

constexpr int kBounds[] = {0, 1, 2, 3, 5, 10, 20};

// Of one of 16 workers, the first `slow` of which take twice as long.
double bounded_throughput(int bound, const char* law, int slow, std::int64_t iterations) {
  Model model = bare("dist_async:bound=" + std::to_string(bound), 16, law);
  model.slow_workers = slow;
  model.slow_factor = 2;
  model.iterations = iterations;
  const Result result = simulate(model);
  EXPECT_LE(result.furthest_ahead, bound);
  return result.steps_per_second / 16;
}

TEST(ClosedForms, BoundedStalenessOfMemorylessWorkers) {
  const double known[] = {1 / harmonic(16), .481, .595, .666, .753, .856, .918};
  for (int i = 0; i < 7; ++i)
    EXPECT_LT(relative(bounded_throughput(kBounds[i], "exponential:mean=1", 0, 20000), known[i]), 0.01) << kBounds[i];
}

TEST(ClosedForms, BoundedStalenessOfWorkersWithSomeNoise) {
  const double known[] = {.597, .791, .813, .820, .825, .829, .832};
  for (int i = 0; i < 7; ++i)
    EXPECT_LT(relative(bounded_throughput(kBounds[i], "exponential:mean=0.2,shift=1", 0, 10000), known[i]), 0.01)
        << kBounds[i];
}

TEST(ClosedForms, NoBoundHelpsAgainstAWorkerThatIsAlwaysSlow) {
  for (const int bound : kBounds)
    EXPECT_LT(relative(bounded_throughput(bound, "constant:seconds=1", 1, 1000), 0.5), 0.01) << bound;
  Model unbounded = bare("dist_async", 16, "constant:seconds=1");
  unbounded.slow_workers = 1;
  unbounded.slow_factor = 2;
  unbounded.iterations = 1000;
  EXPECT_LT(relative(simulate(unbounded).steps_per_second / 16, .969), 0.01);
}

// A bound that the servers choose at every step keeps between the two it may choose from.
TEST(ClosedForms, TheDynamicBoundLiesBetweenItsTwo) {
  for (const char* law : {"exponential:mean=1", "exponential:mean=0.2,shift=1"}) {
    const auto throughput = [law](const std::string& bound, std::int64_t most) {
      Model model = bare("dist_async:bound=" + bound, 16, law);
      model.iterations = 10000;
      const Result result = simulate(model);
      EXPECT_LE(result.furthest_ahead, most);
      return result.steps_per_second / 16;
    };
    const double low = throughput("1", 1), dynamic = throughput("1..5", 5), high = throughput("5", 5);
    EXPECT_GT(dynamic, 1.01 * low) << law;
    EXPECT_LT(dynamic, 1.01 * high) << law;
  }
}

// n worker machines, k server machines, every link 1 byte a second, a model of 1 byte, as much as links allow.
double exchange_seconds(int n, int k, bool mixed) {
  Model model = bare("dist_sync", n, "constant:seconds=1");
  model.layers = {{0, 1e-9, 1}};
  model.colocated = mixed ? n : 0;
  model.servers = model.colocated + k;
  const double all = static_cast<double>(n * n + k * n - 2 * k);
  if (mixed) {
    model.shares.assign(static_cast<std::size_t>(n), (n - k) / all);
    model.shares.insert(model.shares.end(), static_cast<std::size_t>(k), 2 * (n - 1) / all);
    EXPECT_NEAR(std::accumulate(model.shares.begin(), model.shares.end(), 0.0), 1, 1e-12);
  }
  model.slice_bytes = 1.0 / (n < 32 ? 2000 : 16000);
  model.worker_link = model.server_link = {1, 1, 0};
  model.iterations = 2;
  model.warm_up = 0.5;
  return n / simulate(model).steps_per_second;
}

TEST(ClosedForms, TheBestUseOfServersBesideWorkersAndApart) {
  const struct {
    int workers, servers;
    double known;
  } mixes[] = {{8, 0, 1.750}, {8, 2, 1.474}, {8, 4, 1.273}, {32, 8, 1.570}, {32, 16, 1.319}};
  for (const auto& c : mixes) {
    const double seconds = exchange_seconds(c.workers, c.servers, true);
    EXPECT_LT(relative(seconds, c.known), 0.01) << c.workers << " " << c.servers << " " << seconds;
  }
  EXPECT_LT(relative(exchange_seconds(8, 8, false), 1), 0.01);
  EXPECT_LT(relative(exchange_seconds(8, 4, false), 2), 0.01);
  EXPECT_LT(relative(exchange_seconds(8, 2, false), 4), 0.01);
}

TEST(ClosedForms, PushReduceAndPullOverlapSliceBySlice) {
  const double bytes = 100e6, alpha = 100e-6;
  for (const double speed : {125e6, 1250e6, 12500e6}) {
    const auto seconds = [&](double slice) {
      Model model = bare("dist_async", 1, "constant:seconds=1");
      model.layers = {{0, 1e-12, bytes}};
      model.slice_bytes = slice;
      model.worker_link = {speed, speed, alpha};
      model.server_push = {alpha, 1 / speed};
      model.iterations = 10;
      return 1 / simulate(model).steps_per_second;
    };
    const double best = std::sqrt(alpha * speed * bytes / 2);
    for (const double slice : {best / 2, best, 4e6, bytes}) {
      const double count = std::ceil(bytes / slice - 1e-9), even = bytes / count;
      EXPECT_LT(relative(seconds(slice), (count + 2) * (alpha + even / speed)), 1e-3) << speed << " " << slice;
    }
    double least = seconds(best);
    for (double slice = 100e3; slice < bytes; slice *= 1.2) least = std::min(least, seconds(slice));
    EXPECT_LT(seconds(best), 1.03 * least) << speed;
  }
}

// Seconds of an iteration where every layer's exchange takes one link of the worker.
double iteration_seconds(const std::vector<Layer>& layers, bool by_priority, double slice) {
  Model model = bare("dist_async", 1, "constant:seconds=1");
  model.layers = layers;
  model.by_priority = by_priority;
  model.slice_bytes = slice;
  model.worker_link.out_bytes_per_second = 1;
  model.iterations = 60;
  return 1 / simulate(model).steps_per_second;
}

TEST(ClosedForms, PriorityAndSlicesShortenTheIteration) {
  const auto layers = [](const std::vector<double>& forward, double ratio, const std::vector<double>& bytes) {
    std::vector<Layer> all;
    for (std::size_t l = 0; l < bytes.size(); ++l) {
      const double f = forward[std::min(l, forward.size() - 1)];
      all.push_back({f, ratio * f, bytes[l]});
    }
    return all;
  };
  const struct {
    std::vector<Layer> layers;
    double fifo, priority, sliced;
  } cases[] = {
      {layers({1}, 2, {2, 2, 8}), 17, 16, 15},
      {layers({1}, 1, {3, 3, 3, 3}), 17, 15, 14},
      {layers({8, 8, 8, 8, 4, 1, 1}, 2, {.3, 1.5, 4, 8, 8, 70, 12}), 143.8, 130.3, 114.3},
      {layers({2}, 2, {.5, .5, .5, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 12, 12, 14}), 97.5, 96.5, 96.5},
  };
  for (const auto& c : cases) {
    EXPECT_NEAR(iteration_seconds(c.layers, false, 0), c.fifo, 0.01 * c.fifo);
    EXPECT_NEAR(iteration_seconds(c.layers, true, 0), c.priority, 0.01 * c.priority);
    EXPECT_NEAR(iteration_seconds(c.layers, true, 0.25), c.sliced, 0.01 * c.sliced);
  }
}

TEST(ClosedForms, TheServerWithTheLargestShareLimitsAll) {
  Model model = bare("dist_async", 64, "exponential:mean=1");
  model.servers = 4;
  model.shares = {1, 1, 1, 3};
  model.layers = {{0, 1, 600}};
  model.server_push.seconds_per_byte = 1e-3;
  model.iterations = 500;
  const Result result = simulate(model);
  EXPECT_LT(relative(result.steps_per_second, 1 / (0.5 * 0.6)), 0.01);
  EXPECT_GT(result.busiest_server, 0.99);
}

}  // namespace
}  // namespace paceline::sim

// What the modes promise about rounds, bounds, losses and checkpoints.
#include <gtest/gtest.h>
#include <paceline/error.h>
#include <paceline/kernel.h>
#include <support/cluster_in_process.h>
#include <support/soon.h>
#include <support/tolerance.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <random>
#include <set>
#include <tuple>

#include "message.pb.h"
#include "parse_body.h"
#include "store.pb.h"

namespace paceline::test {
namespace {

using namespace std::chrono_literals;

// Logistic regression with a hidden layer, in `Real`: the gradient of a mean over examples.
template <class Real>
class Network {
 public:
  static constexpr int kIn = 8, kHidden = 6, kExamples = 64;

  Network() {
    std::mt19937 random(3);
    std::normal_distribution<double> normal;
    for (auto& example : inputs_)
      for (Real& x : example) x = static_cast<Real>(normal(random));
    for (std::size_t i = 0; i < kExamples; ++i) labels_[i] = inputs_[i][0] * inputs_[i][1] > 0;
  }

  static std::vector<std::vector<Real>> initial() {
    std::mt19937 random(4);
    std::normal_distribution<double> normal(0, 0.5);
    std::vector<std::vector<Real>> weights{std::vector<Real>(kIn * kHidden), std::vector<Real>(kHidden)};
    for (auto& layer : weights)
      for (Real& w : layer) w = static_cast<Real>(normal(random));
    return weights;
  }

  // Over the examples begin, begin + 1, ... end - 1 of the set.
  std::vector<std::vector<Real>> gradient(const std::vector<std::vector<Real>>& weights, int begin, int end) const {
    std::vector<std::vector<Real>> gradient{std::vector<Real>(kIn * kHidden), std::vector<Real>(kHidden)};
    for (int e = begin; e < end; ++e) {
      const auto& x = inputs_[static_cast<std::size_t>(e % kExamples)];
      std::array<Real, kHidden> hidden{};
      Real sum = 0;
      for (std::size_t h = 0; h < kHidden; ++h) {
        for (std::size_t i = 0; i < kIn; ++i) hidden[h] += weights[0][h * kIn + i] * x[i];
        hidden[h] = std::tanh(hidden[h]);
        sum += weights[1][h] * hidden[h];
      }
      const Real error = 1 / (1 + std::exp(-sum)) - static_cast<Real>(labels_[static_cast<std::size_t>(e % kExamples)]);
      for (std::size_t h = 0; h < kHidden; ++h) {
        gradient[1][h] += error * hidden[h] / static_cast<Real>(end - begin);
        const Real back = error * weights[1][h] * (1 - hidden[h] * hidden[h]);
        for (std::size_t i = 0; i < kIn; ++i) gradient[0][h * kIn + i] += back * x[i] / static_cast<Real>(end - begin);
      }
    }
    return gradient;
  }

 private:
  std::array<std::array<Real, kIn>, kExamples> inputs_;
  std::array<bool, kExamples> labels_;
};

// What one of `workers` does in `steps` of a global batch of 16 examples; the weights then.
template <class Real>
std::vector<Real> train(KVStore& store, Engine& engine, int worker, int workers, int steps) {
  const Network<Real> network;
  std::vector<std::vector<Real>> weights = Network<Real>::initial();
  std::vector<NDArray> arrays;
  for (const auto& layer : weights)
    arrays.push_back(NDArray::from<Real>(layer, Shape{static_cast<std::int64_t>(layer.size())}, {}, engine));
  store.init({{"hidden", arrays[0]}, {"out", arrays[1]}});
  store.set_optimizer(optim::SGD{.lr = 0.5, .momentum = 0.9});
  const int part = 16 / workers;
  for (int step = 0; step < steps; ++step) {
    const int begin = step * 16 + worker * part;
    const auto gradient = network.gradient(weights, begin, begin + part);
    std::vector<PushItem> pushes;
    std::vector<PullItem> pulls;
    for (std::size_t i = 0; i < 2; ++i) {
      const char* key = i == 0 ? "hidden" : "out";
      pushes.push_back({key, NDArray::from<Real>(gradient[i], arrays[i].shape(), {}, engine)});
      pulls.push_back({key, arrays[i]});
    }
    store.push_pull(pushes, pulls, part);
    store.step_end();
    for (std::size_t i = 0; i < 2; ++i) weights[i] = arrays[i].to_vector<Real>();
  }
  std::vector<Real> result;
  for (const auto& layer : weights) result.insert(result.end(), layer.begin(), layer.end());
  return result;
}

template <class Real>
std::vector<Real> train_synchronously(int workers, int steps, const std::string& mode = "dist_sync") {
  ClusterInProcess cluster({.mode = mode, .workers = workers, .servers = mode == "ring" ? 0 : 2, .serial = false});
  std::vector<Real> result;
  cluster.run([&](int worker, KVStore& store) {
    const auto weights = train<Real>(store, cluster.engine(worker), worker, workers, steps);
    if (worker == 0) result = weights;
  });
  return result;
}

template <class Real>
std::vector<Real> train_in_one_process(int steps) {
  const auto engine = make_threaded_engine();
  StoreOptions options;
  options.engine = engine.get();
  return train<Real>(*KVStore::create("local", options), *engine, 0, 1, steps);
}

TEST(Consistency, SynchronousTrainingDoesNotDependOnTheNumberOfWorkers) {
  const auto one = train_in_one_process<double>(100);
  const auto single = train_in_one_process<float>(10);
  EXPECT_GT(relative_difference(one, train_in_one_process<double>(10)), 1e-3);
  for (const char* mode : {"dist_sync", "ring"}) {
    SCOPED_TRACE(mode);
    for (const int workers : {1, 2, 4}) {
      SCOPED_TRACE(workers);
      const auto many = train_synchronously<double>(workers, 100, mode);
      EXPECT_LT(relative_difference(one, many), 1e-12);
      EXPECT_EQ(many, train_synchronously<double>(workers, 100, mode));  // bitwise from run to run
      EXPECT_LT(relative_difference(single, train_synchronously<float>(workers, 10, mode)), 1e-5);
    }
  }
}

struct Scalar {
  NDArray weight;
  Engine* engine;
  NDArray gradient(double value) const { return NDArray::from<double>({value}, Shape{1}, {}, *engine); }
};

Scalar start(ClusterInProcess& cluster, int worker, KVStore& store, const Spec& optimizer = optim::SGD{.lr = 1}) {
  Engine& engine = cluster.engine(worker);
  const Scalar scalar{NDArray::zeros(Shape{1}, DType::kFloat64, {}, engine), &engine};
  store.init({{"w", scalar.weight}});
  store.set_optimizer(optimizer);
  return scalar;
}

void step(KVStore& store, const Scalar& scalar, double gradient = -1) {
  store.push_pull({{"w", scalar.gradient(gradient)}}, {{"w", scalar.weight}});
  store.step_end();
  scalar.weight.wait();
}

TEST(Consistency, NobodyComputesFurtherAheadThanTheBound) {
  for (const auto& [text, low, high] : {std::tuple{"0", 0, 0}, {"1", 1, 1}, {"3", 3, 3}, {"1..4", 1, 4}}) {
    SCOPED_TRACE(text);
    constexpr int kWorkers = 3, kSteps = 12;
    ClusterInProcess cluster(
        {.mode = std::string("dist_async:staleness=none,bound=") + text, .workers = kWorkers, .serial = false});
    std::array<std::atomic<int>, kWorkers> clocks{};
    std::atomic<int> furthest = 0;
    cluster.run([&, as_far_as = low](int worker, KVStore& store) {
      const Scalar scalar = start(cluster, worker, store);
      store.barrier();
      for (int i = 0; i < kSteps; ++i) {
        const int mine = clocks[static_cast<std::size_t>(worker)];
        for (const auto& other : clocks) {
          int seen = furthest;
          while (mine - other > seen && !furthest.compare_exchange_weak(seen, mine - other)) {
          }
        }
        // The last worker lets the others go as far as they always may.
        if (worker == 2)
          while (std::min(clocks[0], clocks[1]) < std::min(i + as_far_as + 1, kSteps)) std::this_thread::sleep_for(1ms);
        store.push("w", scalar.gradient(-1));
        ++clocks[static_cast<std::size_t>(worker)];
        store.step_end();
        store.pull("w", scalar.weight);
        scalar.weight.wait();
      }
    });
    // A clock here goes on before its step's push is sent: the bound holds with it, too.
    EXPECT_LE(furthest, high);
    EXPECT_GE(furthest, low);
    cluster.run([&, at_most = high](int, KVStore& store) {
      const StoreReport report = store.report();
      EXPECT_GE(report.furthest_ahead, furthest);
      EXPECT_LE(report.furthest_ahead, at_most);
      EXPECT_EQ(report.clock, kSteps);
    });
  }
}

TEST(Consistency, ServersKnowHowLongTheBoundHeldAWorkerBack) {
  ClusterInProcess cluster({.mode = "dist_async:staleness=none,bound=0", .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    const Scalar scalar = start(cluster, worker, store);
    // Worker 1 ends its step once worker 0 waits for it.
    if (worker == 1) {
      while (store.report().waits.at(0).times == 0) std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(3ms);
    }
    store.push("w", scalar.gradient(-1));
    store.step_end();
    store.pull("w", scalar.weight);
    scalar.weight.wait();
    store.barrier();
    const StoreReport report = store.report();
    EXPECT_EQ(report.waits.at(0).times, 1);
    EXPECT_GE(report.waits.at(0).seconds, 0.003);
    EXPECT_EQ(report.furthest_ahead, 0);
    if (worker == 0) {
      EXPECT_GE(report.wait_seconds, 0.003);  // the worker's own count
    }
  });
}

TEST(Consistency, WorkersThatRunOutOfBatchesHoldNobodyBack) {
  for (const char* mode : {"dist_sync", "dist_async:staleness=none,bound=0"}) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster({.mode = mode, .workers = 3, .serial = false});
    const bool rounds = std::string(mode) == "dist_sync";
    cluster.run([&](int worker, KVStore& store) {
      const Scalar scalar = start(cluster, worker, store);
      for (int epoch = 0; epoch < 3; ++epoch) {
        for (int i = 0; i < 4 + 3 * worker; ++i) step(store, scalar);
        store.barrier();
      }
      store.pull("w", scalar.weight);
      scalar.weight.wait();
      store.barrier();
      // Rounds are as many as the longest part has steps, and each is scaled by who contributed.
      EXPECT_EQ(scalar.weight.item<double>(), rounds ? 3 * 10 : 3 * (4 + 7 + 10));
      // The last one is alone for a while, after the others have left.
      for (int i = 0; i < worker; ++i) step(store, scalar);
      store.finish();
    });
  }
}

TEST(Consistency, RoundsGoOnOverTheSurvivorsOfALoss) {
  for (const char* mode : {"dist_sync", "dist_async:staleness=none,bound=1", "dist_async"}) {
    SCOPED_TRACE(mode);
    const std::string cluster_mode = mode;
    ClusterInProcess cluster({.mode = mode, .workers = 3, .serial = false});
    std::atomic<int> ready = 0;
    cluster.run([&](int worker, KVStore& store) {
      const Scalar scalar = start(cluster, worker, store);
      for (int i = 0; i < 5; ++i) step(store, scalar);
      ++ready;
      if (worker == 1) {
        while (ready < 3) std::this_thread::sleep_for(1ms);
        cluster.kill_worker(1);
        return;
      }
      const double before = scalar.weight.item<double>();
      for (int i = 0; i < 10; ++i) step(store, scalar);
      store.barrier();
      store.pull("w", scalar.weight);
      scalar.weight.wait();
      store.barrier();
      const double weight = scalar.weight.item<double>();
      if (cluster_mode == "dist_sync")
        EXPECT_EQ(weight, 15);  // one mean a round
      else if (cluster_mode != "dist_async")
        EXPECT_EQ(weight, 5 + 2 * 15);  // every push of every worker
      else
        EXPECT_GT(weight, before);  // by how much is the default policy's choice
      store.finish();
    });
  }
}

TEST(Consistency, ASecondPushInARoundIsAnError) {
  ClusterInProcess cluster({.mode = "dist_sync", .workers = 1, .serial = false});
  const Scalar scalar = start(cluster, 0, cluster.worker(0));
  cluster.worker(0).push("w", scalar.gradient(1));
  cluster.worker(0).push("w", scalar.gradient(1));
  cluster.worker(0).pull("w", scalar.weight);
  const std::string error = error_of_call([&] { scalar.weight.wait(); });
  EXPECT_NE(error.find("pushed key 'w' twice in step 0"), std::string::npos) << error;
}

TEST(Consistency, ALostServerFailsEveryPendingTaskWithItsName) {
  for (const char* mode : {"dist_sync", "dist_async"}) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster({.mode = mode, .workers = 2, .serial = false, .silence_seconds = 8});
    std::atomic<int> ready = 0, named = 0;
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray large = NDArray::zeros(Shape{100000}, DType::kFloat32, {}, engine);  // slices on both servers
      store.init({{"large", large}});
      store.set_optimizer(optim::SGD{.lr = 1});
      ++ready;
      while (ready < 2) std::this_thread::sleep_for(1ms);
      if (worker == 0) cluster.kill_server(1);
      const NDArray gradient = NDArray::zeros(Shape{100000}, DType::kFloat32, {}, engine);
      const std::string error = error_of_call([&] {
        for (;;) {
          store.push_pull({{"large", gradient}}, {{"large", large}});
          store.step_end();
          large.wait();
          std::this_thread::sleep_for(10ms);
        }
      });
      if (error.find("server 1") != std::string::npos) ++named;
      EXPECT_NE(error.find("server 1"), std::string::npos) << error;
      EXPECT_THROW(store.finish(), NetworkError);
    });
    EXPECT_EQ(named, 2);
    cluster.abandon();
  }
}

TEST(Consistency, TheModeOfAWorkerThatWasLostCountsNoMore) {
  ClusterConfig job = job_config("inproc", 0, 2);
  const EndedFile ended(&job);
  SchedulerThread scheduler(job);
  Node stays(member(job, Role::kWorker, 0, 0), {});
  auto goes = std::make_unique<Node>(member(job, Role::kWorker, 0, 1), Node::Handlers{});
  std::thread joining([&] { goes->join(); });
  stays.join();
  joining.join();
  const PeerId at_scheduler{Role::kScheduler, 0};
  const auto init = [](const std::string& mode) {
    wire::InitRequest body;
    body.set_call(1);
    body.set_mode(mode);
    return message_of(MessageKind::kInit, body);
  };
  goes->ask(at_scheduler, init("gossip"), [](const auto&, const auto&) {});
  goes->ask_and_wait(at_scheduler, message_of(MessageKind::kBarrier, proto::Barrier()));  // it has read both
  goes.reset();
  ended.add_killed(1);
  ASSERT_TRUE(soon([&] { return stays.roster().live(Role::kWorker) == std::vector<int>{0}; }));
  EXPECT_EQ(error_of_call([&] { stays.ask_and_wait(at_scheduler, init("ring")); }), "");
  stays.leave();
  EXPECT_EQ(scheduler.result(), "");
}

TEST(Consistency, DifferencesBetweenWorkersAreErrorsThatNameBoth) {
  ClusterInProcess cluster({.serial = false});
  std::array<std::string, 2> shape_errors, type_errors, set_errors, optimizer_errors;
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const auto i = static_cast<std::size_t>(worker);
    shape_errors[i] = error_of_call([&] {
      store.init({{"a", NDArray::zeros(Shape{2 + worker}, DType::kFloat32, {}, engine)}});
    });
    const DType dtype = worker == 0 ? DType::kFloat32 : DType::kFloat64;
    type_errors[i] = error_of_call([&] { store.init({{"b", NDArray::zeros(Shape{2}, dtype, {}, engine)}}); });
    set_errors[i] = error_of_call([&] {
      store.init({{worker == 0 ? "c" : "d", NDArray::zeros(Shape{2}, DType::kFloat32, {}, engine)}});
    });
    optimizer_errors[i] = error_of_call([&] { store.set_optimizer(optim::SGD{.lr = 1.0 + worker}); });
    EXPECT_THROW(store.set_optimizer(Spec::parse("sgdd")), InvalidArgument);
    EXPECT_THROW(store.push("nowhere", NDArray::zeros(Shape{2}, DType::kFloat32, {}, engine)), InvalidArgument);
    // The job goes on.
    store.set_optimizer(optim::SGD{.lr = 1});
    const NDArray weight = NDArray::zeros(Shape{2}, DType::kFloat32, {}, engine);
    store.init({{"e", weight}});
    store.push_pull({{"e", weight.clone()}}, {{"e", weight}});
    weight.wait();
    EXPECT_THROW(store.push("e", NDArray::zeros(Shape{3}, DType::kFloat32, {}, engine)), InvalidArgument);
    EXPECT_THROW(store.pull("e", NDArray::zeros(Shape{2}, DType::kFloat64, {}, engine)), InvalidArgument);
  });
  for (const std::string& error : shape_errors) {
    EXPECT_NE(error.find("float32 (2,) at worker 0"), std::string::npos) << error;
    EXPECT_NE(error.find("float32 (3,) at worker 1"), std::string::npos) << error;
  }
  for (const std::string& error : type_errors) {
    EXPECT_NE(error.find("float32 (2,) at worker 0"), std::string::npos) << error;
    EXPECT_NE(error.find("float64 (2,) at worker 1"), std::string::npos) << error;
  }
  for (const std::string& error : set_errors) EXPECT_NE(error.find("key 'c'"), std::string::npos) << error;
  EXPECT_EQ((optimizer_errors[0].empty() ? 1 : 0) + (optimizer_errors[1].empty() ? 1 : 0), 1);
}

TEST(Consistency, UnknownModesAndKeysListTheKnownOnes) {
  const auto error = [](const std::string& mode) { return error_of_call([&] { KVStore::create(mode); }); };
  EXPECT_NE(error("dist").find("known: local device gossip ring dist_sync dist_async"), std::string::npos)
      << error("dist");
  EXPECT_NE(error("local:bound=1").find("bound"), std::string::npos);
  EXPECT_NE(error("dist_sync:bound=1").find("bound"), std::string::npos);
  EXPECT_NE(error("dist_async:bouns=1").find("'bouns'"), std::string::npos);
  EXPECT_NE(error("dist_async:bouns=1").find("bound"), std::string::npos);
  EXPECT_NE(error("dist_async:staleness=magic").find("gap_aware"), std::string::npos);
  EXPECT_NE(error("dist_async:bound=-1").find("bound"), std::string::npos);
  EXPECT_NE(error("dist_async:bound=x").find("whole number"), std::string::npos);
}

// Saves under one number of servers and workers, loads under others, and goes on alike.
TEST(Consistency, CheckpointsLoadUnderOtherNumbersOfServersAndWorkers) {
  const Spec optimizer = optim::SGD{.lr = 0.125, .momentum = 0.5};
  const auto engine = make_threaded_engine();
  for (const char* mode : {"dist_sync", "dist_async:staleness=dana+gap_aware"}) {
    SCOPED_TRACE(mode);
    const auto gradient = [](Engine& engine) { return NDArray::full(Shape{30000}, 1, DType::kFloat64, {}, engine); };
    const auto begin = [&](ClusterInProcess& cluster, int worker, KVStore& store) {
      const NDArray weight = NDArray::zeros(Shape{30000}, DType::kFloat64, {}, cluster.engine(worker));
      const NDArray small = NDArray::full(Shape{2, 2}, 1, DType::kFloat64, {}, cluster.engine(worker));
      store.init({{"large", weight}, {"small", small}});
      store.set_optimizer(optimizer);
      return weight;
    };
    StoreState saved, again;
    std::vector<double> expected;
    {
      ClusterInProcess cluster({.mode = mode, .workers = 2, .servers = 3, .engine = engine.get()});
      cluster.run([&](int worker, KVStore& store) {
        const NDArray weight = begin(cluster, worker, store);
        for (int i = 0; i < 3; ++i) {
          store.push_pull({{"large", gradient(cluster.engine(worker))}}, {{"large", weight}});
          store.step_end();
          weight.wait();
        }
        StoreState state = store.save();
        EXPECT_EQ(state.arrays.empty(), worker != 0);
        if (worker != 0) return;
        saved = std::move(state);
        store.pull("large", weight);
        expected = weight.to_vector<double>();
      });
    }
    for (const int servers : {1, 4}) {
      ClusterInProcess cluster({.mode = mode, .workers = 3, .servers = servers, .engine = engine.get()});
      cluster.run([&](int worker, KVStore& store) {
        const NDArray weight = begin(cluster, worker, store);
        store.load(worker == 0 ? saved : StoreState{});
        EXPECT_EQ(weight.to_vector<double>(), expected);
        EXPECT_EQ(store.report().clock, 3);
        StoreState state = store.save();
        if (worker == 0) again = std::move(state);
        store.push_pull({{"large", gradient(cluster.engine(worker))}}, {{"large", weight}});
        store.step_end();
        weight.wait();
        EXPECT_EQ(store.report().clock, 4);
      });
      std::map<std::string, std::vector<double>> before, after;
      for (const auto& [name, array] : saved.arrays) before[name] = array.to_vector<double>();
      for (const auto& [name, array] : again.arrays) {
        // A worker without a predecessor starts with no momentum.
        if (name.starts_with("worker2:")) continue;
        after[name] = array.to_vector<double>();
      }
      EXPECT_EQ(before, after);
      std::map<std::string, std::string> counters(saved.counters.begin(), saved.counters.end());
      counters["workers"] = "3";
      for (const auto& [name, value] : again.counters) EXPECT_EQ(value, counters[name]) << name;
    }
  }
}

// An exchange of this process alone gives the same bits under both engines, and its checkpoints are read by the others.
TEST(Consistency, LocalIsBitwiseTheSameUnderBothEngines) {
  const auto run = [](Engine& engine, StoreState* state) {
    StoreOptions options;
    options.engine = &engine;
    const auto store = KVStore::create("local", options);
    std::vector<NDArray> weights;
    std::vector<InitValue> values;
    for (int k = 0; k < 5; ++k) {
      weights.push_back(NDArray::full(Shape{100 + k}, 0.5 + k, DType::kFloat32, {}, engine));
      values.push_back({"key" + std::to_string(k), weights.back()});
    }
    store->init(values);
    store->set_optimizer(optim::Adam{.lr = 0.01});
    for (int step = 0; step < 20; ++step) {
      std::vector<PushItem> pushes;
      std::vector<PullItem> pulls;
      for (std::size_t k = 0; k < 5; ++k) {
        const NDArray gradient = weights[k].clone();
        kernels::scale(0.1 * (step + 1), gradient);
        pushes.push_back({values[k].key, gradient});
        pulls.push_back({values[k].key, weights[k]});
      }
      store->push_pull(pushes, pulls, 4);
      store->step_end();
    }
    std::vector<std::vector<float>> result;
    for (const NDArray& weight : weights) result.push_back(weight.to_vector<float>());
    if (state) *state = store->save();
    store->finish();
    return result;
  };
  const auto serial = make_serial_engine(), threaded = make_threaded_engine();
  StoreState state;
  const auto expected = run(*serial, &state);
  EXPECT_EQ(run(*threaded, nullptr), expected);
  EXPECT_EQ(state.arrays.size(), 15U);

  ClusterInProcess cluster({.mode = "dist_sync", .workers = 1, .engine = serial.get()});
  KVStore& store = cluster.worker(0);
  std::vector<InitValue> values;
  for (int k = 0; k < 5; ++k)
    values.push_back({str("key", k), NDArray::zeros(Shape{100 + k}, DType::kFloat32, {}, cluster.engine(0))});
  store.init(values);
  store.set_optimizer(optim::Adam{.lr = 0.01});
  store.load(state);
  for (std::size_t k = 0; k < 5; ++k) EXPECT_EQ(values[k].value.to_vector<float>(), expected[k]);
}

}  // namespace
}  // namespace paceline::test

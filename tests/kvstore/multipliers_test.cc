// Multipliers: a key trains as in a store of its own, whose learning rate and weight decay are scaled.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/updater.h>
#include <support/cluster_in_process.h>

#include <charconv>
#include <cmath>
#include <map>

namespace paceline::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Powers of two for the rate: with a schedule, other products would round differently.
constexpr KeyFactors kFactors[] = {{0.5, 1}, {0.5, 0}, {4, 3}, {0, 3}, {1, 1}};
constexpr const char* kRates = "0.*:0.5+0.bias:8+head*:4+still:0+table:4+*:1";
constexpr const char* kDecays = "*bias:0+head.?eight:3+still:3+t*:3";

struct Key {
  const char* name;
  std::int64_t size;
  std::size_t factors;  // in kFactors
};
constexpr Key kKeys[] = {
    {"0.weight", 9000, 0}, {"0.bias", 7, 1}, {"head.weight", 2100, 2}, {"still", 40, 3}, {"other", 5, 4}};
constexpr const char* kTable = "table";  // kFactors[2]

std::string number(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

Spec scaled(const std::string& optimizer, const KeyFactors& factors = {}) {
  return {optimizer,
          {{"lr", number(0.1 * factors.learning_rate)},
           {"weight_decay", number(0.02 * factors.weight_decay)},
           {"schedule", "linear"},
           {"schedule_examples", "50"}}};
}

Spec multiplied(const std::string& optimizer) {
  Spec spec = scaled(optimizer);
  spec.options.set("lr_mult", kRates);
  spec.options.set("decay_mult", kDecays);
  return spec;
}

struct Job {
  std::string mode = "local";
  int workers = 2, servers = 2;
  bool tables = false;
  bool shared = false;    // the store keeps the weights in the caller's arrays
  Device device = {};     // where the weights lie
  bool momentum = false;  // only optimizers whose momentum a worker can keep
};

using Values = std::map<std::string, std::vector<float>>;

std::vector<float> start_of(std::int64_t size) {
  std::vector<float> values(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.5f + 0.01f * static_cast<float>(i % 13);
  return values;
}

// Depends on the key's own weights alone.
std::vector<float> gradient_at(const std::vector<float>& weights, int worker, int step) {
  std::vector<float> gradient;
  for (const float weight : weights)
    gradient.push_back(0.3f * weight + 0.1f * static_cast<float>((static_cast<int>(gradient.size()) + 3 * step) % 7) -
                       0.2f * static_cast<float>(worker));
  return gradient;
}

// Six steps; the rate is set anew after three. Some keys are there before the optimizer, others after it.
Values train_worker(const Job& job, const Spec& optimizer, double rate_factor, int worker, KVStore& store,
                    Engine& engine) {
  std::map<std::string, NDArray> weights;
  const auto init = [&](std::size_t begin, std::size_t end) {
    std::vector<InitValue> values;
    for (std::size_t k = begin; k < end; ++k) {
      const Shape shape{kKeys[k].size};
      weights[kKeys[k].name] = NDArray::from<float>(start_of(kKeys[k].size), shape, job.device, engine);
      values.push_back({.key = kKeys[k].name, .value = weights[kKeys[k].name], .shared = job.shared});
    }
    store.init(values);
  };
  const NDArray rows = NDArray::from<std::int64_t>({1, 5, 7}, {3}, {}, engine);
  const NDArray row_values = NDArray::zeros({3, 4}, DType::kFloat32, {}, engine);
  init(0, 3);
  if (job.tables)
    store.init_table({.name = kTable, .rows = 9, .width = 4, .initializer = Spec::parse("uniform:bound=1,seed=2")});
  store.set_optimizer(optimizer);
  init(3, std::size(kKeys));
  if (job.tables) store.pull_rows({{kTable, rows, row_values}});
  for (int step = 0; step < 6; ++step) {
    if (step == 3) {
      store.barrier();
      store.set_learning_rate(0.05 * rate_factor);
      store.barrier();
    }
    std::vector<PushItem> pushes;
    std::vector<PullItem> pulls;
    for (const auto& [name, weight] : weights) {
      const std::vector<float> gradient = gradient_at(weight.to_vector<float>(), worker, step);
      pushes.push_back({name, NDArray::from<float>(gradient, weight.shape(), job.device, engine)});
      pulls.push_back({name, weight});
    }
    store.push_pull(pushes, pulls, 4);
    if (job.tables) {
      const std::vector<float> gradient = gradient_at(row_values.to_vector<float>(), worker, step);
      store.push_pull_rows({{kTable, rows, NDArray::from<float>(gradient, {3, 4}, {}, engine)}},
                           {{kTable, rows, row_values}}, 4);
    }
    store.step_end();
    for (const PullItem& item : pulls) item.out.wait();
    row_values.wait();
  }
  Values values;
  for (const auto& [name, weight] : weights) values[name] = weight.to_vector<float>();
  if (job.tables) values[kTable] = row_values.to_vector<float>();
  return values;
}

Values train(const Job& job, const Spec& optimizer, double rate_factor = 1) {
  if (job.mode == "local") {
    const auto engine = make_threaded_engine();
    StoreOptions options;
    options.engine = engine.get();
    return train_worker(job, optimizer, rate_factor, 0, *KVStore::create("local", options), *engine);
  }
  ClusterInProcess cluster({.mode = job.mode, .workers = job.workers, .servers = job.servers, .serial = false});
  Values values;
  cluster.run([&](int worker, KVStore& store) {
    Values own = train_worker(job, optimizer, rate_factor, worker, store, cluster.engine(worker));
    if (worker == 0) values = std::move(own);
  });
  return values;
}

// Bit for bit, under every optimizer.
void expect_keys_as_in_stores_of_their_own(const Job& job) {
  for (const auto& [name, make] : optimizer_catalog().entries()) {
    const auto optimizer = make_optimizer(Spec{name, {}});
    if (job.momentum && optimizer->worker_momentum() < 0) continue;
    SCOPED_TRACE(job.mode + " " + name);
    const Values together = train(job, multiplied(name));
    std::vector<Values> apart;
    for (const KeyFactors& factors : kFactors)
      apart.push_back(train(job, scaled(name, factors), factors.learning_rate));
    for (const Key& key : kKeys) EXPECT_EQ(together.at(key.name), apart[key.factors].at(key.name)) << key.name;
    if (job.tables) {
      EXPECT_EQ(together.at(kTable), apart[2].at(kTable));
    }
    EXPECT_NE(together.at("head.weight"), apart[4].at("head.weight"));
    if (!optimizer->replaces()) {
      EXPECT_EQ(together.at("still"), start_of(40));
    }
  }
}

TEST(Multipliers, InLocal) { expect_keys_as_in_stores_of_their_own({.tables = true}); }

TEST(Multipliers, InArraysThatAreShared) { expect_keys_as_in_stores_of_their_own({.shared = true}); }

TEST(Multipliers, OnCuda) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  expect_keys_as_in_stores_of_their_own({.device = Device("cuda:0")});
}

TEST(Multipliers, InRoundsOfServers) { expect_keys_as_in_stores_of_their_own({.mode = "dist_sync", .tables = true}); }

// One worker, whose pushes come in order. Momentum is the worker's under the default policy dana+gap_aware.
TEST(Multipliers, AtOnceOnServers) {
  expect_keys_as_in_stores_of_their_own({.mode = "dist_async", .workers = 1, .tables = true});
}

TEST(Multipliers, WithMomentumInTheCodec) {
  expect_keys_as_in_stores_of_their_own({.mode = "dist_sync:compression=dgc,ratio=0.1,min_bytes=1", .momentum = true});
}

TEST(Multipliers, InARing) { expect_keys_as_in_stores_of_their_own({.mode = "ring", .servers = 0}); }

TEST(Multipliers, AtWorkersThatAverage) { expect_keys_as_in_stores_of_their_own({.mode = "dist_local:steps=2"}); }

TEST(Multipliers, AtAWorkerThatGossips) {
  expect_keys_as_in_stores_of_their_own({.mode = "gossip", .workers = 1, .servers = 0});
}

// By hand.
TEST(Multipliers, ScaleRateAndDecay) {
  const auto after = [](const Spec& optimizer, const std::string& key) {
    const auto updater = make_updater();
    const double weight = 2, gradient = 1;
    updater->set_rules(optimizer, "none", {});
    const int slice = updater->add_slice({.name = key, .end = 1, .dtype = DType::kFloat64}, &weight);
    updater->apply(slice, {.worker = 0, .version = 0, .examples = 1, .gradient = &gradient});
    double result = 0;
    updater->read(slice, -1, &result);
    return result;
  };
  const Spec sgd = Spec::parse("sgd:lr=0.5,weight_decay=0.1,lr_mult=a*:0.25+ab:4,decay_mult=ab:3+b:0");
  EXPECT_DOUBLE_EQ(after(sgd, "ab"), 2 - 0.5 * 0.25 * (1 + 0.1 * 3 * 2));  // the first pattern counts
  EXPECT_DOUBLE_EQ(after(sgd, "b"), 2 - 0.5);
  EXPECT_DOUBLE_EQ(after(sgd, "c"), 2 - 0.5 * (1 + 0.1 * 2));
  const Spec adamw = Spec::parse("adamw:lr=0.5,weight_decay=0.1,epsilon=1e-30,lr_mult=a:0.25,decay_mult=a:3+b:0");
  EXPECT_DOUBLE_EQ(after(adamw, "a"), 2 * (1 - 0.125 * 0.3) - 0.125);
  EXPECT_DOUBLE_EQ(after(adamw, "b"), 2 - 0.5);
}

TEST(Multipliers, OfZeroKeepWeightsWhileStateMovesOn) {
  const auto updater = make_updater();
  const double weight = 3, gradient = 1;
  const int slice = updater->add_slice({.name = "w", .end = 1, .dtype = DType::kFloat64}, &weight);
  const auto step = [&](const char* optimizer, std::uint64_t version) {
    updater->set_rules(Spec::parse(optimizer), "none", {});
    updater->apply(slice, {.worker = 0, .version = version, .examples = 1, .gradient = &gradient});
    double result = 0;
    updater->read(slice, -1, &result);
    return result;
  };
  EXPECT_EQ(step("momentum:lr=0.5,momentum=0.5,lr_mult=w:0", 0), 3);
  EXPECT_EQ(step("momentum:lr=0.5,momentum=0.5", 1), 3 - 0.5 * (0.5 + 1));
}

TEST(Multipliers, ReachStalenessPolicies) {
  struct Seen final : Staleness {
    mutable StaleContext last;
    void correct(const Tile<float>&, const StaleContext&) const override {}
    void correct(const Tile<double>&, const StaleContext& context) const override { last = context; }
  };
  const auto policy = std::make_shared<Seen>();
  const auto updater = make_updater();
  const double weight = 0, gradient = 1;
  const int slice = updater->add_slice({.name = "w", .end = 1, .dtype = DType::kFloat64}, &weight);
  updater->set_rules(Spec::parse("sgd:lr=2,schedule=linear,schedule_examples=4,lr_mult=w:0.25"), "seen", {},
                     {.policies = {{"seen", policy}}});
  updater->apply(slice, {.worker = 0, .version = 0, .examples = 2, .gradient = &gradient});
  updater->apply(slice, {.worker = 0, .version = 0, .examples = 2, .gradient = &gradient});
  EXPECT_EQ(policy->last.learning_rate, 2 * 0.5 * 0.25);
  EXPECT_EQ(policy->last.peak_rate, 2 * 0.25);
}

TEST(Multipliers, LeaveAveragesAlone) {
  const auto store = KVStore::create("local");
  const NDArray mean = NDArray::full({2}, 1, DType::kFloat32), pushed = NDArray::full({2}, 5, DType::kFloat32);
  store->init({{"mean", mean, true}});
  store->set_optimizer(Spec::parse("sgd:lr=1,weight_decay=1,lr_mult=*:0,decay_mult=*:3"));
  store->push_pull({{"mean", pushed}}, {{"mean", mean}});
  EXPECT_EQ(mean.to_vector<float>(), pushed.to_vector<float>());
}

// As other hyper-parameters: those of the program count, with the state of the checkpoint.
TEST(Multipliers, OfACheckpointGiveWayToThoseOfTheProgram) {
  const auto step = [](KVStore& store, const NDArray& weight) {
    store.push_pull({{"w", NDArray::full({3}, 0.5, DType::kFloat32)}}, {{"w", weight}});
    store.step_end();
  };
  const auto begin = [](const NDArray& weight, const char* optimizer) {
    auto store = KVStore::create("local");
    store->init({{"w", weight}});
    store->set_optimizer(Spec::parse(optimizer));
    return store;
  };
  constexpr const char *kBefore = "adam:lr=0.1,lr_mult=w:2", *kAfter = "adam:lr=0.1,lr_mult=w:0.5";
  const NDArray whole = NDArray::full({3}, 1, DType::kFloat32), resumed = NDArray::full({3}, 1, DType::kFloat32);
  const auto first = begin(whole, kBefore);
  step(*first, whole);
  const StoreState state = first->save();
  first->set_optimizer(Spec::parse(kAfter));
  step(*first, whole);
  const auto second = begin(resumed, kAfter);
  second->load(state);
  step(*second, resumed);
  EXPECT_EQ(resumed.to_vector<float>(), whole.to_vector<float>());
}

TEST(Multipliers, OfStructsAreText) {
  const Spec spec = optim::SGD{.lr = 0.1,
                               .weight_decay = 0.01,
                               .lr_mult = {{"*embedding*", 0.1}, {"head?", 1e20}},
                               .decay_mult = optim::no_decay_on_biases_and_norms()};
  EXPECT_EQ(spec.text(),
            "sgd:decay_mult=*bias*:0+*gamma:0+*beta:0,lr=0.1,lr_mult=*embedding*:0.1+head?:1e20,weight_decay=0.01");
  const Multipliers read = Multipliers::parse(Spec::parse(spec.text()).options);
  EXPECT_EQ(read.of("head1").learning_rate, 1e20);
  EXPECT_EQ(read.of("0.embedding.weight").learning_rate, 0.1);
  EXPECT_EQ(read.of("0.weight").learning_rate, 1);
  for (const char* name : {"bias", "0.bias", "4.bias_in", "2.bias_x0_reverse", "1.gamma", "1.beta"})
    EXPECT_EQ(read.of(name).weight_decay, 0) << name;
  for (const char* name : {"weight", "0.weight", "4.weight_in", "2.weight_state0"})
    EXPECT_EQ(read.of(name).weight_decay, 1) << name;
  for (const Spec& other : {Spec(optim::Adam{.lr_mult = {{"w", 2}}}), Spec(optim::AdamW{.lr_mult = {{"w", 2}}})})
    EXPECT_EQ(Multipliers::parse(other.options).of("w").learning_rate, 2) << other.name;
  EXPECT_TRUE(Multipliers::parse(Spec(optim::SGD{}).options).empty());
}

TEST(Multipliers, TellPatternsWithoutAKey) {
  const std::vector<std::string> keys{"0.weight", "0.bias"};
  const auto unused = [&](const Spec& spec) { return Multipliers::parse(spec.options).unused(keys); };
  EXPECT_THAT(unused(Spec::parse("sgd:lr_mult=0.*:2+1.*:3,decay_mult=*bias:0+*wieght:2")),
              ElementsAre("lr_mult=1.*", "decay_mult=*wieght"));
  EXPECT_THAT(unused(optim::SGD{.decay_mult = optim::no_decay_on_biases_and_norms()}), ElementsAre());
  EXPECT_THAT(unused(optim::SGD{}), ElementsAre());
}

TEST(Multipliers, RefuseWhatIsNoFactor) {
  const auto error = [](const std::string& options) {
    return error_of_call([&] { make_optimizer(Spec::parse("sgd:" + options)); });
  };
  for (const char* factor : {"-1", "nan", "inf", "x", "", "0.1x"})
    EXPECT_EQ(error(std::string("lr_mult=a:1+b*:") + factor),
              std::string("lr_mult: the factor of 'b*' is '") + factor + "', expected a finite number of at least 0");
  for (const char* list : {"0.1", ":0.1", "a:1+", "a:1++b:2", "a", "+"})
    EXPECT_THAT(error(std::string("decay_mult=") + list), HasSubstr("is not written PATTERN:FACTOR")) << list;
  EXPECT_EQ(error("lr_mult=a:0+b:1e3,decay_mult="), "");
  for (const char* pattern : {"", "a,b", "a:b", "a+b"})
    EXPECT_THAT(error_of_call([&] { Spec spec(optim::SGD{.lr_mult = {{pattern, 1}}}); }), HasSubstr("write '?'"));
}

}  // namespace
}  // namespace paceline::test

// What decides which weights train, and from what they start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/memory_iterator.h>
#include <paceline/nn.h>
#include <paceline/ops.h>
#include <support/cluster_in_process.h>
#include <support/paths.h>
#include <support/refusal.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

#include "regression_batch.h"

namespace paceline::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Weights = std::map<std::string, std::vector<double>>;

Weights weights_of(const nn::Module& net) {
  Weights weights;
  for (const auto& parameter : net.parameters()) weights[parameter->name] = parameter->value.to_vector<double>();
  return weights;
}

nn::Module body_and_head() {
  return nn::Sequential(nn::Sequential(nn::Dense(4), nn::Tanh(), nn::BatchNorm(), nn::Dense(4), nn::Tanh()),
                        nn::Dense(2));
}

TEST(Freezing, KeepsValuesAndComputesNoGradient) {
  const nn::Module net = body_and_head();
  net.initialize({8, 3}, 1, {}, DType::kFloat64);
  net.freeze("0.*");
  const Weights before = weights_of(net);
  std::vector<std::string> seen;
  nn::Trainer trainer(net, optim::SGD{.lr = 0.1}, KVStore::create("local"),
                      {.on_gradients = [&](const nn::NamedGradients& gradients) {
                        for (const auto& [name, gradient] : gradients) seen.push_back(name);
                      }});
  for (int step = 0; step < 3; ++step) trainer.step(batch_of(8), nn::l2);
  trainer.synchronize();
  EXPECT_THAT(seen, ElementsAre("1.weight", "1.bias", "1.weight", "1.bias", "1.weight", "1.bias"));
  for (const auto& [name, values] : weights_of(net)) EXPECT_EQ(values == before.at(name), name[0] == '0') << name;
  EXPECT_THAT(net.describe(), HasSubstr("frozen"));
}

// What lies behind a frozen part is not differentiated: an operator that cannot be is there.
TEST(Freezing, NothingBehindItIsDifferentiated) {
  static const OpDef once =
      OpDef("once")
          .input("x")
          .forward([](const std::vector<NDArray>& in, const void*) { return std::vector{in[0] * 1.0}; })
          .gradient([](const OpCall&, const auto&) -> std::vector<Gradient> {
            throw InvalidArgument("[once] was differentiated");
          });
  const nn::Module net = nn::Sequential(
      nn::Dense(4), nn::Lambda("Once", [](const NDArray& x) { return invoke(once, {x})[0]; }), nn::Dense(2));
  net.initialize({8, 3}, 1, {}, DType::kFloat64);
  EXPECT_THAT(refusal_of([&] { nn::Trainer(net, optim::SGD{}, KVStore::create("local")).step(batch_of(8), nn::l2); }),
              HasSubstr("was differentiated"));
  net.freeze("0.*");
  nn::Trainer trainer(net, optim::SGD{}, KVStore::create("local"));
  trainer.step(batch_of(8), nn::l2).wait();
  EXPECT_THAT(refusal_of([&] {
                net.freeze("2.weight");
                trainer.step(batch_of(8), nn::l2);
              }),
              HasSubstr("'2.weight' was frozen after the first step"));
  net.unfreeze("2.weight");
  trainer.step(batch_of(8), nn::l2).wait();
  net.unfreeze("0.weight");
  EXPECT_THAT(refusal_of([&] { trainer.step(batch_of(8), nn::l2); }),
              HasSubstr("'0.weight' was made to train after the first step"));
  EXPECT_THAT(refusal_of([&] { net.freeze("1.*"); }), AllOf(HasSubstr("'1.*'"), HasSubstr("0.weight")));
  EXPECT_THAT(refusal_of([&] { body_and_head().freeze(); }), HasSubstr("call initialize() first"));
}

// Two workers and two servers: only the head's keys are pushed, and all end with the same weights.
TEST(Freezing, FrozenKeysAreNotOnTheWire) {
  ClusterInProcess cluster({.mode = "dist_sync", .workers = 2, .servers = 2, .engine = &default_engine()});
  std::vector<Weights> weights(2);
  cluster.run([&](int worker, KVStore& store) {
    const std::shared_ptr<KVStore> kv(&store, [](KVStore*) {});
    const nn::Module net = body_and_head();
    net.initialize({8, 3}, static_cast<std::uint64_t>(worker) + 1, {}, DType::kFloat64);
    net.freeze("0.*");
    nn::Trainer trainer(net, optim::SGD{.lr = 0.1}, kv, {.seed = static_cast<std::uint64_t>(worker) + 1});
    constexpr int kSteps = 5;
    for (int step = 0; step < kSteps; ++step) trainer.step(batch_of(8, worker), nn::l2);
    trainer.synchronize();
    EXPECT_EQ(store.report().pushes, kSteps * 2 * 2);  // two keys of two workers
    store.barrier();
    weights[static_cast<std::size_t>(worker)] = weights_of(net);
  });
  EXPECT_EQ(weights[0], weights[1]);
}

TEST(Freezing, BatchNormUsesFrozenStatistics) {
  const nn::Module net = nn::Sequential(nn::BatchNorm(), nn::Dense(2));
  net.initialize({8, 3}, 1, {}, DType::kFloat64);
  net.freeze("0.*");
  const NDArray x = batch_of(8).data;
  EXPECT_EQ(net(x, {.training = true}).to_vector<double>(), net(x).to_vector<double>());
  net.unfreeze("0.*");
  EXPECT_NE(net(x, {.training = true}).to_vector<double>(), net(x).to_vector<double>());
}

// An embedding whose table is the output layer's weight, by hand: the gradient is the sum of both.
TEST(Tying, OneKeyWithTheSumOfItsGradients) {
  const nn::Embedding words(5, 3, {.weight = nn::normal(1)});
  const nn::Dense scores(5, {.bias = false});
  nn::tie(words, "weight", scores, "weight");
  const nn::Module net = nn::Sequential(words, nn::Tanh(), scores);
  const NDArray x = NDArray::from(std::vector<std::int32_t>{1, 4, 1}, {3}),
                y = NDArray::from(std::vector<std::int32_t>{2, 0, 3}, {3});
  net.initialize({3}, 7, {}, DType::kInt32);
  ASSERT_EQ(net.parameters().size(), 1u);
  const NDArray weight = net.parameters()[0]->value, gradient(weight.shape());
  EXPECT_EQ(net.parameters()[0]->name, "0.weight");
  const NDArray first = weight.clone(), second = weight.clone(), of_first(weight.shape()), of_second(weight.shape());
  {
    Tape tape;
    tape.watch(weight, gradient);
    tape.backward(nn::softmax_ce(net(x, {.training = true}), y));
  }
  {
    Tape tape;
    tape.watch(first, of_first);
    tape.watch(second, of_second);
    tape.backward(nn::softmax_ce(dense(tanh(embedding(x, first)), second), y));
  }
  EXPECT_EQ(gradient.to_vector<float>(), (of_first + of_second).to_vector<float>());
}

TEST(Tying, ALayerAtTwoPlacesTrainsIsSavedAndLoadedOnce) {
  const auto network = [] {
    const nn::Dense twice(3);
    return nn::Sequential(twice, nn::Tanh(), twice, nn::Dense(2));
  };
  const nn::Module net = network();
  nn::Trainer trainer(net, optim::SGD{.lr = 0.1}, KVStore::create("local"));
  const double before = trainer.step(batch_of(8), nn::l2).item<double>();
  double after = before;
  for (int step = 0; step < 20; ++step) after = trainer.step(batch_of(8), nn::l2).item<double>();
  EXPECT_LT(after, before);
  EXPECT_EQ(net.parameters().size(), 4u);
  const std::string path = testing::TempDir() + "tied.params";
  net.save(path);
  EXPECT_EQ(load_params(path).size(), 4u);
  const nn::Module other = network();
  other.initialize({8, 3}, 9, {}, DType::kFloat64);
  other.load(path);
  EXPECT_EQ(weights_of(other), weights_of(net));
  std::filesystem::remove(path);
}

TEST(Tying, APatternFreezesByEveryName) {
  nn::Embedding words(5, 3);
  nn::Dense scores(5);
  nn::tie(words, "weight", scores, "weight");
  const nn::Module net = nn::Sequential(words, nn::Tanh(), scores);
  net.initialize({3}, 1, {}, DType::kInt32);
  net.freeze("2.*");
  for (const auto& parameter : net.parameters()) EXPECT_TRUE(parameter->frozen) << parameter->name;
  net.unfreeze("2.weight");
  EXPECT_FALSE(net.parameters()[0]->frozen);
}

TEST(Tying, DoesNotTakeAParameterFromAnother) {
  nn::Dense a(3), b(3), c(3);
  a.initialize({2, 3}, 1);
  b.initialize({2, 3}, 2);
  nn::tie(a, "weight", c, "weight");
  EXPECT_THAT(refusal_of([&] { nn::tie(b, "weight", c, "weight"); }),
              HasSubstr("tied to parameters that exist already"));
}

TEST(Tying, RefusesWhatDoesNotFit) {
  const nn::Dense a(3), b(4);
  nn::tie(a, "weight", b, "weight");
  EXPECT_THAT(refusal_of([&] {
                nn::Sequential(a, b).initialize({2, 3}, 1);
              }),
              AllOf(HasSubstr("'weight' of shape (4, 3) is tied"), HasSubstr("(3, 3)")));
  const nn::Dense c(3), d(3);
  nn::Sequential(c, d).initialize({2, 3}, 1);
  EXPECT_THAT(refusal_of([&] { nn::tie(c, "weight", d, "weight"); }), HasSubstr("tie before the first call"));
  const nn::Embedding rows(4, 3, {.sparse_grad = true});
  const nn::Dense e(4);
  nn::tie(rows, "weight", e, "weight");
  EXPECT_THAT(refusal_of([&] { nn::Sequential(rows, e).initialize({2}, 1); }), HasSubstr("sparse_grad = false"));
  const nn::Embedding late(4, 3, {.sparse_grad = true});
  const nn::Dense early(4);
  nn::tie(early, "weight", late, "weight");
  EXPECT_THAT(refusal_of([&] {
                early.initialize({2, 3}, 1);
                late.initialize({2}, 1);
              }),
              HasSubstr("sparse_grad = false"));
  const nn::Dense f(3), g(3);
  nn::tie(f, "weights", g, "weight");
  EXPECT_THAT(refusal_of([&] {
                f.initialize({2, 3}, 1);
              }),
              HasSubstr("no parameter 'weights' to tie; there are: weight"));
  EXPECT_THAT(refusal_of([&] { nn::tie(nn::Sequential(a), "7.weight", d, "bias"); }), HasSubstr("no layer '7'"));
}

// The weights of golden/trained.py, in float64.
struct Trained {
  nn::Module net;
  std::vector<double> phases;  // that the parameters begin with, in structural order
  std::function<Batch(int step)> batch;
  nn::Loss loss;
  std::string frozen = {};  // a pattern
  DType input = DType::kFloat64;
};

NDArray waves(const Shape& shape, double scale, double phase, double factor, double (*of)(double)) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < shape.size(); ++i) values.push_back(scale * of(factor * static_cast<double>(i) + phase));
  return NDArray::from(values, shape);
}

Batch wave_batch(int step) {
  Batch batch;
  batch.data = waves({8, 3}, 1, step, 1, [](double x) { return std::sin(x); });
  batch.label = waves({8, 2}, 1, step, 2, [](double x) { return std::cos(x); });
  batch.examples = 8;
  return batch;
}

Batch number_batch(int step) {
  std::vector<std::int32_t> ids, labels;
  for (int i = 0; i < 6; ++i) {
    ids.push_back((3 * i + step) % 5);
    labels.push_back((i + 2 * step) % 5);
  }
  Batch batch;
  batch.data = NDArray::from(ids, {6});
  batch.label = NDArray::from(labels, {6});
  batch.examples = 6;
  return batch;
}

Trained trained_case(const std::string& name) {
  if (name == "views")
    return {
        nn::Sequential(nn::Dense(6),
                       nn::Lambda("Views",
                                  [](const NDArray& x) {
                                    return x.view({-1, 2, 3}).narrow(2, 0, 2).permute({0, 2, 1}).clone().view({-1, 4});
                                  }),
                       nn::Tanh(), nn::Dense(2)),
        {1, 2, 3, 4},
        wave_batch,
        nn::l2};
  if (name == "frozen")
    return {nn::Sequential(nn::Dense(4), nn::Tanh(), nn::Dense(2)), {6, 7, 8, 9}, wave_batch, nn::l2, "0.*"};
  const nn::Embedding words(5, 3, {.dtype = DType::kFloat64});
  const nn::Dense scores(5, {.bias = false});
  nn::tie(words, "weight", scores, "weight");
  return {nn::Sequential(words, nn::Tanh(), scores), {5}, number_batch, nn::softmax_ce, "", DType::kInt32};
}

// Trains and compares, as one worker of a job in which all have the same batches.
void train_as_pytorch(const std::string& name, const std::shared_ptr<KVStore>& kv) {
  const Trained one = trained_case(name);
  const Batch first = one.batch(0);
  one.net.initialize(first.data.shape(), 1, {}, one.input);
  const auto parameters = one.net.parameters();
  ASSERT_EQ(parameters.size(), one.phases.size());
  for (std::size_t i = 0; i < parameters.size(); ++i)
    parameters[i]->value.copy_from(
        waves(parameters[i]->value.shape(), 0.5, one.phases[i], 3, [](double x) { return std::sin(x); }));
  if (!one.frozen.empty()) one.net.freeze(one.frozen);
  nn::Trainer trainer(one.net, optim::SGD{.lr = 0.1, .momentum = 0.9}, kv);
  for (int step = 0; step < 20; ++step) trainer.step(one.batch(step), one.loss);
  trainer.synchronize();
  std::map<std::string, NDArray> expected;
  for (const auto& [key, array] : load_safetensors(source_dir() + "/tests/nn/trained.safetensors"))
    expected[key] = array;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto found = parameters[i]->value.to_vector<double>(),
               wanted = expected.at(name + "/w" + std::to_string(i)).to_vector<double>();
    double difference = 0, norm = 0;
    for (std::size_t k = 0; k < wanted.size(); ++k) {
      difference += (found[k] - wanted[k]) * (found[k] - wanted[k]);
      norm += wanted[k] * wanted[k];
    }
    EXPECT_LE(std::sqrt(difference), 1e-6 * std::sqrt(norm)) << parameters[i]->name;
  }
}

class TrainedAsPyTorch : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Networks, TrainedAsPyTorch, testing::Values("views", "tied", "frozen"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(TrainedAsPyTorch, Alone) { train_as_pytorch(GetParam(), KVStore::create("local")); }

TEST_P(TrainedAsPyTorch, OverTwoServersAndTwoWorkers) {
  ClusterInProcess cluster({.mode = "dist_sync", .workers = 2, .servers = 2, .engine = &default_engine()});
  cluster.run(
      [&](int, KVStore& store) { train_as_pytorch(GetParam(), std::shared_ptr<KVStore>(&store, [](KVStore*) {})); });
}

class Loading : public testing::Test {
 protected:
  std::string path = testing::TempDir() + "loading_" + testing::UnitTest::GetInstance()->current_test_info()->name();
  void TearDown() override { std::filesystem::remove_all(path); }

  static nn::Module network(std::int64_t classes = 2) {
    const nn::Module net = nn::Sequential(nn::Dense(4), nn::BatchNorm(), nn::Dense(classes));
    net.initialize({8, 3}, static_cast<std::uint64_t>(classes));
    return net;
  }
};

TEST_F(Loading, FromEveryKindOfFile) {
  const nn::Module net = network();
  NamedArrays mxnet, plain;
  for (const auto& parameter : net.parameters()) {
    mxnet.emplace_back((parameter->statistic ? "aux:" : "arg:") + parameter->name, parameter->value);
    plain.emplace_back(parameter->name, parameter->value.cast(DType::kFloat64));
  }
  save_params(path, mxnet);
  const nn::Module first = nn::Sequential(nn::Dense(4), nn::BatchNorm(), nn::Dense(2));
  first.initialize({8, 3}, 77);
  EXPECT_THAT(nn::load_weights(first, path).missing, IsEmpty());
  EXPECT_EQ(weights_of(first), weights_of(net));
  save_safetensors(path, plain);
  const nn::Module second = nn::Sequential(nn::Dense(4), nn::BatchNorm(), nn::Dense(2));
  second.initialize({8, 3}, 78);
  nn::load_weights(second, path);
  EXPECT_EQ(weights_of(second), weights_of(net));
}

TEST_F(Loading, SaysWhatDoesNotFitAndChangesNothing) {
  const nn::Module net = network(2), other = network(5);
  net.save(path);
  const Weights before = weights_of(other);
  EXPECT_THAT(refusal_of([&] { nn::load_weights(other, path); }),
              HasSubstr("other shapes for '2.weight (2, 4) instead of (5, 4)', '2.bias"));
  EXPECT_EQ(weights_of(other), before);
  const nn::LoadedWeights loaded = nn::load_weights(other, path, {.allow_missing = true});
  EXPECT_THAT(loaded.other_shape, ElementsAre("2.weight (2, 4) instead of (5, 4)", "2.bias (2,) instead of (5,)"));
  EXPECT_EQ(weights_of(other).at("0.weight"), weights_of(net).at("0.weight"));
  EXPECT_EQ(weights_of(other).at("2.bias"), before.at("2.bias"));
}

TEST_F(Loading, MapsNames) {
  const nn::Module net = network();
  NamedArrays renamed;
  for (const auto& parameter : net.parameters()) renamed.emplace_back("model." + parameter->name, parameter->value);
  renamed.emplace_back("model.9.weight", NDArray::zeros({1}));
  save_safetensors(path, renamed);
  const nn::Module other = nn::Sequential(nn::Dense(4), nn::BatchNorm(), nn::Dense(2));
  other.initialize({8, 3}, 77);
  EXPECT_THAT(refusal_of([&] { nn::load_weights(other, path); }),
              AllOf(HasSubstr("it lacks '0.weight'"), HasSubstr("the network lacks 'model.0.bias'")));
  const auto map = [](const std::string& name) { return name.substr(6); };
  EXPECT_THAT(refusal_of([&] { nn::load_weights(other, path, {.map = map}); }),
              HasSubstr("fit the network: the network lacks '9.weight'"));
  EXPECT_THAT(nn::load_weights(other, path, {.map = map, .allow_extra = true}).extra, ElementsAre("9.weight"));
  EXPECT_EQ(weights_of(other), weights_of(net));
  EXPECT_THAT(refusal_of([&] { nn::load_weights(other, path, {.map = [](auto&) { return "0.weight"; }}); }),
              HasSubstr("two arrays for '0.weight'"));
}

TEST_F(Loading, ANetworkWithoutWeightsIsNeitherSavedNorLoaded) {
  const nn::Module net = nn::Sequential(nn::Dense(4));
  EXPECT_THAT(refusal_of([&] { net.save(path); }), HasSubstr("call initialize() first"));
  EXPECT_FALSE(std::filesystem::exists(path));
  network().save(path);
  EXPECT_THAT(refusal_of([&] { net.load(path); }), HasSubstr("call initialize() first"));
}

// Without padding the length of a header may look like the first bytes of another kind of file.
TEST(LoadWeights, KnowsSafetensorsByTheirHeader) {
  const std::string path = testing::TempDir() + "header-" + std::to_string(getpid()) + ".safetensors";
  for (const std::size_t length : {123, 274, 379}) {
    std::string header = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"__metadata__":{"note":""}})";
    header.insert(header.size() - 3, length - header.size(), 'x');
    ASSERT_EQ(header.size(), length);
    std::ofstream file(path, std::ios::binary);
    const std::uint64_t size = length;
    const float value = 3;
    file.write(reinterpret_cast<const char*>(&size), sizeof size);
    file << header;
    file.write(reinterpret_cast<const char*>(&value), sizeof value);
    file.close();
    const nn::Module net = nn::Dense(2);
    net.initialize({1, 3}, 1);
    EXPECT_THAT(nn::load_weights(net, path, {.allow_missing = true, .allow_extra = true}).extra, ElementsAre("w"));
  }
  std::filesystem::remove(path);
}

TEST(LoadWeights, NamesFilesThatAreNoWeights) {
  const std::string path = testing::TempDir() + "paceline_no_weights";
  const nn::Module net = body_and_head();
  net.initialize({8, 3}, 1, {}, DType::kFloat64);
  const auto refusal = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    return refusal_of([&] { nn::load_weights(net, path); });
  };
  EXPECT_THAT(refusal("PK\x03\x04 and more"), HasSubstr("save the state_dict() with safetensors.torch.save_file"));
  EXPECT_THAT(refusal("{\"metadata\": {}, \"weight_map\": {}}"), HasSubstr("load each .safetensors of it"));
  std::filesystem::remove(path);
}

// Half the loss on each of two halves is the loss on both.
TEST(Accumulating, AddsUpToTheStepOverAllBatches) {
  const auto train = [](bool accumulates) {
    const nn::Module net = nn::Sequential(nn::Dense(4), nn::Tanh(), nn::Dense(2));
    net.initialize({8, 3}, 3, {}, DType::kFloat64);
    nn::Trainer trainer(net, optim::SGD{.lr = 0.1, .momentum = 0.9}, KVStore::create("local"));
    const auto half = [](const NDArray& y, const NDArray& label) { return nn::l2(y, label) * 0.5; };
    for (int step = 0; step < 3; ++step) {
      const Batch first = batch_of(4, step), second = batch_of(4, step + 10);
      Batch both;
      both.data = concat({first.data, second.data}, 0);
      both.label = concat({first.label, second.label}, 0);
      both.examples = 8;
      if (accumulates) {
        trainer.accumulate(first, half);
        trainer.step(second, half);
      } else {
        trainer.step(both, nn::l2);
      }
    }
    trainer.synchronize();
    EXPECT_EQ(trainer.report().examples, 24);
    return weights_of(net);
  };
  const Weights whole = train(false), parts = train(true);
  for (const auto& [name, values] : whole)
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], parts.at(name)[i], 1e-12) << name;
}

// Three batches, two to a step: the third has no step() of its own. Both sum losses that are divided by two.
TEST(Accumulating, WhatIsLeftWhenAnEpochEndsIsAStep) {
  ClusterInProcess cluster({.mode = "dist_sync", .workers = 1, .servers = 1, .engine = &default_engine()});
  cluster.run([&](int, KVStore& store) {
    const std::shared_ptr<KVStore> kv(&store, [](KVStore*) {});
    const Batch all = batch_of(12);
    MemoryIterator data(all.data, all.label, {.batch = 4, .source = nn::shared_source(kv)});
    const nn::Module net = nn::Dense(2);
    nn::Trainer trainer(net, optim::SGD{.lr = 0.1}, kv);
    const auto half = [](const NDArray& y, const NDArray& label) { return nn::l2(y, label) * 0.5; };
    Weights before;
    double loss = 0;
    for (int epoch = 0; epoch < 2; ++epoch) {
      int i = 0;
      for (Batch& batch : trainer.epoch_of(data)) {
        const NDArray part = i++ % 2 == 0 ? trainer.accumulate(batch, half) : trainer.step(batch, half);
        loss += part.item<double>() * (i < 3 ? 8 : 4);
        if (i == 2) {
          trainer.synchronize();
          before = weights_of(net);
        }
      }
      EXPECT_NE(weights_of(net), before);
      EXPECT_EQ(trainer.epoch(), epoch + 1);
    }
    const nn::TrainerReport report = trainer.report();
    EXPECT_EQ(report.steps, 4);
    EXPECT_EQ(report.examples, 24);
    EXPECT_NEAR(report.loss, loss / 24, 1e-9);
  });
}

TEST(Accumulating, SaysWhatToSetWhereItCannot) {
  const auto refusal = [](const nn::TrainerOptions& options) {
    nn::Trainer trainer(nn::Dense(2), optim::SGD{}, KVStore::create("local"), options);
    return refusal_of([&] { trainer.accumulate(batch_of(8), nn::l2); });
  };
  EXPECT_THAT(refusal({.captured = true}), HasSubstr("captured = false"));
  EXPECT_THAT(refusal({.precision = DType::kFloat16}), HasSubstr("precision to bfloat16"));
}

TEST(GradientHook, MayOverwriteGradients) {
  const nn::Module body = nn::Dense(4), net = nn::Sequential(body, nn::Dense(2));
  net.initialize({8, 3}, 3, {}, DType::kFloat64);
  const Weights before = weights_of(net);
  nn::Trainer trainer(net, optim::SGD{.lr = 0.1}, KVStore::create("local"),
                      {.on_gradients = [](const nn::NamedGradients& gradients) {
                        for (const auto& [name, gradient] : gradients)
                          if (name == "0.weight") gradient.dense.fill(0);
                      }});
  for (int step = 0; step < 2; ++step) {
    trainer.step(batch_of(8), nn::l2);
    EXPECT_EQ(body.parameters()[0]->name, "weight");  // a part gives names of its own
  }
  trainer.synchronize();
  EXPECT_EQ(weights_of(net).at("0.weight"), before.at("0.weight"));
  EXPECT_NE(weights_of(net).at("1.weight"), before.at("1.weight"));
}

class OnNan : public testing::Test {
 protected:
  // Five steps, of which the third's labels are no numbers.
  std::string train(nn::OnNan on_nan) {
    net_ = nn::Sequential(nn::Dense(4), nn::Dense(2));
    net_->initialize({8, 3}, 3, {}, DType::kFloat64);
    trainer_.emplace(*net_, optim::SGD{.lr = 0.1}, KVStore::create("local"), nn::TrainerOptions{.on_nan = on_nan});
    testing::internal::CaptureStderr();
    try {
      for (int step = 0; step < 5; ++step) {
        Batch batch = batch_of(8);
        if (step == 2) batch.label.fill(std::numeric_limits<double>::quiet_NaN());
        trainer_->step(batch, nn::l2);
      }
      trainer_->synchronize();
    } catch (const Error& error) {
      stopped_ = error.what();
    }
    return testing::internal::GetCapturedStderr();
  }
  // Two labels for each example.
  static Batch of(const NDArray& data, double label) {
    Batch batch;
    batch.data = data;
    batch.examples = data.size(0);
    batch.label = NDArray::full(Shape{batch.examples, 2}, label);
    return batch;
  }
  bool finite() const {
    for (const auto& [name, values] : weights_of(*net_))
      for (const double value : values)
        if (!std::isfinite(value)) return false;
    return true;
  }

  std::optional<nn::Module> net_;
  std::optional<nn::Trainer> trainer_;
  std::string stopped_;
};

TEST_F(OnNan, WarnsOnceByDefault) {
  EXPECT_EQ(nn::TrainerOptions().on_nan, nn::OnNan::kWarn);
  const std::string log = train(nn::OnNan::kWarn);
  const std::size_t first =
      log.find("the loss of step 3 is nan; the first that is not finite is the weight '0.weight'");
  EXPECT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("the loss of step", first + 1), std::string::npos) << log;
  EXPECT_FALSE(finite());
}

TEST_F(OnNan, Stops) {
  train(nn::OnNan::kStop);
  EXPECT_THAT(stopped_, HasSubstr("the loss of step 3 is nan"));
}

TEST_F(OnNan, StopsBeforeACheckpointOfWeightsThatAreNotFinite) {
  const std::string folder = testing::TempDir() + "not_finite";
  std::filesystem::remove_all(folder);
  net_ = nn::Sequential(nn::Dense(2));
  net_->initialize({8, 3}, 3, {}, DType::kFloat64);
  nn::Trainer trainer(*net_, optim::SGD{.lr = 1e308}, KVStore::create("local"), {.on_nan = nn::OnNan::kStop});
  Batch batch = batch_of(8);
  batch.label.fill(1e3);  // for a gradient above 1
  trainer.step(batch, nn::l2);
  EXPECT_THAT(test::refusal_of<Error>([&] { trainer.checkpoint(folder); }), HasSubstr("is not finite"));
  EXPECT_FALSE(std::filesystem::exists(folder));
}

// Rows of a table overflow in the last step. The variance of large numbers is infinite, and the loss is not.
TEST_F(OnNan, StopsBeforeACheckpointOfTablesOrStatisticsThatAreNotFinite) {
  const std::string folder = testing::TempDir() + "not_finite";
  const auto expect_refusal = [&](const nn::Module& net, const NDArray& data, double rate, const std::string& what) {
    std::filesystem::remove_all(folder);
    nn::Trainer trainer(net, optim::SGD{.lr = rate}, KVStore::create("local"), {.on_nan = nn::OnNan::kStop});
    trainer.step(of(data, 1e3), nn::l2);
    EXPECT_THAT(test::refusal_of<Error>([&] { trainer.checkpoint(folder); }), HasSubstr(what + " is not finite"));
    EXPECT_FALSE(std::filesystem::exists(folder));
  };
  const NDArray ids = NDArray::from<std::int64_t>({0, 1, 2, 3, 4, 5, 6, 7}, Shape{8, 1});
  expect_refusal(nn::Sequential(nn::Embedding(8, 2, {.sparse_grad = true}), nn::Flatten()), ids, 1e38,
                 "the weight '0.weight'");
  const NDArray large = NDArray::from<float>({1e25F, -1e25F, 1e25F, -1e25F, 1e25F, -1e25F, 1e25F, -1e25F}, Shape{8, 1});
  expect_refusal(nn::Sequential(nn::BatchNorm(), nn::Dense(2)), large, 0.1, "the statistic '0.running_var'");
}

TEST_F(OnNan, FindsTheGradientOfATable) {
  nn::Trainer trainer(nn::Sequential(nn::Embedding(8, 2, {.sparse_grad = true}), nn::Flatten()), optim::SGD{.lr = 0.1},
                      KVStore::create("local"), {.on_nan = nn::OnNan::kStop});
  const NDArray ids = NDArray::from<std::int64_t>({0, 1}, Shape{2, 1});
  trainer.step(of(ids, std::numeric_limits<double>::quiet_NaN()), nn::l2);
  EXPECT_THAT(test::refusal_of<Error>([&] { trainer.synchronize(); }),
              HasSubstr("the first that is not finite is the gradient of '0.weight'"));
}

TEST_F(OnNan, SkipsTheStep) {
  EXPECT_THAT(train(nn::OnNan::kSkip), HasSubstr("step 3 is left out"));
  EXPECT_TRUE(finite());
  const nn::TrainerReport report = trainer_->report();
  EXPECT_EQ(report.left_out, 1);
  EXPECT_EQ(report.examples, 32);
}

TEST_F(OnNan, IsIgnored) {
  EXPECT_EQ(train(nn::OnNan::kIgnore).find("the loss of step"), std::string::npos);
  EXPECT_FALSE(finite());
}

}  // namespace
}  // namespace paceline::test

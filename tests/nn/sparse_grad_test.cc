// Embeddings whose gradient is row-sparse, and a Trainer that keeps them in tables of its store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory_pool.h>
#include <paceline/detail/declared.h>
#include <paceline/memory_iterator.h>
#include <paceline/nn.h>
#include <paceline/ops.h>
#include <support/cluster_in_process.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>

namespace paceline::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Values = std::vector<float>;

constexpr std::int64_t kRows = 20, kExamples = 24;

// Numbers of rows, some of them more than once in a batch and rows 15 to 19 never, with a class each.
struct Words {
  NDArray data, label;
  Words() {
    std::vector<std::int32_t> words, labels;
    for (std::int32_t i = 0; i < kExamples; ++i) {
      words.insert(words.end(), {i % 5, (i * 7) % 15, i % 2});
      labels.push_back(i % 3);
    }
    data = NDArray::from(words, {kExamples, 3});
    label = NDArray::from(labels, {kExamples});
  }
  Batch batch(std::int64_t begin, std::int64_t end) const {
    Batch batch;
    batch.data = data.narrow(0, begin, end);
    batch.label = label.narrow(0, begin, end);
    batch.examples = end - begin;
    return batch;
  }
};

nn::Module network(bool sparse) {
  return nn::Sequential(nn::Embedding(kRows, 4, {nn::normal(0.5), sparse}), nn::Flatten(), nn::Dense(3));
}

Values all_of(const nn::Module& net) {
  Values all;
  for (const auto& parameter : net.parameters())
    for (const float value : parameter->value.to_vector<float>()) all.push_back(value);
  return all;
}

void expect_near(const Values& found, const Values& wanted, double tolerance = 2e-6) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(found[i], wanted[i], tolerance) << i;
}

// The losses of some steps, then all weights.
Values trained(const nn::Module& net, const Spec& optimizer, const nn::TrainerOptions& options = {},
               const std::string& mode = "local", const nn::Loss& loss = nn::softmax_ce) {
  nn::Trainer trainer(net, optimizer, KVStore::create(mode), options);
  Values result;
  for (int i = 0; i < 8; ++i)
    result.push_back(trainer.step(Words().batch(i % 4 * 6, i % 4 * 6 + 6), loss).item<float>());
  trainer.synchronize();
  const Values weights = all_of(net);
  result.insert(result.end(), weights.begin(), weights.end());
  return result;
}

TEST(SparseGrad, AFrozenTableBesideATrainedOneKeepsItsRows) {
  const nn::EmbeddingOptions sparse{nn::normal(0.5), true};
  const nn::Module fixed = nn::Embedding(kRows, 4, sparse), trained = nn::Embedding(kRows, 4, sparse);
  const nn::Module both = nn::Sequential(nn::Residual(trained, fixed), nn::Flatten(), nn::Dense(3));
  both.initialize(Words().batch(0, 6).data.shape(), 1, {}, DType::kInt32);
  fixed.freeze("*");
  const Values before = all_of(fixed), others = all_of(trained);
  nn::Trainer trainer(both, optim::SGD{.lr = 0.1}, KVStore::create("local"));
  for (int i = 0; i < 3; ++i) trainer.step(Words().batch(0, 6), nn::softmax_ce);
  trainer.synchronize();
  EXPECT_EQ(all_of(fixed), before);
  EXPECT_NE(all_of(trained), others);
}

TEST(SparseGrad, TwoUsesOfATableStaySparse) {
  const NDArray table = NDArray::from(Values{1, 2, 3, 4, 5, 6}, {3, 2});
  const NDArray first = NDArray::from(std::vector<std::int64_t>{2, 0}, {2}),
                second = NDArray::from(std::vector<std::int64_t>{0}, {1});
  Tape tape;
  tape.watch_sparse(table);
  tape.backward(sum(embedding(first, table, true)) + sum(embedding(second, table, true) * 3));
  const Gradient gradient = tape.sparse_gradient(table);
  ASSERT_TRUE(gradient.is_sparse());
  EXPECT_EQ(gradient.sparse.rows.size(), 3);
  const NDArray dense = NDArray::zeros({3, 2});
  scatter_add(dense, gradient.sparse);
  EXPECT_EQ(dense.to_vector<float>(), (Values{4, 4, 0, 0, 1, 1}));
}

// Rows that no example names have a gradient of zero, which plain SGD makes nothing of.
TEST(SparseGrad, TrainsAsADenseGradientDoes) {
  const Spec sgd = optim::SGD{.lr = 0.3};
  const nn::TrainerOptions variants[] = {{},
                                         {.micro_batches = 4},
                                         {.clip_norm = 0.2},
                                         {.micro_batches = 3, .clip_norm = 0.2},
                                         {.precision = DType::kBfloat16},
                                         {.precision = DType::kFloat16, .clip_norm = 0.2}};
  for (const nn::TrainerOptions& options : variants) {
    SCOPED_TRACE(str(options.micro_batches, " ", options.clip_norm, " ", name_of(options.precision)));
    const Values wanted = trained(network(false), sgd, options);
    expect_near(trained(network(true), sgd, options), wanted);
    expect_near(trained(nn::Recompute(network(true)), sgd, options), wanted);
    expect_near(trained(network(true).to(Device("cpu:1")), sgd, options, "device"), wanted);
  }
  const Values free = trained(network(true), sgd), clipped = trained(network(true), sgd, {.clip_norm = 0.2});
  EXPECT_NE(free, clipped);
}

TEST(SparseGrad, OneLayerAtTwoPlaces) {
  const auto twice = [](bool sparse) {
    const nn::Module table = nn::Embedding(kRows, 4, {nn::normal(0.5), sparse});
    struct Sum final : nn::Layer {
      explicit Sum(const nn::Module& table) { add_child("table", table.layer()); }
      NDArray forward(const NDArray& x, const nn::Context& context) override {
        nn::Layer& layer = *children()[0].second;
        return layer(x, context) + layer(x.narrow(1, 0, 1), context);
      }
      std::string kind() const override { return "Sum"; }
    };
    return nn::Sequential(nn::Module(std::make_shared<Sum>(table)), nn::Flatten(), nn::Dense(3));
  };
  expect_near(trained(twice(true), optim::SGD{.lr = 0.3}), trained(twice(false), optim::SGD{.lr = 0.3}));
}

// Momentum, mean, variance and decay of a row go on when it is named, and only then; Adam counts the row's own updates.
void expect_lazy_optimizers(const std::function<std::shared_ptr<KVStore>()>& store_of) {
  const std::map<std::string, Spec> optimizers{
      {"momentum", optim::SGD{.lr = 0.1, .momentum = 0.8, .weight_decay = 0.05}},
      {"adam", optim::Adam{.lr = 0.02, .weight_decay = 0.05}}};
  for (const auto& [name, optimizer] : optimizers) {
    SCOPED_TRACE(name);
    const nn::Module net = nn::Embedding(4, 1, {nn::constant(0.5), true});
    nn::Trainer trainer(net, optimizer, store_of());
    struct Row {
      double weight = 0.5, first = 0, second = 0;
      int updates = 0;
    };
    std::vector<Row> rows(4);
    const std::vector<std::int32_t> steps[] = {{0, 1}, {1, 1}, {0, 2}, {1, 2}, {0, 0}};
    for (const auto& words : steps) {
      Batch batch;
      batch.data = NDArray::from(words, {2});
      batch.label = NDArray::full({2, 1}, 2);
      batch.examples = 2;
      trainer.step(batch, nn::l2);
      std::map<std::int32_t, double> gradients;  // of the mean of (w - 2)^2 / 2
      for (const std::int32_t word : words) gradients[word] += (rows[static_cast<std::size_t>(word)].weight - 2) / 2;
      for (auto [word, gradient] : gradients) {
        Row& row = rows[static_cast<std::size_t>(word)];
        gradient += 0.05 * row.weight;
        ++row.updates;
        if (name == "momentum") {
          row.first = 0.8 * row.first + gradient;
          row.weight -= 0.1 * row.first;
        } else {
          row.first = 0.9 * row.first + 0.1 * gradient;
          row.second = 0.999 * row.second + 0.001 * gradient * gradient;
          const double mean = row.first / (1 - std::pow(0.9, row.updates)),
                       variance = row.second / (1 - std::pow(0.999, row.updates));
          row.weight -= 0.02 * mean / (std::sqrt(variance) + 1e-8);
        }
      }
    }
    trainer.synchronize();
    Values wanted;
    for (const Row& row : rows) wanted.push_back(static_cast<float>(row.weight));
    expect_near(all_of(net), wanted, 1e-5);
    EXPECT_EQ(wanted[3], 0.5f);
  }
}

TEST(SparseGrad, OptimizersAreLazy) {
  expect_lazy_optimizers([] { return KVStore::create("local"); });
  std::vector<std::unique_ptr<ClusterInProcess>> clusters;
  expect_lazy_optimizers([&] {
    clusters.push_back(std::make_unique<ClusterInProcess>(
        ClusterOptions{.mode = "dist_sync", .workers = 1, .servers = 1, .engine = &default_engine()}));
    return std::shared_ptr<KVStore>(&clusters.back()->worker(0), [](KVStore*) {});
  });
}

// What worker 0 begins with is what all begin with. A mode without tables trains a dense gradient.
TEST(SparseGrad, WorkersTogetherAreOneProcess) {
  const nn::Module alone = network(false);
  nn::Trainer trainer(alone, optim::SGD{.lr = 0.3}, KVStore::create("local"), {.seed = 1});
  for (int i = 0; i < 8; ++i) trainer.step(Words().batch(i % 2 * 12, i % 2 * 12 + 12), nn::softmax_ce);
  trainer.synchronize();
  const Values wanted = all_of(alone);
  for (const std::string mode : {"dist_sync", "ring"}) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster(
        {.mode = mode, .workers = 2, .servers = mode == "ring" ? 0 : 2, .engine = &default_engine()});
    std::vector<Values> weights(2);
    cluster.run([&](int, KVStore& store) {
      const std::shared_ptr<KVStore> kv(&store, [](KVStore*) {});
      const auto rank = static_cast<std::uint64_t>(store.rank());
      const nn::Module net = network(true);
      nn::Trainer worker(net, optim::SGD{.lr = 0.3}, kv, {.seed = 1 + rank, .micro_batches = 2});
      for (int i = 0; i < 8; ++i) {
        const std::int64_t begin = i % 2 * 12 + store.rank() * 6;
        worker.step(Words().batch(begin, begin + 6), nn::softmax_ce);
      }
      worker.synchronize();
      EXPECT_EQ(net.parameters()[0]->gradient.is_none(), mode != "ring");
      weights[rank] = all_of(net);
    });
    expect_near(weights[0], wanted);
    EXPECT_EQ(weights[0], weights[1]);
  }
}

TEST(SparseGrad, TrainsAsynchronously) {
  ClusterInProcess cluster({.mode = "dist_async", .workers = 2, .servers = 2, .engine = &default_engine()});
  std::vector<Values> weights(2);
  cluster.run([&](int, KVStore& store) {
    const std::shared_ptr<KVStore> kv(&store, [](KVStore*) {});
    const nn::Module net = network(true);
    MemoryIterator data(Words().data, Words().label, {.batch = 4, .shuffle = 1, .source = nn::shared_source(kv)});
    nn::Trainer trainer(net, optim::Adam{.lr = 0.03}, kv);
    double first = 0, last = 0;
    while (trainer.epoch() < 20) {
      for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::softmax_ce);
      last = trainer.report().loss;
      if (trainer.epoch() == 1) first = last;
    }
    trainer.synchronize();
    EXPECT_LT(last, 0.5 * first);
    weights[static_cast<std::size_t>(store.rank())] = all_of(net);
  });
  EXPECT_EQ(weights[0], weights[1]);
}

// Asking a part of the network for its parameters names them anew; the store's tables keep their names.
TEST(SparseGrad, NamesOfAPartLeaveTheStoreAlone) {
  ClusterInProcess cluster({.mode = "dist_sync", .workers = 1, .servers = 2, .engine = &default_engine()});
  cluster.run([&](int, KVStore& store) {
    const std::shared_ptr<KVStore> kv(&store, [](KVStore*) {});
    const nn::Module words = nn::Embedding(kRows, 4, {.sparse_grad = true}),
                     net = nn::Sequential(nn::Sequential(words, nn::Flatten()), nn::Dense(3));
    MemoryIterator data(Words().data, Words().label, {.batch = 4, .source = nn::shared_source(kv)});
    nn::Trainer trainer(net, optim::SGD{.lr = 0.3}, kv);
    for (Batch& batch : trainer.epoch_of(data)) {
      trainer.step(batch, nn::softmax_ce);
      EXPECT_THAT(words.describe(), testing::HasSubstr("weight"));
    }
    trainer.synchronize();
    EXPECT_EQ(net.parameters()[0]->name, "0.0.weight");
  });
}

// A worker that comes to a running job takes the rows as they are, not as it would begin.
TEST(SparseGrad, AWorkerComesBack) {
  ClusterInProcess cluster({.mode = "dist_sync", .workers = 2, .servers = 2, .engine = &default_engine()});
  const auto make = [](KVStore& store) {
    return std::make_unique<nn::Trainer>(network(true), optim::SGD{.lr = 0.3},
                                         std::shared_ptr<KVStore>(&store, [](KVStore*) {}));
  };
  const auto epoch = [](nn::Trainer& trainer, KVStore& store) {
    MemoryIterator data(Words().data, Words().label,
                        {.batch = 4, .source = nn::shared_source(std::shared_ptr<KVStore>(&store, [](KVStore*) {}))});
    for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::softmax_ce);
    trainer.synchronize();
    return all_of(trainer.net());
  };
  std::vector<std::unique_ptr<nn::Trainer>> trainers(2);
  std::vector<Values> weights(2);
  cluster.run([&](int worker, KVStore& store) {
    const auto place = static_cast<std::size_t>(worker);
    trainers[place] = make(store);
    weights[place] = epoch(*trainers[place], store);
  });
  const Values before = weights[0];
  trainers[1].reset();
  cluster.kill_worker(1);
  cluster.join_worker(1);
  cluster.run([&](int worker, KVStore& store) {
    const auto place = static_cast<std::size_t>(worker);
    if (worker == 1) {
      trainers[1] = make(store);
      trainers[1]->resume_if_present("/nowhere");
      EXPECT_EQ(trainers[1]->epoch(), 1);
    }
    weights[place] = epoch(*trainers[place], store);
  });
  EXPECT_NE(weights[0], before);
  EXPECT_EQ(weights[1], weights[0]);
  trainers.clear();
}

// A worker that leaves a step out pushes no rows; the round closes over the other's.
TEST(SparseGrad, StepsAreLeftOut) {
  ClusterInProcess cluster({.mode = "dist_sync", .workers = 2, .servers = 1, .engine = &default_engine()});
  std::vector<Values> weights(2);
  cluster.run([&](int, KVStore& store) {
    const std::shared_ptr<KVStore> kv(&store, [](KVStore*) {});
    double factor = 1;
    const nn::Module net =
        nn::Sequential(nn::Embedding(kRows, 4, {nn::normal(0.5), true}),
                       nn::Lambda("Spoil", [&](const NDArray& x) { return flatten(x) * factor; }), nn::Dense(3));
    nn::Trainer trainer(net, optim::SGD{.lr = 0.3}, kv, {.precision = DType::kFloat16});
    std::int64_t left_out = 0;
    for (int i = 0; i < 4; ++i) {
      factor = i == 1 && store.rank() == 1 ? 1e6 : 1;
      trainer.step(Words().batch(store.rank() * 6, store.rank() * 6 + 6), nn::softmax_ce);
    }
    trainer.synchronize();
    left_out = trainer.report().left_out;
    EXPECT_EQ(left_out, store.rank());
    weights[static_cast<std::size_t>(store.rank())] = all_of(net);
  });
  EXPECT_EQ(weights[0], weights[1]);
}

class SparseGradCheckpoint : public testing::TestWithParam<const char*> {
 protected:
  const std::string directory = testing::TempDir() + "paceline_sparse_grad_" + GetParam();
  void SetUp() override { std::filesystem::remove_all(directory); }
  void TearDown() override { std::filesystem::remove_all(directory); }

  // The weights of each worker after so many epochs, from the checkpoint in `folder` where there is one.
  std::vector<Values> train(const std::string& folder, int epochs) const {
    const std::string mode = GetParam();
    std::vector<Values> weights(2);
    const auto work = [&](const std::shared_ptr<KVStore>& kv) {
      const nn::Module net = network(true);
      MemoryIterator data(Words().data, Words().label, {.batch = 5, .shuffle = 1, .source = nn::shared_source(kv)});
      nn::Trainer trainer(net, optim::Adam{.lr = 0.05, .weight_decay = 0.01}, kv);
      trainer.resume_if_present(folder);
      while (trainer.epoch() < epochs) {
        for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::softmax_ce);
        trainer.checkpoint(folder);
      }
      weights[static_cast<std::size_t>(kv->rank())] = all_of(net);
    };
    if (mode == "local") {
      work(KVStore::create(mode));
      return {weights[0]};
    }
    ClusterInProcess cluster({.mode = mode, .workers = 2, .servers = 2, .engine = &default_engine()});
    cluster.run([&](int, KVStore& store) { work(std::shared_ptr<KVStore>(&store, [](KVStore*) {})); });
    return weights;
  }
};

TEST_P(SparseGradCheckpoint, GoesOnBitForBit) {
  const std::vector<Values> wanted = train(directory + "/through", 4);
  train(directory + "/stopped", 2);
  EXPECT_EQ(train(directory + "/stopped", 4), wanted);
  const nn::Module net = network(true);
  net.initialize({1, 3}, 9);
  nn::load_weights(net, directory + "/through");
  EXPECT_EQ(all_of(net), wanted[0]);
  net.save(directory + "/weights");
  const nn::Module dense = network(false);
  dense.initialize({1, 3}, 10);
  dense.load(directory + "/weights");
  EXPECT_EQ(all_of(dense), wanted[0]);
}

INSTANTIATE_TEST_SUITE_P(Modes, SparseGradCheckpoint, testing::Values("local", "dist_sync"));

// A step touches, and takes memory for, the rows of its batch, however many the table has.
TEST(SparseGrad, AStepCostsItsRows) {
  if (detail::checks_access()) GTEST_SKIP() << "arrays of the checking build do not come from the pool";
  constexpr std::int64_t kMany = 100000, kWidth = 16;
  const auto kv = KVStore::create("local");
  const nn::Module net =
      nn::Sequential(nn::Embedding(kMany, kWidth, {.sparse_grad = true}), nn::Flatten(), nn::Dense(3));
  nn::Trainer trainer(net, optim::SGD{.lr = 0.1, .momentum = 0.9}, kv, {.clip_norm = 1});
  const auto step = [&] { trainer.step(Words().batch(0, 6), nn::softmax_ce).wait(); };
  const auto rows_updated = [&] {
    std::int64_t count = 0;
    for (const Histogram& worker : kv->report().row_delays) count += worker.count();
    return count;
  };
  step();
  const std::int64_t before = rows_updated();
  detail::MemoryPool& pool = detail::memory_pool(Device());
  const std::int64_t held = pool.statistics().bytes_in_use;
  pool.restart_peak();
  step();
  const std::int64_t after = rows_updated();
  EXPECT_LE(after - before, 18);
  EXPECT_GE(after - before, 6);
  EXPECT_LT(pool.restart_peak() - held, kMany * kWidth * 4 / 50);
}

// What the network's array holds shows whether it was pulled again.
TEST(SparseGrad, TablesArePulledWhereRowsChanged) {
  ClusterInProcess cluster({.mode = "dist_async", .workers = 2, .servers = 2, .engine = &default_engine()});
  cluster.run([&](int worker, KVStore& store) {
    const std::shared_ptr<KVStore> kv(&store, [](KVStore*) {});
    const nn::Module net = network(true);
    MemoryIterator data(Words().data, Words().label, {.batch = 4, .source = nn::shared_source(kv)});
    nn::Trainer trainer(net, optim::SGD{.lr = 0.3}, kv);
    for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::softmax_ce);
    const NDArray table = net.parameters()[0]->value;
    const Values whole = table.to_vector<float>();
    store.barrier();
    const auto is_pulled_by = [&](const std::function<void()>& call) {
      table.fill(7);
      call();
      return table.to_vector<float>() != Values(whole.size(), 7);
    };
    EXPECT_FALSE(is_pulled_by([&] { trainer.synchronize(); }));
    EXPECT_FALSE(is_pulled_by([&] { trainer.evaluate(data); }));
    // The other worker's step is enough.
    if (worker == 1) trainer.step(Words().batch(0, 6), nn::softmax_ce);
    EXPECT_TRUE(is_pulled_by([&] { trainer.synchronize(); }));
    EXPECT_NE(table.to_vector<float>(), whole);
    const StoreState state = store.save();
    EXPECT_FALSE(is_pulled_by([&] { trainer.synchronize(); }));
    store.load(state);
    EXPECT_TRUE(is_pulled_by([&] { trainer.synchronize(); }));
  });
}

TEST(SparseGrad, IsNotCaptured) {
  nn::Trainer trainer(network(true), optim::SGD{}, KVStore::create("local"), {.captured = true});
  EXPECT_THAT([&] { trainer.step(Words().batch(0, 6), nn::softmax_ce); },
              ThrowsMessage<InvalidArgument>(HasSubstr("'0.weight' has a row-sparse gradient; set captured = false")));
}

}  // namespace
}  // namespace paceline::test

// One network trained plainly, in stages, in parts of its layers, and by several workers that do either.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/nn.h>
#include <paceline/ops.h>
#include <support/cluster_in_process.h>

#include <cmath>
#include <filesystem>
#include <random>

namespace paceline::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<Device> processors(int first, int count) {
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) devices.emplace_back(DeviceKind::kCpu, first + i);
  return devices;
}

NDArray numbers(const Shape& shape, std::uint64_t seed, DType dtype = DType::kFloat64) {
  const NDArray x(shape, dtype);
  kernels::fill_normal(x, 0, 1, seed);
  return x;
}

// Four dense layers; by `parts` devices where that is not 0: a pair that hands on parts, and two layers of whole inputs
// and results.
struct Network {
  std::vector<std::int64_t> widths;
  nn::Module operator()(int parts = 0, int first = 0) const {
    const auto devices = processors(first, parts);
    const auto column = [&](std::size_t i, bool gather) -> nn::Module {
      return parts ? nn::Module(nn::ColumnParallelDense(widths[i], devices, {}, gather)) : nn::Dense(widths[i]);
    };
    const auto row = [&](std::size_t i) -> nn::Module {
      return parts ? nn::Module(nn::RowParallelDense(widths[i], devices)) : nn::Dense(widths[i]);
    };
    return nn::Sequential(column(0, false), nn::Gelu(), row(1), nn::Tanh(), column(2, true), nn::Relu(), row(3));
  }
};

using Weights = std::vector<std::vector<double>>;

// Twenty steps over four batches, of which worker `rank` of `size` has a part.
Weights train(const nn::Module& net, std::shared_ptr<KVStore> store, const NDArray& x, const NDArray& y,
              int micro_batches = 1) {
  nn::Trainer trainer(net, optim::SGD{.lr = 0.1, .momentum = 0.9}, store, {.seed = 5, .micro_batches = micro_batches});
  const std::int64_t count = x.size(1), begin = count * store->rank() / store->size(),
                     end = count * (store->rank() + 1) / store->size();
  for (int step = 0; step < 20; ++step) {
    Batch batch;
    batch.data = x.at(step % 4).narrow(0, begin, end);
    batch.label = y.at(step % 4).narrow(0, begin, end);
    batch.examples = end - begin;
    trainer.step(batch, nn::softmax_ce);
  }
  trainer.synchronize();
  Weights weights;
  for (const auto& parameter : net.parameters()) weights.push_back(parameter->value.to_vector<double>());
  return weights;
}

Weights train_with_workers(const std::string& mode, int workers, const std::function<nn::Module(int rank)>& network,
                           const NDArray& x, const NDArray& y) {
  ClusterInProcess cluster(
      {.mode = mode, .workers = workers, .servers = mode == "ring" ? 0 : 2, .engine = &default_engine()});
  std::vector<Weights> all(static_cast<std::size_t>(workers));
  cluster.run([&](int, KVStore& store) {
    all[static_cast<std::size_t>(store.rank())] =
        train(network(store.rank()), std::shared_ptr<KVStore>(&store, [](KVStore*) {}), x, y);
  });
  for (const Weights& weights : all) EXPECT_EQ(weights, all[0]);
  return all[0];
}

void expect_equal(const Weights& actual, const Weights& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].size(), expected[i].size());
    double difference = 0, norm = 0;
    for (std::size_t k = 0; k < actual[i].size(); ++k) {
      difference += std::pow(actual[i][k] - expected[i][k], 2);
      norm += std::pow(expected[i][k], 2);
    }
    EXPECT_LE(std::sqrt(difference), 1e-10 * std::sqrt(norm)) << what << ", parameter " << i;
  }
}

// Sizes that are divisible by nothing in particular, but for the first.
struct Case {
  std::mt19937_64 random;
  Network network;
  std::int64_t batch, inputs;
  int micro_batches, parts;
  NDArray x, y;

  Case(std::uint64_t seed, bool round) : random(seed), network{{draw(4, 30), draw(4, 20), draw(4, 30), draw(3, 6)}} {
    batch = round ? 32 : draw(5, 40);
    inputs = draw(3, 12);
    micro_batches = round ? 4 : draw(1, 7);
    parts = round ? 2 : draw(2, 3);
    x = numbers({4, batch, inputs}, seed);
    std::vector<std::int32_t> labels;
    for (int i = 0; i < 4 * batch; ++i) labels.push_back(draw(0, static_cast<int>(network.widths[3]) - 1));
    y = NDArray::from(labels, {4, batch});
  }
  int draw(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); }
  std::string text() const {
    return str("batch ", batch, ", inputs ", inputs, ", widths ", Shape(std::span(network.widths)), ", micro-batches ",
               micro_batches, ", parts ", parts);
  }
  nn::Module stages(int devices) const {
    return nn::Pipeline(network(), processors(0, devices), {.micro_batches = micro_batches});
  }
  nn::Module stages_of_parts() const {
    return nn::Pipeline(network(parts), processors(1, 2), {.micro_batches = micro_batches});
  }
  Weights expected() const { return train(network(), KVStore::create("local"), x, y); }
};

// Two random cases.
void each_case(const std::function<void(const Case& c, const Weights& expected)>& test) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(str("seed ", seed));
  for (std::uint64_t i = 0; i < 2; ++i) {
    const Case c(seed + i, i == 0);
    SCOPED_TRACE(c.text());
    test(c, c.expected());
  }
}

TEST(ParallelTraining, StagesAndPartsHaveTheSameWeights) {
  each_case([](const Case& c, const Weights& expected) {
    const auto check = [&](const char* what, const nn::Module& net, const char* mode, int micro_batches = 1) {
      expect_equal(train(net, KVStore::create(mode), c.x, c.y, micro_batches), expected, what);
    };
    check("two stages", c.stages(2), "local");
    check("three stages", c.stages(3), "device");
    check("three stages, more micro-batches", c.stages(3), "local", 2);
    check("parts of layers", c.network(c.parts), "local");
    check("stages of parts of layers", c.stages_of_parts(), "local");
  });
}

TEST(ParallelTraining, SoHaveWorkersThatDoEither) {
  each_case([](const Case& c, const Weights& expected) {
    const auto check = [&](const char* what, const char* mode, const std::function<nn::Module(int rank)>& network) {
      expect_equal(train_with_workers(mode, 2, network, c.x, c.y), expected, what);
    };
    check("stages", "dist_sync", [&](int) { return c.stages(3); });
    check("parts of layers", "dist_sync", [&](int rank) { return c.network(c.parts, c.parts * rank); });
    check("a ring of stages of parts of layers", "ring", [&](int) { return c.stages_of_parts(); });
  });
}

// ---- layers in parts

struct Result {
  std::vector<std::vector<double>> values;  // output, gradients of input and weights
  std::vector<std::vector<double>> initial;
};

Result run(const nn::Module& net, const NDArray& x) {
  net.initialize(x.shape(), 7, {}, x.dtype());
  const NDArray of_x(x.shape(), x.dtype());
  Result result;
  Tape tape;
  tape.watch(x, of_x);
  for (const auto& parameter : net.parameters()) {
    result.initial.push_back(parameter->value.to_vector<double>());
    tape.watch(parameter->value, parameter->gradient);
  }
  const NDArray y = net(x, {.training = true});
  tape.backward(sum(y * y));
  result.values = {y.to_vector<double>(), of_x.to_vector<double>()};
  for (const auto& parameter : net.parameters()) result.values.push_back(parameter->gradient.to_vector<double>());
  return result;
}

TEST(TensorParallel, IsADense) {
  const std::vector<Device> three = processors(0, 3), mixed{Device("sim:0"), Device("cpu:2")};
  for (const std::vector<Device>& devices : {processors(4, 1), three, mixed})
    for (const bool flatten : {true, false})
      for (const auto& [bias, activation] :
           {std::pair(true, Activation::kNone), {false, Activation::kRelu}, {true, Activation::kGeluTanh}}) {
        const nn::DenseOptions options{.bias = bias, .flatten = flatten, .activation = activation};
        const NDArray x = numbers({5, 2, 4}, 1);
        const Result expected = run(nn::Sequential(nn::Dense(7, options)), x);
        for (const nn::Module& layer : {nn::Module(nn::ColumnParallelDense(7, devices, options)),
                                        nn::Module(nn::RowParallelDense(7, devices, options)),
                                        nn::Module(nn::Recompute(nn::RowParallelDense(7, devices, options)))}) {
          const Result result = run(nn::Sequential(layer), x);
          EXPECT_EQ(result.initial, expected.initial);
          expect_equal(result.values, expected.values, layer.describe());
          EXPECT_EQ(layer(x).device(), Device());
        }
      }
}

TEST(TensorParallel, HandsOnPartsOnTheirDevices) {
  const std::vector<Device> devices = processors(1, 3);
  const nn::Module column = nn::ColumnParallelDense(8, devices, {}, false);
  const nn::Parts parts = (*column.layer())(nn::Parts{numbers({2, 5}, 1)}, {});
  ASSERT_EQ(parts.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(parts[i].device(), devices[i]);
  EXPECT_EQ(parts[0].shape(), Shape({2, 2}));
  EXPECT_EQ(parts[2].shape(), Shape({2, 3}));
  EXPECT_THAT(column.describe(), HasSubstr("ColumnParallelDense over cpu:1 cpu:2 cpu:3 weight(8, 5) bias(8,)"));
}

// Files of one are files of the other; the weight is one whole, on the CPU.
TEST(TensorParallel, FilesAreThoseOfADense) {
  const std::string path = testing::TempDir() + "paceline_tensor_parallel.params";
  const Network network{{7, 6, 5, 4}};
  const nn::Module plain = network(), parts = network(3);
  const NDArray x = numbers({3, 4}, 1, DType::kFloat32);
  plain.initialize(x.shape(), 1);
  parts.initialize(x.shape(), 2);
  for (const auto& [from, to] : {std::pair(plain, parts), std::pair(parts, plain)}) {
    from.save(path);
    to.load(path);
    for (std::size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(to.parameters()[i]->name, from.parameters()[i]->name);
      EXPECT_EQ(to.parameters()[i]->value.to_vector<float>(), from.parameters()[i]->value.to_vector<float>());
    }
    from.parameters()[0]->value.fill(3);
    parts.initialize(x.shape(), 4);
  }
  std::filesystem::remove(path);
}

TEST(TensorParallel, SaysWhatIsWrong) {
  const auto refused = [](const std::function<void()>& what, const char* why) {
    EXPECT_THAT(what, ThrowsMessage<InvalidArgument>(HasSubstr(why)));
  };
  const auto two = processors(0, 2), three = processors(0, 3);
  const auto call = [](const nn::Module& net, const Shape& shape) { return [=] { net(numbers(shape, 1)); }; };
  const auto column = [&](std::int64_t outputs) { return nn::ColumnParallelDense(outputs, three, {}, false); };
  refused([&] { nn::ColumnParallelDense(2, three); }, "has 2 outputs for 3 devices");
  refused([&] { nn::ColumnParallelDense(2, {}); }, "has no devices");
  refused(call(nn::RowParallelDense(4, three), {5, 2}), "has 2 inputs for 3 devices");
  refused(call(column(4), {5, 2}), "leaves its result in 3 parts");
  refused(call(nn::Sequential(nn::Relu(), column(4)), {5, 2}), "[Sequential] leaves its result in 3 parts");
  refused(call(nn::Sequential(column(4), nn::Dense(2)), {5, 2}), "[Dense] got its input in 3 parts");
  refused(call(nn::Sequential(column(4), column(4)), {5, 2}), "got its input in 3 parts and needs it whole");
  refused(call(nn::Sequential(column(4), nn::Dropout()), {5, 2}), "[Dropout] got its input in 3 parts");
  refused(call(nn::Sequential(column(4), nn::RowParallelDense(2, two)), {5, 2}), "in 3 parts for 2 devices");
  nn::Trainer trainer(nn::RowParallelDense(2, two), optim::SGD{.lr = 0.1}, KVStore::create("local"),
                      {.captured = true});
  Batch batch;
  batch.data = numbers({5, 2}, 1);
  batch.label = NDArray::zeros({5}, DType::kInt32);
  batch.examples = 5;
  trainer.step(batch, nn::softmax_ce);
  refused([&] { trainer.step(batch, nn::softmax_ce); }, "more than one device");
}

}  // namespace
}  // namespace paceline::test

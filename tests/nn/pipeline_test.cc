// Stages on devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/memory_iterator.h>
#include <paceline/nn.h>
#include <paceline/ops.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>

namespace paceline {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const std::vector<Device> kTwo{Device("cpu:0"), Device("cpu:1")},
    kThree{Device("cpu:0"), Device("cpu:1"), Device("cpu:2")};

NDArray numbers(const Shape& shape, std::uint64_t seed) {
  const NDArray x(shape);
  kernels::fill_normal(x, 0, 1, seed);
  return x;
}

Batch batch_of(const NDArray& x) {
  Batch batch;
  batch.data = x;
  batch.label = NDArray::zeros({x.size(0)}, DType::kInt32);
  batch.examples = x.size(0);
  return batch;
}

nn::Module network() {
  return nn::Sequential(nn::Dense(12), nn::BatchNorm(), nn::Tanh(), nn::Recompute(nn::Dense(9)), nn::Dropout(0.3),
                        nn::Residual(nn::Dense(9)), nn::Relu(), nn::Dense(2));
}

struct Trained {
  nn::Module net;
  int micro_batches;
};

// The weights, statistics and losses of two epochs, the second one by another trainer, from a checkpoint.
std::vector<float> train(const Trained& first, const Trained& second) {
  const std::string directory = testing::TempDir() + "paceline_pipeline";
  std::filesystem::remove_all(directory);
  std::vector<float> all;
  for (const auto& [net, micro_batches] : {first, second}) {
    auto kv = KVStore::create("local");
    const NDArray x = numbers({50, 6}, 3);
    std::vector<std::int32_t> labels;
    for (int i = 0; i < 50; ++i) labels.push_back(x.to_vector<float>()[static_cast<std::size_t>(6 * i)] > 0);
    MemoryIterator data(x, NDArray::from(labels, {50}), {.batch = 22, .source = nn::shared_source(kv)});
    nn::Trainer trainer(net, optim::SGD{.lr = 0.1, .momentum = 0.9}, kv, {.seed = 4, .micro_batches = micro_batches});
    trainer.resume_if_present(directory);
    for (Batch& batch : trainer.epoch_of(data)) all.push_back(trainer.step(batch, nn::softmax_ce).item<float>());
    trainer.checkpoint(directory);
    for (const auto& parameter : net.parameters())
      for (const float value : parameter->value.to_vector<float>()) all.push_back(value);
  }
  std::filesystem::remove_all(directory);
  return all;
}

// The bits of the same parts on one device, in whatever number the last batch of 6 has of them; checkpoints of one go
// on with the other.
TEST(Pipeline, TrainsLikeMicroBatchesOnOneDevice) {
  const auto plain = [] { return Trained{network(), 4}; };
  const auto stages = [](const std::vector<Device>& on, const nn::PipelineOptions& options = {},
                         int micro_batches = 1) {
    return Trained{nn::Pipeline(network(), on, options), micro_batches};
  };
  const auto expected = train(plain(), plain());
  EXPECT_EQ(train(stages(kTwo), stages(kTwo)), expected);
  EXPECT_EQ(train(stages(kThree, {.micro_batches = 2, .begins = {2, 5}}, 2), plain()), expected);
  EXPECT_EQ(train(plain(), stages({Device("cpu:0"), Device("sim:0")})), expected);
  EXPECT_EQ(train(stages(kThree, {.balance = nn::PipelineOptions::Balance::kSeconds}), stages(kTwo)), expected);
}

// Under a Tape of one's own: outputs and gradients of all examples, also those of the input.
TEST(Pipeline, IsASequentialToATape) {
  const auto run = [](bool pipeline, std::int64_t examples) {
    nn::Module net = nn::Sequential(nn::Dense(7), nn::Tanh(), nn::Dense(5), nn::Gelu(), nn::Dense(3));
    if (pipeline) net = nn::Pipeline(net, kThree, {.micro_batches = 5});
    const NDArray x = numbers({examples, 4}, 1), of_x(x.shape());
    net.initialize(x.shape(), 7);
    Tape tape;
    tape.watch(x, of_x);
    for (const auto& parameter : net.parameters()) tape.watch(parameter->value, parameter->gradient);
    const NDArray y = net(x);
    tape.backward(mean(y * y));
    std::vector<float> all = y.to_vector<float>(), more = of_x.to_vector<float>();
    all.insert(all.end(), more.begin(), more.end());
    for (const auto& parameter : net.parameters()) {
      more = parameter->gradient.to_vector<float>();
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  };
  for (const std::int64_t examples : {1, 3, 5, 17}) {
    const auto expected = run(false, examples), result = run(true, examples);
    ASSERT_EQ(result.size(), expected.size());
    for (std::size_t i = 0; i < result.size(); ++i) EXPECT_NEAR(result[i], expected[i], 2e-6) << examples;
  }
}

// ---- what runs when

struct Visits {
  std::function<void()> forward, backward;
};

void visit(const NDArray& from, const NDArray& to, const std::function<void()>& visitor) {
  launch_host("visit", std::span(&from, 1), std::span(&to, 1),
              [visitor](const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out) {
                if (visitor) visitor();
                std::copy_n(in[0].as<float>(), in[0].size(), out[0].as<float>());
              });
}

// x, by a task that calls the visitors.
NDArray visited(const NDArray& x, const Visits& visits) {
  static const OpDef op = OpDef("visited")
                              .attributes<Visits>()
                              .input("x")
                              .forward([](const std::vector<NDArray>& inputs, const void* attributes) {
                                const NDArray y(inputs[0].shape(), inputs[0].dtype(), inputs[0].device());
                                visit(inputs[0], y, static_cast<const Visits*>(attributes)->forward);
                                return std::vector{y};
                              })
                              .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) {
                                const NDArray& of_y = gradients[0];
                                const NDArray of_x(of_y.shape(), of_y.dtype(), of_y.device());
                                visit(of_y, of_x, call.attributes<Visits>().backward);
                                return std::vector<Gradient>{of_x};
                              });
  return invoke(op, {x}, visits);
}

// Where two tasks wait for each other; they end only if they run at the same time.
class Meeting {
 public:
  void meet() {
    std::unique_lock lock(mutex_);
    if (++here_ == 2) both_.notify_all();
    EXPECT_TRUE(both_.wait_for(lock, std::chrono::seconds(20), [this] { return here_ == 2; }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable both_;
  int here_ = 0;
};

// The n-th call, which is the n-th part's, visits as `visits` says.
nn::Module stage(const std::map<int, Visits>& visits) {
  return nn::Lambda("Stage", [visits, part = std::make_shared<int>(0)](const NDArray& x) {
    const auto found = visits.find((*part)++);
    return visited(x, found == visits.end() ? Visits() : found->second);
  });
}

TEST(Pipeline, StagesRunAtTheSameTime) {
  Meeting meeting;
  const auto meet = [&] { meeting.meet(); };
  const nn::Module net = nn::Pipeline(nn::Sequential(stage({{1, {meet, {}}}}), stage({{0, {meet, {}}}})), kTwo,
                                      {.micro_batches = 2, .begins = {1}});
  const NDArray x = numbers({4, 3}, 1);
  EXPECT_EQ(net(x).to_vector<float>(), x.to_vector<float>());
}

// A Trainer sends a part backward through one stage while a later part is forward in another. (The first call makes the
// weights.)
TEST(Pipeline, ForwardOverlapsBackward) {
  Meeting forward, backward;
  const Visits first{[&] { forward.meet(); }, {}}, third{[&] { backward.meet(); }, {}};
  const Visits met{[&] { forward.meet(); }, [&] { backward.meet(); }};
  const nn::Module net =
      nn::Pipeline(nn::Sequential(nn::Dense(4), stage({{5, first}, {6, third}}), nn::Dense(2), stage({{4, met}})), kTwo,
                   {.micro_batches = 4, .begins = {2}});
  auto kv = KVStore::create("local");
  nn::Trainer trainer(net, optim::SGD{.lr = 0.1}, kv);
  trainer.step(batch_of(numbers({8, 3}, 1)), nn::softmax_ce);
  trainer.synchronize();
}

// However many parts there are, what a Trainer holds for them is that of one more than there are devices.
TEST(Pipeline, HoldsFewParts) {
  Meeting meeting;
  std::atomic<int> held = 0;
  int most = 0, calls = 0;
  const OpDef keep = OpDef("keep")
                         .input("x")
                         .forward([&](const std::vector<NDArray>& inputs, const void*) {
                           const std::shared_ptr<float[]> memory(new float[static_cast<std::size_t>(inputs[0].size())],
                                                                 [&held](float* numbers) {
                                                                   delete[] numbers;
                                                                   --held;
                                                                 });
                           most = std::max(most, ++held);
                           const NDArray y = NDArray::wrap(memory.get(), inputs[0].shape(), DType::kFloat32,
                                                           std::shared_ptr<void>(memory, memory.get()));
                           y.copy_from(inputs[0]);
                           if (++calls == 27) meeting.meet();
                           return std::vector{y};
                         })
                         .gradient([](const OpCall&, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
                           return {gradients[0]};
                         });
  // In the second step the first part waits for the third, so that they are there together. (In the first step the
  // parts come twice: that makes the weights.)
  const nn::Module stages = nn::Pipeline(
      nn::Sequential(nn::Dense(4), stage({{24, {[&] { meeting.meet(); }, {}}}}),
                     nn::Lambda("Keep", [&](const NDArray& x) { return invoke(keep, {x})[0]; }), nn::Dense(2)),
      kTwo, {.micro_batches = 12, .begins = {3}});
  auto kv = KVStore::create("local");
  nn::Trainer trainer(stages, optim::SGD{.lr = 0.1}, kv);
  for (int step = 0; step < 3; ++step) {
    most = 0;
    trainer.step(batch_of(numbers({24, 3}, 1)), nn::softmax_ce);
    default_engine().wait_all();
    if (step == 1) {
      EXPECT_EQ(most, 3);
    }
  }
  EXPECT_EQ(held, 0);
}

// ---- where stages begin

std::vector<Device> devices(const nn::Module& net) {
  std::vector<Device> result;
  for (const auto& [name, child] : net.layer()->children()) result.push_back(child->device().value());
  return result;
}

TEST(Pipeline, CutsByBytes) {
  const Device a = kThree[0], b = kThree[1], c = kThree[2];
  const auto places = [&](const nn::Module& layers, const std::vector<Device>& on) {
    const nn::Module net = nn::Pipeline(layers, on);
    net.initialize({2, 100}, 1);
    EXPECT_FALSE(layers.layer()->device()) << "inputs would take a way round";
    return devices(net);
  };
  // 10100, 10100, 10100, 10100; then 101000, 10010, 1100
  const auto dense = [] { return nn::Dense(100); };
  EXPECT_EQ(places(nn::Sequential(dense(), nn::Relu(), dense(), dense(), nn::Relu(), dense()), kTwo),
            (std::vector{a, a, a, b, b, b}));
  EXPECT_EQ(places(nn::Sequential(nn::Dense(1000), nn::Relu(), nn::Dense(10), nn::Relu(), dense()), kTwo),
            (std::vector{a, a, b, b, b}));
  EXPECT_EQ(places(nn::Sequential(nn::Dense(1000), nn::Relu(), nn::Dense(10), nn::Relu(), dense()), kThree),
            (std::vector{a, a, b, b, c}));
  EXPECT_EQ(places(nn::Sequential(nn::Relu(), nn::Tanh(), nn::Relu()), kThree), (std::vector{a, b, c}));
  const nn::Module given = nn::Pipeline(nn::Sequential(nn::Relu(), dense(), dense()), kTwo, {.begins = {1}});
  EXPECT_EQ(devices(given), (std::vector{a, b, b}));
  EXPECT_THAT(given.describe(), HasSubstr("Pipeline\n  0 Relu on cpu\n  1 Dense on cpu:1\n"));
}

TEST(Pipeline, SaysWhatIsWrong) {
  const nn::Module two = nn::Sequential(nn::Dense(2), nn::Dense(2));
  const auto refused = [&](const nn::Module& net, const std::vector<Device>& on, const nn::PipelineOptions& options,
                           const char* why) {
    EXPECT_THAT([&] { nn::Pipeline(net, on, options); }, ThrowsMessage<InvalidArgument>(HasSubstr(why)));
  };
  refused(two, kThree, {}, "cannot cut 2 modules into 3 stages");
  refused(two, {}, {}, "cannot cut 2 modules into 0 stages");
  refused(nn::Dense(2), kTwo, {}, "cuts a Sequential into stages, got a Dense");
  refused(two, kTwo, {.micro_batches = 0}, "micro_batches is 0");
  refused(two, kTwo, {.begins = {1, 1}}, "begins of 3 stages");
  refused(two, kTwo, {.begins = {2}}, "begins with module 2, expected rising numbers from 1 to 1");
  auto kv = KVStore::create("local");
  nn::Trainer trainer(nn::Pipeline(two, kTwo), optim::SGD{.lr = 0.1}, kv, {.captured = true});
  EXPECT_THAT(
      [&] {
        trainer.step(batch_of(numbers({4, 3}, 1)), nn::softmax_ce);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("captured steps run on one device")));
}

}  // namespace
}  // namespace paceline

// Codecs against what is published of them, and compression of a whole job.
#include <gtest/gtest.h>
#include <paceline/compression.h>
#include <paceline/error.h>
#include <paceline/updater.h>
#include <support/cluster_in_process.h>

#include <cmath>
#include <random>

#include "compression_setting.h"
#include "key_partition.h"
#include "store.pb.h"

namespace paceline::test {
namespace {

constexpr std::int64_t kMany = 100000;

std::shared_ptr<const Codec> codec_of(const std::string& text) { return make_codec(Spec::parse(text)); }

std::vector<float> gaussian(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// Cubes of Gaussian numbers.
std::vector<float> heavy_tailed(std::int64_t count, unsigned seed) {
  std::vector<float> values = gaussian(count, seed);
  for (float& value : values) value = value * value * value;
  return values;
}

struct Pushed {
  std::vector<std::byte> bytes;
  std::vector<float> decoded;
};

Pushed push(const Codec& codec, const std::vector<float>& values, std::vector<std::vector<float>>* state = nullptr,
            const EncodeContext& context = {}) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<std::vector<float>> own(codec.state_names().size(), std::vector<float>(values.size()));
  if (state && state->empty()) *state = own;
  std::vector<float*> pointers;
  for (auto& array : state ? *state : own) pointers.push_back(array.data());
  Pushed pushed{std::vector<std::byte>(codec.max_bytes(count)), std::vector<float>(values.size())};
  pushed.bytes.resize(codec.encode(values, context, pointers, pushed.bytes.data()));
  codec.check(pushed.bytes, count);
  codec.decode(pushed.bytes, count, 0, pushed.decoded);
  return pushed;
}

double square(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

// |decoded - x|^2 / |x|^2
double relative_error(const Codec& codec, const std::vector<float>& values) {
  std::vector<float> difference = push(codec, values).decoded;
  for (std::size_t i = 0; i < values.size(); ++i) difference[i] -= values[i];
  return square(difference) / square(values);
}

// T2.1: MXNet's bytes, threshold 4.
TEST(Compression, TwoBitWritesTheBytesOfMxnet) {
  const auto codec = codec_of("2bit:threshold=4");
  std::vector<std::vector<float>> state{{-3, 1, -1, 5, -2, 2, 3, -7, -2, -100}};
  const Pushed pushed = push(*codec, {-6, -2, 3, 1, 10, 5, -3, 2, -8, 0}, &state);
  EXPECT_EQ(pushed.bytes, (std::vector<std::byte>{std::byte{0x83}, std::byte{0xF2}, std::byte{0xA0}, std::byte{0}}));
  EXPECT_EQ(pushed.decoded, (std::vector<float>{-4, 0, 0, 4, 4, 4, 0, -4, -4, -4}));
  EXPECT_EQ(state[0], (std::vector<float>{-5, -1, 2, 2, 4, 3, 0, -1, -6, -96}));
}

TEST(Compression, TwoBitAnswersTheNightlySequenceOfMxnet) {
  for (std::int64_t count = 1; count <= 40; ++count) {
    const auto codec = codec_of("2bit:threshold=0.5");
    std::vector<std::vector<float>> state;
    const auto next = [&](float value) {
      return push(*codec, std::vector<float>(static_cast<std::size_t>(count), value), &state).decoded;
    };
    const std::vector<float> nothing(static_cast<std::size_t>(count), 0), threshold(static_cast<std::size_t>(count), 0.5f);
    EXPECT_EQ(next(0.4f), nothing);
    EXPECT_EQ(next(0.5f - 0.4f), threshold);
    EXPECT_EQ(next(0.2f), nothing);
    EXPECT_EQ(next(0.5f - 0.2f), threshold);
    EXPECT_EQ(codec->max_bytes(count), static_cast<std::size_t>((count + 15) / 16 * 4));
  }
}

// T2.2, exact: a threshold that is a power of two and gradients on a grid.
TEST(Compression, TwoBitConservesExactly) {
  const auto codec = codec_of("2bit:threshold=0.5");
  std::mt19937 random(1);
  std::vector<std::vector<float>> state;
  std::vector<float> given(100), delivered(100);
  for (int step = 0; step < 1000; ++step) {
    std::vector<float> values(100);
    for (float& value : values) value = (static_cast<float>(random() % 65) - 32) / 64;
    const std::vector<float> sent = push(*codec, values, &state).decoded;
    for (std::size_t i = 0; i < values.size(); ++i) {
      given[i] += values[i];
      delivered[i] += sent[i];
      ASSERT_EQ(delivered[i] + state[0][i], given[i]);
    }
  }
}

// T2.3
TEST(Compression, ErrorsAreThosePublished) {
  const std::vector<float> normal = gaussian(kMany, 1), heavy = heavy_tailed(kMany, 1);
  const auto expect = [&](const std::string& text, double on_normal, double on_heavy) {
    const auto codec = codec_of(text + (text.find(':') == std::string::npos ? ":" : ",") + "error_feedback=0");
    EXPECT_NEAR(relative_error(*codec, normal), on_normal, 0.02 * on_normal) << text;
    EXPECT_NEAR(relative_error(*codec, heavy), on_heavy, 0.02 * on_heavy) << text;
  };
  expect("top_k:ratio=0.001", 0.9875, 0.8586);
  expect("top_k:ratio=0.01", 0.9165, 0.5367);
  expect("top_k:ratio=0.1", 0.5614, 0.0893);
  EXPECT_NEAR(relative_error(*codec_of("bf16"), normal), 2.8e-6, 0.02 * 2.8e-6);
  expect("1bit", 0.3636, 0.829);
  expect("random_k:ratio=0.1", 0.9, 0.9);
  const auto scaled_sign = [](const std::vector<float>& values) {
    double sum = 0;
    for (const float value : values) sum += std::abs(static_cast<double>(value));
    return 1 - sum * sum / static_cast<double>(values.size()) / square(values);
  };
  expect("sign", scaled_sign(normal), scaled_sign(heavy));
  const std::vector<std::pair<int, double>> qsgd{{1, 17.0}, {3, 5.0}, {7, 1.58}, {127, 0.005}};
  for (const auto& [levels, variance] : qsgd) {
    const auto codec = codec_of(str("qsgd:levels=", levels));
    EXPECT_NEAR(relative_error(*codec, normal), variance, (levels == 127 ? 0.1 : 0.02) * variance) << levels;
  }
}

// T2.5: the mean of independent decodes comes as close as the mean of independent unbiased numbers.
TEST(Compression, QsgdIsUnbiased) {
  const std::vector<float> values = gaussian(kMany, 4);
  const auto codec = codec_of("qsgd:levels=7");
  constexpr int kDecodes = 20;
  std::vector<float> mean(values.size());
  double one = 0;
  for (int i = 0; i < kDecodes; ++i) {
    std::vector<float> decoded = push(*codec, values, nullptr, {.slice = 5, .push = i}).decoded;
    for (std::size_t j = 0; j < values.size(); ++j) {
      mean[j] += decoded[j] / kDecodes;
      decoded[j] -= values[j];
    }
    one += square(decoded) / kDecodes;
  }
  for (std::size_t j = 0; j < values.size(); ++j) mean[j] -= values[j];
  EXPECT_NEAR(square(mean), one / kDecodes, 0.03 * one / kDecodes);
  const auto decoded = [&](const EncodeContext& context) { return push(*codec, values, nullptr, context).decoded; };
  EXPECT_NE(decoded({.slice = 5, .worker = 0}), decoded({.slice = 5, .worker = 1}));
}

// T2.4, counterexample 1 (Karimireddy et al. 2019): g is 4 in a quarter of the steps, else -1, on [-1, 1].
TEST(Compression, SignsNeedErrorFeedbackWhenGradientsAreSkewed) {
  const auto run = [](const std::string& text) {
    const auto codec = codec_of(text);
    std::mt19937 random(6);
    std::vector<std::vector<float>> state;
    double x = 0, tail = 0;
    constexpr int kSteps = 20000;
    for (int step = 0; step < kSteps; ++step) {
      const float gradient = random() % 4 == 0 ? 4 : -1;
      x = std::clamp(x - 0.002 * static_cast<double>(push(*codec, {gradient}, &state).decoded[0]), -1.0, 1.0);
      if (step >= kSteps / 2) tail += x / (kSteps - kSteps / 2);
    }
    return tail;
  };
  EXPECT_LE(run("sign"), -0.98);
  EXPECT_GE(run("sign:majority=1"), 0.98);
}

// T2.4, counterexample 2: f = |x1 + x2| / 2 + |x1 - x2| from (1, 1).
TEST(Compression, SignsNeedErrorFeedbackWhereTheySpanTooLittle) {
  const auto run = [](const std::string& text) {
    const auto codec = codec_of(text);
    std::vector<std::vector<float>> state;
    double x = 1, y = 1;
    const auto sign = [](double value) { return value > 0 ? 1.0 : value < 0 ? -1.0 : 0.0; };
    for (int step = 1; step <= 20000; ++step) {
      const double a = 0.5 * sign(x + y), b = sign(x - y);
      // At a kink the one-sided gradient away from it: the subgradient 0 would end the run.
      const auto decoded =
          push(*codec, {static_cast<float>(a + (b == 0 ? 1 : b)), static_cast<float>(a - (b == 0 ? 1 : b))}, &state).decoded;
      const double rate = 0.1 / std::sqrt(step);
      x -= rate * static_cast<double>(decoded[0]);
      y -= rate * static_cast<double>(decoded[1]);
    }
    return 0.5 * std::abs(x + y) + std::abs(x - y);
  };
  EXPECT_LE(run("sign"), 0.002);
  EXPECT_GE(run("sign:majority=1"), 0.99);
}

// In a round every worker has a vote per element, whatever its gradient's size, and 0 counts as positive.
TEST(Compression, MajorityOfSignsIsApplied) {
  const auto updater = make_updater();
  updater->set_rules(Spec::parse("sgd:lr=1"), "none", {});
  const std::vector<float> zeros(4);
  const int slice = updater->add_slice({hash_key("w"), "w", DType::kFloat32, 0, 4}, zeros.data());
  const auto codec = codec_of("sign:majority=1");
  const std::vector<std::vector<float>> gradients = {{-100, 1, 1, 0}, {1, 1, -1, -3}, {2, -50, -1, 4}, {3, -1, -1, -9}};
  std::vector<Pushed> pushed;
  std::vector<Contribution> round;
  for (const auto& gradient : gradients) pushed.push_back(push(*codec, gradient));
  for (int i = 0; i < 4; ++i) {
    const auto& bytes = pushed[static_cast<std::size_t>(i)].bytes;
    round.push_back({i, 0, 1 + 10 * i, bytes.data(), codec.get(), bytes.size()});
  }
  updater->apply_round(slice, round);
  std::vector<float> weights(4);
  updater->read(slice, -1, weights.data());
  EXPECT_EQ(weights, (std::vector<float>{-1, -1, 1, -1}));
}

TEST(Compression, RandomPlacesAreTheSameAtEveryWorker) {
  const auto codec = codec_of("random_k:ratio=0.05,error_feedback=0");
  const std::vector<float> ones(5000, 1);
  const auto at = [&](std::int64_t push_number, int worker) {
    return push(*codec, ones, nullptr, {.slice = 9, .push = push_number, .worker = worker}).decoded;
  };
  EXPECT_EQ(at(0, 0), at(0, 1));
  EXPECT_NE(at(0, 0), at(1, 0));
  const std::vector<float> sent = at(2, 0);
  EXPECT_EQ(std::count(sent.begin(), sent.end(), 1.0f), 250);
}

// Momentum correction: until something is sent, DGC is momentum summed up; where it was sent, both are forgotten.
TEST(Compression, DgcKeepsMomentumAndMasksWhatItSent) {
  const auto codec = codec_of("dgc:ratio=0.25,warmup=0,momentum=0.5");
  std::vector<std::vector<float>> state;
  EXPECT_EQ(push(*codec, {1, 2, 4, 8}, &state).decoded, (std::vector<float>{0, 0, 0, 8}));
  EXPECT_EQ(state[1], (std::vector<float>{1, 2, 4, 0}));  // velocity
  // u = 0.5 u + g, v += u: 4 + (2 + 4) is sent.
  EXPECT_EQ(push(*codec, {1, 2, 4, 8}, &state).decoded, (std::vector<float>{0, 0, 10, 0}));
  EXPECT_EQ(state[0], (std::vector<float>{1 + 1.5f, 2 + 3, 0, 8}));
  EXPECT_EQ(state[1], (std::vector<float>{1.5f, 3, 0, 8}));
}

TEST(Compression, DgcWarmsUpAndClips) {
  const auto codec = codec_of("dgc:ratio=0.01,warmup=2,momentum=0");
  const std::vector<float> values = gaussian(1000, 7);
  std::vector<std::vector<float>> state;
  std::vector<std::int64_t> sent;
  for (int i = 0; i < 8; ++i) {
    const auto decoded = push(*codec, values, &state, {.push = i}).decoded;
    sent.push_back(1000 - std::count(decoded.begin(), decoded.end(), 0.0f));
  }
  EXPECT_EQ(sent, (std::vector<std::int64_t>{250, 250, 63, 63, 16, 16, 10, 10}));

  const auto clipping = codec_of("dgc:ratio=1,warmup=0,clip_norm=10");
  EXPECT_EQ(push(*clipping, {30, 40}, nullptr, {.workers = 4}).decoded, (std::vector<float>{3, 4}));
}

TEST(Compression, DgcTakesTheMomentumOfTheOptimizer) {
  ClusterInProcess cluster({.mode = "dist_async:compression=dgc,ratio=1,warmup=0,min_bytes=0", .workers = 1, .servers = 1});
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray weight = NDArray::zeros(Shape{2}, DType::kFloat32, {}, engine);
    store.init({{"w", weight}});
    EXPECT_THROW(store.set_optimizer(optim::Adam{}), InvalidArgument);
    EXPECT_THROW(store.set_optimizer(optim::SGD{.lr = 1, .momentum = 0.5, .clip_gradient = 1}), InvalidArgument);
    store.set_optimizer(optim::SGD{.lr = 1, .momentum = 0.5});
    for (int step = 0; step < 2; ++step)
      store.push_pull({{"w", NDArray::full(Shape{2}, 1, DType::kFloat32, {}, engine)}}, {{"w", weight}});
    // Everything is sent, and with it the momentum is forgotten: 1 + 1, not 1 + 1.5.
    EXPECT_EQ(weight.to_vector<float>(), (std::vector<float>{-2, -2}));
  });
  ClusterInProcess both({.mode = "dist_async:staleness=dana,compression=dgc", .workers = 1, .servers = 1});
  EXPECT_THROW(both.worker(0).set_optimizer(optim::SGD{.lr = 1, .momentum = 0.5}), InvalidArgument);
}

// T2.7: weights that travel as bf16 have a master at the server that takes small steps.
TEST(Compression, WeightsThatTravelAsBf16KeepTheirMaster) {
  ClusterInProcess cluster({.mode = "dist_async:staleness=none,compression=bf16,min_bytes=0", .workers = 1, .servers = 1});
  cluster.run([&](int worker, KVStore& store) {
    const NDArray weight = NDArray::full(Shape{4}, 1, DType::kFloat32, {}, cluster.engine(worker));
    const NDArray gradient = NDArray::full(Shape{4}, -1e-3, DType::kFloat32, {}, cluster.engine(worker));
    store.init({{"w", weight}});
    store.set_optimizer(optim::SGD{.lr = 1});
    for (int step = 0; step < 1000; ++step) store.push_pull({{"w", gradient}}, {{"w", weight}});
    weight.wait();
    EXPECT_NEAR(static_cast<double>(store.save().arrays.front().second.to_vector<float>()[0]), 1.99945, 0.0002);
    EXPECT_EQ(weight.to_vector<float>()[0], 2);  // to the nearest bf16
  });
}

// T2.8
TEST(Compression, OnlyAFixedThresholdLimitsTheRate) {
  const auto rate = [](const std::string& text, const std::vector<float>& gradient) {
    const auto codec = codec_of(text);
    std::vector<std::vector<float>> state;
    double sent = 0, given = 0;
    for (int step = 0; step < 100; ++step) {
      const std::vector<float> decoded = push(*codec, gradient, &state).decoded;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        sent += std::abs(static_cast<double>(decoded[i]));
        given += std::abs(static_cast<double>(gradient[i]));
      }
    }
    return sent / given;
  };
  const std::vector<float> ones(100, 1.0f);
  EXPECT_DOUBLE_EQ(rate("2bit:threshold=0.5", ones), 0.5);
  EXPECT_GE(rate("2bit", ones), 0.95);
  EXPECT_GE(rate("2bit", gaussian(1000, 2)), 0.95);
  EXPECT_GE(rate("2bit", heavy_tailed(1000, 2)), 0.9);
}

TEST(Compression, Fp16NeitherOverflowsNorVanishes) {
  const auto codec = codec_of("fp16");
  for (const float scale : {1e-38f, 1e-12f, 1e-7f, 1.0f, 1e5f, 1e30f}) {
    std::vector<float> values = gaussian(1000, 3);
    for (float& value : values) value *= scale;
    EXPECT_LT(relative_error(*codec, values), 1e-6) << scale;
  }
}

TEST(Compression, IsWorthIfTheLinkIsSlow) {
  const CompressionCost cost{4e6, 2e6, 0.5e-3, 0.5e-3};
  EXPECT_TRUE(worth_compressing(cost, 1.25e9));    // saves 1.6 ms
  EXPECT_FALSE(worth_compressing(cost, 5e9));      // saves 0.4 ms
  EXPECT_FALSE(worth_compressing({4e6, 5e6, 0, 0}, 1.25e9));
}

// A link so fast that no codec pays, and one so slow that every one does.
TEST(Compression, IsLeftOutWhereItWasMeasuredNotToPay) {
  for (const bool pays : {false, true}) {
    ClusterInProcess cluster({.mode = str("dist_async:staleness=none,compression=top_k,bandwidth=", pays ? "1" : "1e300"),
                              .workers = 1,
                              .servers = 1});
    cluster.run([&](int worker, KVStore& store) {
      const NDArray weight = NDArray::zeros(Shape{10000}, DType::kFloat32, {}, cluster.engine(worker));
      store.init({{"w", weight}});
      store.set_optimizer(optim::SGD{.lr = 1});
      store.push("w", NDArray::full(Shape{10000}, -1, DType::kFloat32, {}, cluster.engine(worker)));
      store.pull("w", weight);
      double sum = 0;
      for (const float value : weight.to_vector<float>()) sum += static_cast<double>(value);
      EXPECT_EQ(sum, pays ? 100 : 10000);
    });
  }
}

TEST(CompressionSetting, TakesItsOwnKeysOutOfAMode) {
  const auto parse = [](const std::string& text) { return ModeSetting::parse(Spec::parse(text)); };
  const ModeSetting setting = parse(
      "dist_async:bound=2,compression=top_k,ratio=0.1,staleness=delay_compensated,lambda=1,pull=bf16,except=*bias*+bn?,"
      "min_bytes=8");
  EXPECT_EQ(setting.compression.push.text(), "top_k:ratio=0.1");
  EXPECT_EQ(setting.compression.pull.text(), "bf16");
  EXPECT_EQ(setting.staleness_options.text(), "lambda=1");
  const auto covers = [&](const KeyInfo& key) { return setting.compression.covers(key); };
  EXPECT_TRUE(covers({"fc/weight", DType::kFloat32, Shape{2}, false}));
  EXPECT_FALSE(setting.compression.measured);
  const auto slow = parse("dist_sync:compression=bf16,bandwidth=1e8").compression;
  EXPECT_TRUE(slow.measured);
  EXPECT_EQ(slow.bandwidth, 1e8);
  EXPECT_TRUE(parse("dist_sync:compression=bf16,bandwidth=measured").compression.measured);
  EXPECT_FALSE(covers({"fc/weight", DType::kFloat64, Shape{2}, false}));
  EXPECT_FALSE(covers({"fc/weight", DType::kFloat32, Shape{2}, true}));
  EXPECT_FALSE(covers({"fc/weight", DType::kFloat32, Shape{1}, false}));
  EXPECT_FALSE(covers({"fc/bias", DType::kFloat32, Shape{2}, false}));
  EXPECT_FALSE(covers({"bn1", DType::kFloat32, Shape{2}, false}));
  EXPECT_TRUE(covers({"bn12", DType::kFloat32, Shape{2}, false}));

  EXPECT_EQ(parse("dist_sync:compression=fp16").compression.pull.text(), "fp16");
  EXPECT_EQ(parse("dist_sync:compression=fp16,pull=none").compression.pull.text(), "none");
  EXPECT_FALSE(parse("dist_sync").compression.active());
  EXPECT_THROW(parse("dist_sync:compression=zip"), InvalidArgument);
  EXPECT_THROW(parse("dist_sync:compression=2bit,treshold=1"), InvalidArgument);
  EXPECT_THROW(parse("dist_sync:compression=2bit,threshold=0"), InvalidArgument);
  EXPECT_THROW(parse("dist_sync:compression=top_k,ratio=2"), InvalidArgument);
  EXPECT_THROW(parse("dist_sync:compression=2bit,bandwidth=fast"), InvalidArgument);
  EXPECT_THROW(parse("dist_sync:compression=2bit,bandwidth=0"), InvalidArgument);
  EXPECT_THROW(parse("dist_sync:pull=2bit"), InvalidArgument);
  EXPECT_THROW(parse("dist_sync:except=*bias"), InvalidArgument);
  EXPECT_THROW(KVStore::create("local:compression=2bit"), InvalidArgument);
}

TEST(CompressionSetting, MustBeTheSameAtEveryWorker) {
  ClusterConfig base = job_config("inproc", 1, 2);
  SchedulerThread scheduler(base);
  Server server(member(base, Role::kServer, scheduler.port()), nullptr, 1);
  std::thread serving([&] { EXPECT_NO_THROW(server.run()); });
  std::vector<std::thread> threads;
  std::atomic<int> refused = 0;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      const Spec mode = Spec::parse(i == 0 ? "dist_sync:compression=2bit" : "dist_sync:compression=top_k");
      const auto engine = make_serial_engine();
      StoreOptions options;
      options.engine = engine.get();
      KVStore store(make_servers_exchange(member(base, Role::kWorker, scheduler.port(), i), mode, options), mode);
      try {
        store.init({{"w", NDArray::zeros(Shape{4}, DType::kFloat32, {}, *engine)}});
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find("top_k"), std::string::npos) << error.what();
        ++refused;
      }
      store.finish();
    });
  }
  for (std::thread& thread : threads) thread.join();
  serving.join();
  EXPECT_EQ(refused, 2);
}

// What no worker of ours sends is refused whole: nothing is applied, and the server goes on.
TEST(Compression, ServersRefuseWhatCannotBeDecoded) {
  ClusterConfig base = job_config("inproc", 1, 1);
  SchedulerThread scheduler(base);
  Server server(member(base, Role::kServer, 0), nullptr, 1);
  std::thread serving([&] { server.run(); });
  Node node(member(base, Role::kWorker, 0, 0), Node::Handlers{});
  node.join();
  const auto ask = [&](MessageKind kind, const google::protobuf::MessageLite& body, std::vector<Frame> payload = {}) {
    Message message;
    message.header.kind = kind;
    message.body = body.SerializeAsString();
    message.payload = std::move(payload);
    return node.ask_and_wait({Role::kServer, 0}, message);
  };
  const auto frame = [](const std::vector<std::byte>& bytes) {
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    text.resize((text.size() + 7) / 8 * 8);
    return Frame::of(text);
  };

  // Slice 0 is 64 float32, slice 1 is 4 float64, all zero.
  wire::InitValuesRequest values;
  values.set_mode("dist_async");
  write_key({"w", DType::kFloat32, Shape{64}, false}, values.add_keys());
  write_key({"d", DType::kFloat64, Shape{4}, false}, values.add_keys());
  values.mutable_partition()->add_slices()->set_end(64);
  values.mutable_partition()->add_slices()->set_end(4);
  values.mutable_partition()->mutable_slices(1)->set_key(1);
  ask(MessageKind::kInitValues, values, {Frame::of(std::string(256 + 32, '\0'))});
  wire::SetRules rules;
  rules.set_call(1);
  rules.set_optimizer("sgd:lr=1");
  rules.set_staleness("none");
  ask(MessageKind::kSetRules, rules);

  const auto codec = codec_of("top_k:ratio=0.05,error_feedback=0");
  std::vector<float> gradient(64);
  gradient[40] = -1;
  const Pushed sound = push(*codec, gradient);
  wire::PushPullRequest request;
  request.set_examples(1);
  request.add_codecs("top_k:ratio=0.05");
  request.add_codecs("bf16");
  wire::Part* part = request.add_parts();
  part->set_sequence(1);
  part->add_push(0);
  part->add_base(0);
  part->add_push_codec(1);
  part->add_push_bytes(sound.bytes.size());
  part->add_pull(0);
  part->add_pull_codec(2);
  const auto refusal = [&](const std::function<void(wire::PushPullRequest*)>& damage, const std::vector<std::byte>& bytes) {
    wire::PushPullRequest damaged = request;
    damage(&damaged);
    return error_of_call([&] { ask(MessageKind::kPushPull, damaged, {frame(bytes)}); });
  };
  const auto expect_refusal = [&](const char* because, const std::function<void(wire::PushPullRequest*)>& damage) {
    const std::string text = refusal(damage, sound.bytes);
    EXPECT_NE(text.find(because), std::string::npos) << because << ": " << text;
  };
  expect_refusal("zip", [](auto* m) { m->set_codecs(0, "zip"); });
  expect_refusal("none", [](auto* m) { m->set_codecs(0, "none"); });
  expect_refusal("codec 3 of 2", [](auto* m) { m->mutable_parts(0)->set_push_codec(0, 3); });
  expect_refusal("cannot come encoded", [](auto* m) { m->mutable_parts(0)->clear_push_bytes(); });
  expect_refusal("cannot come encoded", [](auto* m) { m->mutable_parts(0)->set_push(0, 1); });
  expect_refusal("fewer than", [](auto* m) { m->mutable_parts(0)->set_push_bytes(0, std::uint64_t{1} << 62); });
  expect_refusal("cannot be pulled encoded", [](auto* m) { m->mutable_parts(0)->set_pull_codec(0, 1); });
  expect_refusal("cannot be pulled encoded", [](auto* m) { m->mutable_parts(0)->set_pull(0, 1); });
  expect_refusal("cannot be pulled encoded", [](auto* m) { m->set_codecs(1, "bf16:error_feedback=1"); });
  expect_refusal("more than 64 codecs", [](auto* m) {
    for (int i = 0; i < 70; ++i) m->add_codecs(str("2bit:threshold=", i + 1));
  });
  std::vector<std::byte> outside = sound.bytes;
  outside[4] = std::byte{64};
  EXPECT_NE(refusal([](auto*) {}, outside).find("index"), std::string::npos);

  // The same push, in order, is applied: none of those before counted.
  wire::PushPullReply reply;
  const Message answer = ask(MessageKind::kPushPull, request, {frame(sound.bytes)});
  ASSERT_TRUE(reply.ParseFromString(answer.body));
  EXPECT_EQ(reply.versions(0), 1u);
  ASSERT_EQ(reply.pull_bytes_size(), 1);
  EXPECT_EQ(reply.pull_bytes(0), 128u);
  std::vector<float> weights(64), expected(64);
  expected[40] = 1;
  codec_of("bf16")->decode({answer.payload[0].data, 128}, 64, 0, weights);
  EXPECT_EQ(weights, expected);
  node.leave();
  serving.join();
}

// What error feedback, momentum and warm-up remember is in the checkpoint.
TEST(Compression, AResumedJobGoesOnAsIfItHadNotStopped) {
  constexpr std::int64_t kCount = 5000;
  for (const char* codec : {"2bit", "dgc,warmup=3,ratio=0.01", "qsgd", "random_k"}) {
    SCOPED_TRACE(codec);
    const std::string mode = str("dist_sync:compression=", codec);
    const auto steps = [&](int worker, KVStore& store, Engine& engine, const NDArray& weight, int from, int to) {
      for (int step = from; step < to; ++step) {
        const std::vector<float> values = gaussian(kCount, static_cast<unsigned>(10 * step + worker));
        store.push_pull({{"w", NDArray::from<float>(values, Shape{kCount}, {}, engine)}}, {{"w", weight}});
        store.step_end(1);
      }
      weight.wait();
    };
    std::vector<float> whole, resumed;
    StoreState saved;
    for (const bool resume : {false, true}) {
      ClusterInProcess cluster({.mode = mode, .serial = false});
      cluster.run([&](int worker, KVStore& store) {
        Engine& engine = cluster.engine(worker);
        const NDArray weight = NDArray::zeros(Shape{kCount}, DType::kFloat32, {}, engine);
        store.init({{"w", weight}});
        store.set_optimizer(optim::SGD{.lr = 0.1, .momentum = 0.9});
        if (resume) {
          store.load(worker == 0 ? saved : StoreState{});
        } else {
          steps(worker, store, engine, weight, 0, 5);
          const StoreState state = store.save();
          if (worker == 0) {
            for (const auto& [name, array] : state.arrays) {
              // Of another engine: this cluster's end with it.
              const NDArray copy = array.dtype() == DType::kFloat64
                                       ? NDArray::from<double>(array.to_vector<double>(), array.shape())
                                       : NDArray::from<float>(array.to_vector<float>(), array.shape());
              saved.arrays.emplace_back(name, copy);
            }
            saved.counters = state.counters;
          }
        }
        steps(worker, store, engine, weight, 5, 10);
        if (worker == 0) (resume ? resumed : whole) = weight.to_vector<float>();
      });
    }
    EXPECT_EQ(whole, resumed);
  }
}

// The policy compares with the weights that a worker has, not with the master's.
TEST(Compression, PoliciesRememberTheWeightsThatWorkersGot) {
  const auto updater = make_updater();
  updater->set_rules(Spec::parse("sgd:lr=1"), "delay_compensated", Options::parse("adaptive=0,lambda=1,clip=0"));
  const std::vector<float> master(3000, 1.001f);
  const int slice = updater->add_slice({hash_key("w"), "w", DType::kFloat32, 0, 3000}, master.data());
  const auto bf16 = codec_of("bf16");
  const Snapshot got = updater->pull(slice, 0, bf16), again = updater->pull(slice, 1, bf16);
  EXPECT_EQ(got.data, again.data);  // encoded once
  EXPECT_EQ(got.bytes, 6000u);
  EXPECT_EQ(updater->pulled_bytes(), 6000u);
  const std::vector<float> gradient(3000, 0.25f);
  updater->apply(slice, {1, 0, 1, gradient.data()});
  updater->apply(slice, {0, 0, 1, gradient.data()});
  std::vector<float> weights(3000);
  updater->read(slice, -1, weights.data());
  const float after_first = 1.001f - 0.25f, pulled = 1;  // 1.001 is 1 in bf16
  EXPECT_EQ(weights, std::vector<float>(3000, after_first - (0.25f + 0.25f * 0.25f * (after_first - pulled))));
}

}  // namespace
}  // namespace paceline::test

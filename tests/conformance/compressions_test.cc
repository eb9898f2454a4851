// What every codec of the catalogue promises, whatever its bytes are.
#include <gtest/gtest.h>
#include <paceline/compression.h>
#include <paceline/error.h>
#include <support/cluster_in_process.h>
#include <support/own_objects.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace paceline::test {
namespace {

// Every codec, one that is not in the library, and the options' other branches; each runs with and without error
// feedback.
std::vector<std::string> every_codec() {
  std::vector<std::string> texts;
  for (const auto& [name, make] : compression_catalog().entries())
    if (name != "none") texts.push_back(name);
  for (const auto& [name, codec] : own_objects().codecs) texts.push_back(name);
  texts.push_back("2bit:threshold=0.5");
  texts.push_back("top_k:ratio=1");
  texts.push_back("random_k:ratio=1");
  texts.push_back("sign:majority=1");
  texts.push_back("power_sgd:rank=1");
  texts.push_back("qsgd:levels=1");
  texts.push_back("qsgd:levels=127");
  texts.push_back("dgc:warmup=2,clip_norm=30,momentum=0.9,nesterov=1");
  return texts;
}

std::shared_ptr<const Codec> codec_of(const std::string& text) { return make_codec(Spec::parse(text), own_objects()); }

// With error feedback where it can be; empty where a codec keeps nothing back, or clips what it is given.
std::string conserving(const std::string& text) {
  Spec spec = Spec::parse(text);
  if (spec.options.has("clip_norm")) return "";
  if (spec.name == "dgc") return text;
  spec.options.set("error_feedback", "1");
  try {
    make_codec(spec, own_objects());
  } catch (const InvalidArgument&) {
    return "";
  }
  return spec.text();
}

// The worker's side of one slice.
class Sender {
 public:
  Sender(std::shared_ptr<const Codec> codec, std::int64_t count)
      : codec_(std::move(codec)),
        states_(codec_->state_names().size(), std::vector<float>(static_cast<std::size_t>(count))),
        bytes_(codec_->max_bytes(count)) {}

  EncodedBytes send(const std::vector<float>& values, int worker = 0) {
    std::vector<float*> pointers;
    for (auto& state : states_) pointers.push_back(state.data());
    const EncodeContext context{.slice = 11, .push = push_++, .worker = worker, .workers = 2, .columns = 25};
    const std::size_t bytes = codec_->encode(values, context, pointers, bytes_.data());
    EXPECT_LE(bytes, bytes_.size());
    return {bytes_.data(), bytes};
  }
  std::vector<float>& state(std::size_t i) { return states_[i]; }

 private:
  const std::shared_ptr<const Codec> codec_;
  std::vector<std::vector<float>> states_;
  std::vector<std::byte> bytes_;
  std::int64_t push_ = 0;
};

std::vector<float> decode(const Codec& codec, EncodedBytes bytes, std::int64_t count) {
  codec.check(bytes, count);
  std::vector<float> values(static_cast<std::size_t>(count), 7);
  codec.decode(bytes, count, 0, values);
  return values;
}

std::vector<float> random_values(std::int64_t count, std::mt19937& random, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

TEST(Compressions, RefuseWhatTheyDoNotKnow) {
  EXPECT_THROW(make_codec(Spec::parse("zip")), InvalidArgument);
  for (const std::string& text : every_codec()) {
    Spec spec = Spec::parse(text);
    spec.options.set("nonsense", "1");
    EXPECT_THROW(make_codec(spec, own_objects()), InvalidArgument) << text;
  }
}

TEST(Compressions, DecodeAnyRangeAlike) {
  std::mt19937 random(3);
  for (const std::string& text : every_codec()) {
    SCOPED_TRACE(text);
    const auto codec = codec_of(text);
    for (const std::int64_t count : {1, 2, 3, 15, 16, 17, 511, 512, 513, 1023, 1024, 1025, 5000}) {
      Sender sender(codec, count);
      const EncodedBytes bytes = sender.send(random_values(count, random));
      const std::vector<float> whole = decode(*codec, bytes, count);
      for (int i = 0; i < 20; ++i) {
        const auto begin = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count));
        const auto length = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count - begin)) + 1;
        std::vector<float> part(static_cast<std::size_t>(length), 7);
        codec->decode(bytes, count, begin, part);
        EXPECT_EQ(part, std::vector<float>(whole.begin() + begin, whole.begin() + begin + length));
      }
    }
  }
}

TEST(Compressions, EncodeTheSameBytesFromTheSameInput) {
  for (const std::string& text : every_codec()) {
    SCOPED_TRACE(text);
    std::mt19937 random(4);
    Sender first(codec_of(text), 3000), second(codec_of(text), 3000);
    for (int push = 0; push < 5; ++push) {
      const std::vector<float> values = random_values(3000, random);
      const EncodedBytes a = first.send(values), b = second.send(values);
      EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
    }
  }
}

// T2.2: what was delivered and what is kept add up to what was given, for as long as anybody pushes.
TEST(Compressions, LoseNothingWithErrorFeedback) {
  constexpr std::int64_t kCount = 1100;
  for (const std::string& text : every_codec()) {
    if (conserving(text).empty()) continue;
    SCOPED_TRACE(text);
    std::mt19937 random(5);
    const auto codec = codec_of(conserving(text));
    Sender sender(codec, kCount);
    std::vector<double> given(kCount), delivered(kCount);
    for (int push = 0; push < 1000; ++push) {
      const std::vector<float> values = random_values(kCount, random);
      const std::vector<float> sent = decode(*codec, sender.send(values), kCount);
      for (std::size_t i = 0; i < kCount; ++i) {
        given[i] += static_cast<double>(values[i]);
        delivered[i] += static_cast<double>(sent[i]);
      }
    }
    double error = 0, whole = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      error += std::pow(delivered[i] + static_cast<double>(sender.state(0)[i]) - given[i], 2);
      whole += given[i] * given[i];
    }
    EXPECT_LT(std::sqrt(error / whole), 1e-4);
  }
}

TEST(Compressions, SurviveEveryFloat) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> hard = {
      std::vector<float>(100, 0),
      std::vector<float>(100, -0.0f),
      std::vector<float>(100, nan),
      std::vector<float>(100, infinity),
      std::vector<float>(100, std::numeric_limits<float>::denorm_min()),
      std::vector<float>(100, std::numeric_limits<float>::max()),
      {nan, infinity, -infinity, 0, 1, -1, 1e-45f, 3e38f, -3e38f},
  };
  for (const std::string& text : every_codec()) {
    SCOPED_TRACE(text);
    for (const std::string& variant :
         {text, text + (text.find(':') == std::string::npos ? ":" : ",") + "error_feedback=0", conserving(text)}) {
      if (variant.empty()) continue;
      const auto codec = codec_of(variant);
      for (const auto& values : hard) {
        const auto count = static_cast<std::int64_t>(values.size());
        Sender sender(codec, count);
        for (int push = 0; push < 3; ++push) decode(*codec, sender.send(values), count);
        if (variant != conserving(text) || codec->takes_momentum()) continue;
        // What was no number is gone when numbers come again.
        const std::vector<float> ones(values.size(), 1);
        for (int push = 0; push < 2; ++push) decode(*codec, sender.send(ones), count);
        for (const float kept : sender.state(0)) EXPECT_TRUE(std::isfinite(kept));
      }
    }
  }
}

// Damaged bytes are refused, or decode to some numbers inside the output: never more (run it under the address
// sanitizer, too).
TEST(Compressions, RefuseOrDecodeDamagedBytes) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr std::int64_t kCount = 1500;
  for (const std::string& text : every_codec()) {
    SCOPED_TRACE(text);
    const auto codec = codec_of(text);
    Sender sender(codec, kCount);
    const EncodedBytes sound = sender.send(random_values(kCount, random));
    int refused = 0;
    for (int trial = 0; trial < 600; ++trial) {
      std::vector<std::byte> bytes(sound.begin(), sound.end());
      if (trial % 3 == 0) bytes.resize(random() % (bytes.size() + 9));
      const auto flips = trial % 3 == 0 ? 0 : 1 + random() % 8;
      for (std::size_t i = 0; i < flips; ++i) {
        const std::size_t place =
            trial % 3 == 1 ? random() % std::min<std::size_t>(16, bytes.size()) : random() % bytes.size();
        bytes[place] = static_cast<std::byte>(random());
      }
      // In memory of exactly that size, so that a checker sees every byte too far.
      const std::vector<std::byte> exact(bytes);
      try {
        codec->check(exact, kCount);
      } catch (const Corrupt&) {
        ++refused;
        continue;
      }
      std::vector<float> out(kCount);
      codec->decode(exact, kCount, 0, out);
    }
    EXPECT_GE(refused, 150);
  }
}

Engine& engine_of(ClusterInProcess& cluster, int worker) { return cluster.engine(worker); }

// Through real servers: every worker's gradients arrive, up to what its codec still keeps.
TEST(Compressions, DeliverThroughServers) {
  constexpr std::int64_t kCount = 60000;
  constexpr int kSteps = 12;
  for (const std::string& text : every_codec()) {
    if (conserving(text).empty()) continue;
    SCOPED_TRACE(text);
    const Spec spec = Spec::parse(conserving(text));
    std::string mode = "dist_async:staleness=none,pull=none,compression=" + spec.name;
    if (!spec.options.empty()) mode += "," + spec.options.text();
    ClusterInProcess cluster({.mode = mode, .serial = false, .own = own_objects()});
    std::vector<std::vector<double>> given(2, std::vector<double>(kCount));
    std::vector<std::vector<float>> kept(2), final_weights(2);
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = engine_of(cluster, worker);
      std::mt19937 random(static_cast<unsigned>(worker) + 1);
      const NDArray weight = NDArray::zeros(Shape{kCount / 100, 100}, DType::kFloat32, {}, engine);
      const NDArray small = NDArray::zeros(Shape{10}, DType::kFloat32, {}, engine);
      store.init({{"w", weight}, {"small", small}});
      store.set_optimizer(optim::SGD{.lr = 1});
      for (int step = 0; step < kSteps; ++step) {
        const std::vector<float> values = random_values(kCount, random);
        for (std::size_t i = 0; i < kCount; ++i)
          given[static_cast<std::size_t>(worker)][i] += static_cast<double>(values[i]);
        store.push_pull({{"w", NDArray::from<float>(values, Shape{kCount / 100, 100}, {}, engine)},
                         {"small", NDArray::full(Shape{10}, 1, DType::kFloat32, {}, engine)}},
                        {{"w", weight}, {"small", small}});
        store.step_end();
      }
      weight.wait();
      store.barrier();
      store.pull("w", weight);
      store.pull("small", small);
      final_weights[static_cast<std::size_t>(worker)] = weight.to_vector<float>();
      EXPECT_EQ(small.to_vector<float>(), std::vector<float>(10, -2 * kSteps));
      const StoreState state = store.save();
      if (worker != 0) return;
      for (const auto& [name, array] : state.arrays) {
        if (name == "worker0:w/residual") kept[0] = array.to_vector<float>();
        if (name == "worker1:w/residual") kept[1] = array.to_vector<float>();
      }
    });
    EXPECT_EQ(final_weights[0], final_weights[1]);
    ASSERT_EQ(kept[0].size(), kCount);
    ASSERT_EQ(kept[1].size(), kCount);
    double worst = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      const double residual = static_cast<double>(kept[0][i]) + static_cast<double>(kept[1][i]);
      worst =
          std::max(worst, std::abs(static_cast<double>(final_weights[0][i]) + given[0][i] + given[1][i] - residual));
    }
    EXPECT_LT(worst, 1e-3);
  }
}

// A synchronous job is the same bits every time it runs, whatever order messages arrive in.
TEST(Compressions, RepeatASynchronousJobBitForBit) {
  constexpr std::int64_t kCount = 20000;
  for (const std::string& text : every_codec()) {
    SCOPED_TRACE(text);
    const Spec spec = Spec::parse(text);
    std::string mode = "dist_sync:compression=" + spec.name;
    if (!spec.options.empty()) mode += "," + spec.options.text();
    std::vector<float> first;
    for (int run = 0; run < 2; ++run) {
      ClusterInProcess cluster({.mode = mode, .workers = 3, .serial = false, .own = own_objects()});
      std::vector<std::vector<float>> weights(3);
      cluster.run([&](int worker, KVStore& store) {
        Engine& engine = engine_of(cluster, worker);
        std::mt19937 random(static_cast<unsigned>(worker) + 1);
        const NDArray weight = NDArray::zeros(Shape{kCount / 100, 100}, DType::kFloat32, {}, engine);
        store.init({{"w", weight}});
        store.set_optimizer(optim::SGD{.lr = 0.1, .momentum = 0.9});
        for (int step = 0; step < 6; ++step) {
          store.push_pull(
              {{"w", NDArray::from<float>(random_values(kCount, random), Shape{kCount / 100, 100}, {}, engine)}},
              {{"w", weight}}, 1 + worker);
          store.step_end();
        }
        weights[static_cast<std::size_t>(worker)] = weight.to_vector<float>();
      });
      EXPECT_EQ(weights[0], weights[1]);
      EXPECT_EQ(weights[0], weights[2]);
      EXPECT_NE(weights[0], std::vector<float>(kCount, 0));
      if (run == 0) first = weights[0];
      EXPECT_EQ(weights[0], first);
    }
  }
}

}  // namespace
}  // namespace paceline::test

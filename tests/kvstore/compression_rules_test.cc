// Codecs by the names of keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/error.h>
#include <support/cluster_in_process.h>

#include <map>
#include <set>

#include "servers/servers.h"

namespace paceline::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

TEST(CompressionSetting, RulesGoByTheFirstPatternThatFits) {
  const auto parse = [](const std::string& text) {
    return ModeSetting::parse(Spec::parse("dist_async:" + text)).compression;
  };
  const auto setting = parse("rules=emb*:top_k:ratio=0.1:error_feedback=0+*/bias:none+*:bf16,min_bytes=8,except=fc*");
  const auto push = [&](const char* key) { return setting.codecs(setting.rule_of(key)).push.text(); };
  const auto covers = [&](const char* key) { return setting.covers({key, DType::kFloat32, Shape{2}, false}); };
  EXPECT_EQ(push("emb/bias"), "top_k:error_feedback=0,ratio=0.1");
  EXPECT_EQ(push("fc/bias"), "none");
  EXPECT_EQ(push("fc/weight"), "bf16");
  EXPECT_EQ(setting.codecs(setting.rule_of("fc/weight")).pull.text(), "bf16");
  EXPECT_EQ(setting.codecs(setting.rule_of("emb")).pull.text(), "none");
  EXPECT_TRUE(covers("emb/bias"));
  EXPECT_FALSE(covers("fc/bias"));
  EXPECT_TRUE(covers("fc/weight"));  // `except` is for keys that no rule names
  EXPECT_FALSE(parse("rules=a:none").active());
  EXPECT_EQ(parse("rules=a:top_k,pull=bf16").rules.at(0).pull.text(), "bf16");
  EXPECT_NE(parse("rules=a:top_k").text(), parse("rules=a:bf16").text());
  for (const char* wrong :
       {"a", "a:zip", "a:top_k:ratio=2", "a:top_k:treshold=1", "a:dgc", "a:sign:majority=1", "a:power_sgd:rounds=2"})
    EXPECT_THROW(parse(str("rules=", wrong)), InvalidArgument) << wrong;
  EXPECT_THROW(KVStore::check("ring:rules=a:bf16", false), InvalidArgument);
  // Workers whose texts differ are refused. Each may have a link of its own bandwidth.
  std::set<std::string> texts;
  for (const char* const more : {"", ",min_bytes=0", ",except=*bias*", ",only=*bias*", ",pull=none", ",rules=a:bf16"})
    texts.insert(parse(std::string("compression=bf16") + more).text());
  EXPECT_EQ(texts.size(), 6u);
  EXPECT_EQ(parse("compression=bf16,bandwidth=measured").text(), parse("compression=bf16").text());
  EXPECT_EQ(parse("compression=bf16,except=a+b").text(), parse("compression=bf16,except=b+a").text());
}

TEST(CompressionSetting, SaysWhatTravelsAsWhat) {
  const auto described = [](const std::string& text) {
    return ModeSetting::parse(Spec::parse("dist_async:" + text)).compression.describe();
  };
  EXPECT_EQ(described("compression=bf16,rules=emb*:top_k:ratio=0.1,min_bytes=8,except=*bias+norm*"),
            "compression: gradients as bf16, weights as bf16 but of keys *bias+norm*; of keys emb* gradients as "
            "top_k:ratio=0.1, weights as none; raw are keys below 8 bytes and all that is not float32");
}

TEST(Compression, TheReportSaysWhatItSaves) {
  for (const char* mode :
       {"dist_async:compression=bf16,min_bytes=0,except=raw", "ring:compression=bf16,min_bytes=0,except=raw"}) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster(
        {.mode = mode, .workers = 1, .servers = *mode == 'r' ? 0 : 1, .engine = &default_engine()});
    KVStore& store = cluster.worker(0);
    const NDArray weight = NDArray::zeros({1000}), raw = NDArray::zeros({10});
    store.init({{"w", weight}, {"raw", raw}});
    store.set_optimizer(optim::SGD{.lr = 1});
    EXPECT_EQ(store.report().raw_bytes, 0);
    for (int step = 0; step < 3; ++step) {
      store.push_pull({{"w", NDArray::full({1000}, 1)}, {"raw", NDArray::full({10}, 1)}},
                      {{"w", weight}, {"raw", raw}});
      store.step_end();
      weight.wait();
      if (step == 1) store.set_optimizer(optim::SGD{.lr = 1});
    }
    EXPECT_EQ(store.report().raw_bytes, 12000);
    EXPECT_EQ(store.report().encoded_bytes, 6000);
  }
}

TEST(CompressionSetting, AnOptionWithoutItsCodecNamesThoseThatTakeIt) {
  for (const char* mode : {"dist_async:ratio=0.02", "dist_sync:ratio=2", "ring:ratio=0.02",
                           "dist_local:steps=2,ratio=1", "dist_async:compression=bf16,ratio=0.02"})
    EXPECT_THAT([&] { KVStore::check(mode); },
                ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr("'ratio'"), HasSubstr("top_k"), HasSubstr("dgc"), Not(HasSubstr("fp16")))))
        << mode;
  EXPECT_THAT([] { KVStore::check("dist_async:tatio=0.02"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("unknown option 'tatio'")));
}

// Each key as if its codec were the only one: the sum of what was pushed is what arrived and what is kept, the momentum
// stays the optimizer's, and a codec of two rounds has them for its own keys alone.
TEST(Compression, RulesGiveEachKeyItsCodec) {
  for (const char* mode :
       {"dist_async:staleness=none,compression=bf16,pull=none", "dist_sync:compression=power_sgd,rank=1",
        "dist_async:staleness=none,compression=dgc,ratio=0.1,warmup=0"}) {
    SCOPED_TRACE(mode);
    const bool momentum = std::string(mode).find("dgc") != std::string::npos;
    ClusterInProcess cluster({.mode = str(mode, ",min_bytes=0,rules=top*:top_k:ratio=0.1+raw*:none"), .workers = 1});
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const auto zeros = [&] { return NDArray::zeros(Shape{10, 10}, DType::kFloat32, {}, engine); };
      std::map<std::string, NDArray> weights{{"top", zeros()}, {"raw", zeros()}, {"rest", zeros()}};
      std::vector<InitValue> values;
      for (const auto& [key, weight] : weights) values.push_back({key, weight});
      store.init(values);
      store.set_optimizer(optim::SGD{.lr = 1, .momentum = momentum ? 0.5 : 0});
      double sum = 0, velocity = 0;
      for (int step = 0; step < 5; ++step) {
        std::vector<PushItem> pushes;
        std::vector<PullItem> pulls;
        for (const auto& [key, weight] : weights) {
          pushes.push_back({key, NDArray::full(Shape{10, 10}, 1 + step, DType::kFloat32, {}, engine)});
          pulls.push_back({key, weight});
        }
        store.push_pull(pushes, pulls);
        store.step_end();
        velocity = (momentum ? 0.5 : 0) * velocity + 1 + step;
        sum += velocity;
      }
      std::map<std::string, NDArray> state;
      for (const auto& [name, array] : store.save().arrays) state[name] = array;
      ASSERT_TRUE(state.count("worker0:top/residual"));
      EXPECT_FALSE(state.count("worker0:raw/residual"));
      EXPECT_EQ(state.count("worker0:rest/residual") > 0, std::string(mode).find("bf16") == std::string::npos);
      EXPECT_EQ(weights.at("raw").to_vector<float>(), std::vector<float>(100, static_cast<float>(-sum)));
      const auto top = weights.at("top").to_vector<float>(), kept = state["worker0:top/residual"].to_vector<float>();
      int arrived = 0;
      for (std::size_t i = 0; i < 100; ++i) {
        EXPECT_NEAR(static_cast<double>(kept[i] - top[i]), sum, 1e-4);
        arrived += top[i] != 0;
      }
      EXPECT_EQ(arrived, 50);  // a tenth in each of five steps
      if (momentum) return;    // dgc has delivered parts
      EXPECT_NEAR(static_cast<double>(weights.at("rest").to_vector<float>()[0]), -sum, 1e-4);
    });
  }
}

}  // namespace
}  // namespace paceline::test

// Modes, policies and codecs of the user's own: in jobs, and refused where only one side has them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvstore/row_support.h>
#include <support/cluster_in_process.h>
#include <support/own_objects.h>

#include "checkpoint/saved_state.h"

namespace paceline::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kCount = 5000;

// Two workers train a key and a table with gradients of their own; the weights and the rows at the end.
std::vector<float> trained(const std::string& mode, int steps = 8) {
  ClusterInProcess cluster({.mode = mode, .serial = false, .own = own_objects()});
  std::vector<float> result;
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    std::mt19937 random(static_cast<unsigned>(worker) + 1);
    const TableSpec table = table_of(50, 4);
    const NDArray weight = NDArray::zeros(Shape{kCount}, DType::kFloat32, {}, engine);
    store.init({{"w", weight}});
    store.init_table(table);
    store.set_optimizer(optim::SGD{.lr = 0.1, .momentum = 0.9});
    for (int step = 0; step < steps; ++step) {
      store.push_pull({{"w", NDArray::from<float>(random_values(random, kCount), Shape{kCount}, {}, engine)}},
                      {{"w", weight}}, 1 + worker);
      const Ids ids = random_ids(random, table.rows, 9);
      const NDArray rows = NDArray::zeros(Shape{9, 4}, DType::kFloat32, {}, engine);
      store.push_pull_rows(
          {{table.name, ids_of(ids, engine), rows_of(random_values(random, ids.size() * 4), 4, engine)}},
          {{table.name, ids_of(ids, engine), rows}}, 1 + worker);
      store.step_end();
      rows.wait();
    }
    store.barrier();
    EXPECT_LE(store.report().furthest_ahead, 1);
    if (worker != 0) return;
    result = weight.to_vector<float>();
    for (const float value : pull(store, table, all_rows(table), engine)) result.push_back(value);
  });
  return result;
}

TEST(OwnMode, InRoundsIsDistSyncBitForBit) {
  const std::vector<float> expected = trained("dist_sync");
  EXPECT_EQ(trained("together"), expected);
  EXPECT_EQ(trained("together:compression=power_sgd,min_bytes=0"),
            trained("dist_sync:compression=power_sgd,min_bytes=0"));
  EXPECT_NE(trained("together:compression=three_bytes"), expected);
}

// The worker with nothing to do is a step behind at most: the test inside trained() fails otherwise.
TEST(OwnMode, HoldsPullsBackByTheClocks) {
  EXPECT_EQ(trained("near", 40).size(), std::size_t{kCount + 200});
  EXPECT_EQ(trained("near:staleness=traced+gap_aware", 40).size(), std::size_t{kCount + 200});
}

TEST(OwnMode, InRoundsWithBackupsHoldsNoTables) {
  ClusterInProcess cluster({.mode = "all_but_one", .workers = 1, .own = own_objects()});
  EXPECT_FALSE(cluster.worker(0).holds_tables());
  EXPECT_THAT(error_of_call([&] { cluster.worker(0).init_table(table_of(5, 2)); }), HasSubstr("no row-sparse tables"));
}

// What two late pushes come to, at a key and at a row of a table.
TEST(OwnPolicy, CorrectsKeysAndRowsWithItsState) {
  ClusterInProcess cluster({.mode = "dist_async:staleness=traced", .servers = 1, .own = own_objects()});
  const TableSpec table = table_of(3, 2, "zeros");
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray weight = NDArray::zeros(Shape{2}, DType::kFloat32, {}, engine);
    store.init({{"w", weight}});
    store.init_table(table);
    store.set_optimizer(optim::SGD{.lr = 1});
    pull(store, table, {1}, engine);
    store.barrier();
    const NDArray gradient = NDArray::full(Shape{2}, -1, DType::kFloat32, {}, engine);
    if (worker == 1) {
      for (int push = 0; push < 3; ++push) {
        store.push("w", gradient);
        store.push_rows({{table.name, ids_of({1}, engine), gradient.view({1, 2})}});
      }
    }
    store.barrier();
    store.pull("w", weight);
    // Delays 0, 1 and 2: 1, 1/2, 1/2 + 1/16.
    EXPECT_EQ(weight.to_vector<float>(), std::vector<float>(2, 2.0625F));
    EXPECT_EQ(pull(store, table, {1}, engine), std::vector<float>(2, 2.0625F));
  });
}

TEST(OwnCodec, TravelsInEveryModeThatTakesCodecs) {
  for (const char* const mode : {"dist_sync", "dist_async", "dist_local", "near", "all_but_one", "ring"}) {
    SCOPED_TRACE(mode);
    for (const char* const codec : {"compression=three_bytes", "rules=w:three_bytes:error_feedback=0"}) {
      const bool ring = std::string(mode) == "ring";
      if (ring && *codec == 'r') continue;
      ClusterInProcess cluster(
          {.mode = std::string(mode) + ":" + codec, .servers = ring ? 0 : 1, .serial = false, .own = own_objects()});
      cluster.run([&](int worker, KVStore& store) {
        Engine& engine = cluster.engine(worker);
        const NDArray weight = NDArray::zeros(Shape{kCount}, DType::kFloat32, {}, engine);
        store.init({{"w", weight}});
        store.set_optimizer(optim::SGD{.lr = 1});
        store.push_pull({{"w", NDArray::full(Shape{kCount}, -1, DType::kFloat32, {}, engine)}}, {{"w", weight}});
        store.step_end();
        store.barrier();
        store.pull("w", weight);
        EXPECT_GE(weight.to_vector<float>()[kCount - 1], 1);
        const StoreReport report = store.report();
        EXPECT_EQ(4 * report.encoded_bytes, 3 * report.raw_bytes);
        EXPECT_GT(report.raw_bytes, 0);
      });
    }
  }
}

// Where servers lack what the text names, or have it by another name, the worker hears of it before it trains.
TEST(OwnObjects, AreRefusedWhereTheServersDoNotHaveThem) {
  const Extensions ours = own_objects();
  const Extensions others{.modes = {{"close", ours.modes.at("near")}},
                          .policies = {{"tracked", ours.policies.at("traced")}},
                          .codecs = {{"bytes3", ours.codecs.at("three_bytes")}}};
  struct Case {
    const char *mode, *object, *has;
  };
  for (const Case& c : {Case{"near", "mode 'near'", "(it has close)"},
                        Case{"dist_async:staleness=gap_aware+traced", "staleness policy 'traced'", "(it has tracked)"},
                        Case{"dist_sync:compression=three_bytes", "codec 'three_bytes'", "(it has bytes3)"},
                        Case{"dist_async:rules=w:three_bytes", "codec 'three_bytes'", "(it has bytes3)"}}) {
    SCOPED_TRACE(c.mode);
    for (const bool none : {true, false}) {
      ClusterInProcess cluster(
          {.mode = c.mode, .workers = 1, .servers = 1, .own = ours, .own_of_servers = none ? Extensions() : others});
      KVStore& store = cluster.worker(0);
      const std::string error = error_of_call([&] {
        store.init({{"w", NDArray::zeros(Shape{kCount}, DType::kFloat32, {}, cluster.engine(0))}});
        store.set_optimizer(optim::SGD{});
      });
      EXPECT_THAT(error, HasSubstr(str("the workers name the ", c.object, " of their program, which this server does ",
                                       "not have", none ? ": run" : str(" ", c.has, ": run"))));
    }
  }
}

TEST(OwnObjects, AreRefusedWhereTheTableIsDeclaredFirst) {
  ClusterInProcess cluster(
      {.mode = "near", .workers = 1, .servers = 1, .own = own_objects(), .own_of_servers = Extensions()});
  EXPECT_THAT(error_of_call([&] { cluster.worker(0).init_table(table_of(5, 2)); }),
              HasSubstr("the workers name the mode 'near' of their program, which this server does not have"));
}

TEST(OwnObjects, AreRefusedWhereTheWorkerDoesNotHaveThem) {
  const auto error = [](const std::string& mode, const Extensions& own) {
    return error_of_call([&] { KVStore::check(mode, false, own); });
  };
  EXPECT_THAT(error("far", own_objects()), HasSubstr("; of your own: all_but_one near together"));
  EXPECT_THAT(error("near:staleness=trced", own_objects()), HasSubstr("; of your own: traced"));
  EXPECT_THAT(error("near:compression=four_bytes", own_objects()), HasSubstr("; of your own: three_bytes"));
  EXPECT_THAT(error("near", {}), HasSubstr("unknown mode 'near'; known: local"));
  EXPECT_EQ(error("near:staleness=traced+dana,compression=three_bytes,error_feedback=0", own_objects()), "");
  EXPECT_THAT(error("near:bound=2", own_objects()), HasSubstr("unknown option 'bound' of mode 'near'"));
}

TEST(OwnObjects, ModesHaveNoNameOfTheLibrarys) {
  for (const char* const name :
       {"local", "device", "gossip", "ring", "nccl", "dist_device_sync", "dist_sync_device", "dist_async"}) {
    const Extensions own{.modes = {{name, std::make_shared<Near>()}}, .policies = {}, .codecs = {}};
    EXPECT_THAT(error_of_call([&] { own.check(); }), HasSubstr(str("the library has a mode '", name, "'"))) << name;
  }
}

// Each value has the sign that most workers vote for.
class Voting final : public Codec {
 public:
  bool votes() const override { return true; }
  std::size_t max_bytes(std::int64_t count) const override { return bytes_.max_bytes(count); }
  std::size_t encode(std::span<const float> values, const EncodeContext& context, std::span<float* const> state,
                     std::byte* out) const override {
    return bytes_.encode(values, context, state, out);
  }
  void check(EncodedBytes bytes, std::int64_t count) const override { bytes_.check(bytes, count); }
  void decode(EncodedBytes bytes, std::int64_t count, std::int64_t begin, std::span<float> out) const override {
    bytes_.decode(bytes, count, begin, out);
  }

 private:
  ThreeBytes bytes_;
};

TEST(OwnCodec, ThatVotesIsRefusedInModeRing) {
  const Extensions own{.modes = {}, .policies = {}, .codecs = {{"voting", std::make_shared<Voting>()}}};
  EXPECT_THAT(error_of_call([&] { KVStore::check("ring:compression=voting", false, own); }), HasSubstr("vote"));
}

// Version 0.1.0 saved the state of a policy of the user's own by its own name alone.
TEST(OwnPolicy, ReadsStateThatWasSavedWithoutItsName) {
  const Extensions own = own_objects();
  const NDArray trace = NDArray::zeros(Shape{3}, DType::kFloat32), other = NDArray::zeros(Shape{3}, DType::kFloat32);
  SavedStore store;
  store.keys["w"].slots = {{"trace", trace}, {"momentum", other}};
  adapt_state(store, *make_optimizer(Spec::parse("momentum")), *make_staleness("traced+gap_aware", {}, own), false,
              own);
  EXPECT_EQ(store.keys["w"].slots.size(), 2);
  EXPECT_EQ(store.keys["w"].slots["traced_trace"].data(), trace.data());
  EXPECT_EQ(store.keys["w"].slots["momentum"].data(), other.data());
}

TEST(OwnObjects, HaveNamesThatTheTextCanHold) {
  const auto error = [](const Extensions& own) {
    return error_of_call([&] { KVStore::check("dist_sync", false, own); });
  };
  const Extensions sound = own_objects();
  EXPECT_EQ(error(sound), "");
  EXPECT_THAT(error({.codecs = {{"a+b", sound.codecs.at("three_bytes")}}}), HasSubstr("cannot be named 'a+b'"));
  EXPECT_THAT(error({.policies = {{"", sound.policies.at("traced")}}}), HasSubstr("cannot be named ''"));
  EXPECT_THAT(error({.policies = {{"dana", sound.policies.at("traced")}}}), HasSubstr("has a staleness policy 'dana'"));
  EXPECT_THAT(error({.codecs = {{"top_k", sound.codecs.at("three_bytes")}}}), HasSubstr("has a codec 'top_k'"));
  for (const char* const name : {"dist_sync", "ring", "local", "nccl"})
    EXPECT_THAT(error({.modes = {{name, sound.modes.at("near")}}}), HasSubstr(str("has a mode '", name, "'")));
  EXPECT_THAT(error({.modes = {{"mine", nullptr}}}), HasSubstr("null pointer"));
  struct Wrong final : Mode {
    ModeTraits traits() const override { return {.applies = Applies::kWithBackups}; }
  };
  EXPECT_THAT(error({.modes = {{"mine", std::make_shared<Wrong>()}}}), HasSubstr("holds_tables = false"));
  struct Loose final : Mode {
    ModeTraits traits() const override { return {.lockstep = true}; }
  };
  EXPECT_THAT(error({.modes = {{"mine", std::make_shared<Loose>()}}}), HasSubstr("in lockstep without rounds"));
}

}  // namespace
}  // namespace paceline::test

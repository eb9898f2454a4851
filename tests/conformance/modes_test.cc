// What every mode of the catalogue promises, whatever it decides.
#include <gtest/gtest.h>
#include <paceline/mode.h>
#include <paceline/updater.h>
#include <paceline/worker_rule.h>
#include <support/cluster_in_process.h>
#include <support/own_objects.h>

namespace paceline::test {
namespace {

// Every mode, those that are not in the library, and options' other branches.
std::vector<std::string> every_mode() {
  std::vector<std::string> modes{"dist_async:bound=2", "dist_async:bound=1..3", "dist_sync:aggregate=sum"};
  for (const auto& [name, make] : mode_catalog().entries()) modes.push_back(name);
  for (const auto& [name, mode] : own_objects().modes) modes.push_back(name);
  return modes;
}

std::shared_ptr<const Mode> mode_of(const std::string& text) { return make_mode(Spec::parse(text), own_objects()); }

TEST(Modes, HaveADefaultPolicyForEveryOptimizer) {
  for (const std::string& text : every_mode()) {
    const auto mode = mode_of(text);
    for (const auto& [optimizer, make] : optimizer_catalog().entries()) {
      SCOPED_TRACE(text + " " + optimizer);
      const std::string policy = mode->default_staleness(optimizer);
      EXPECT_NO_THROW(make_staleness(policy, {}));
      EXPECT_NO_THROW(make_worker_rule(Spec{optimizer, {}}, policy));
      EXPECT_NO_THROW(make_updater()->set_rules(Spec{optimizer, {}}, policy, {}));
    }
  }
}

TEST(Modes, CloseRoundsAndLetTheSlowestPull) {
  for (const std::string& text : every_mode()) {
    SCOPED_TRACE(text);
    const auto mode = mode_of(text);
    EXPECT_TRUE(mode->round_complete({3, 3}));
    if (mode->traits().in_rounds()) {
      EXPECT_FALSE(mode->round_complete({0, 3}));
    }
    EXPECT_TRUE(mode->may_pull({7, 7}));
    EXPECT_THROW(mode_of(text + (text.find(':') == std::string::npos ? ":" : ",") + "nonsense=1"), InvalidArgument);
  }
}

// The table of what a mode can do.
TEST(Modes, HaveTraitsThatFitTogether) {
  for (const std::string& text : every_mode()) {
    SCOPED_TRACE(text);
    const ModeTraits traits = mode_of(text)->traits();
    if (traits.lockstep) {
      EXPECT_EQ(traits.applies, Applies::kInRounds);
      EXPECT_FALSE(mode_of(text)->round_complete({2, 3}));
    }
    if (traits.applies == Applies::kWithBackups) {
      EXPECT_FALSE(traits.holds_tables);
    }
    if (!traits.pulls_wait()) {
      EXPECT_TRUE(mode_of(text)->may_pull({std::int64_t{1} << 60, 0}));
    }
  }
  const auto traits = [](const char* text) { return mode_of(text)->traits(); };
  EXPECT_EQ(traits("dist_sync").applies, Applies::kInRounds);
  EXPECT_EQ(traits("dist_sync:backup=1").applies, Applies::kWithBackups);
  EXPECT_EQ(traits("dist_async").applies, Applies::kAtOnce);
  EXPECT_EQ(traits("dist_local").applies, Applies::kInRounds);
  EXPECT_EQ(traits("dist_local:averaging=elastic").applies, Applies::kAtOnce);
  EXPECT_TRUE(traits("dist_sync").lockstep && traits("dist_sync").holds_tables && traits("dist_async").holds_tables);
  EXPECT_FALSE(traits("dist_local").holds_tables || traits("dist_local").lockstep || traits("dist_async").pulls_wait());
  EXPECT_TRUE(traits("dist_async:bound=0").pulls_wait());
}

// Between its two bounds dist_async goes on where it then waits less for an end of a step of the slowest.
TEST(Modes, TheDynamicBoundGrantsStepsThatShortenTheWait) {
  const auto mode = make_mode(Spec::parse("dist_async:bound=2..6"));
  EXPECT_TRUE(mode->may_pull({12, 10, 1, 10, 0}));   // as far as the first bound always,
  EXPECT_FALSE(mode->may_pull({17, 10, 1, 10, 0}));  // past the second never,
  EXPECT_FALSE(mode->may_pull({13, 10}));            // and not while nothing is known
  EXPECT_FALSE(mode->may_pull({13, 10, 0, 10, 0.5}));
  EXPECT_FALSE(mode->may_pull({13, 10, 1, 0, 0.5}));
  // The slowest needs 9.5 more: of up to four steps of 1 each brings the worker nearer to its end.
  for (int steps = 0; steps < 4; ++steps) EXPECT_TRUE(mode->may_pull({13 + steps, 10, 1, 10, 0.5 + steps})) << steps;
  EXPECT_FALSE(mode->may_pull({13, 10, 1, 10, 9.9}));  // it is about to end, and its next end is far
  EXPECT_FALSE(mode->may_pull({13, 10, 4, 10, 8.5}));  // 1.5 now, 7.5 3.5 9.5 5.5 after one to four steps
  EXPECT_TRUE(mode->may_pull({13, 10, 4, 10, 7.5}));   // 2.5 now, 8.5 4.5 0.5 after one to three
  EXPECT_FALSE(mode->may_pull({15, 10, 4, 10, 7.5}));  // the third is not to be had any more
  EXPECT_TRUE(mode->may_pull({16, 10, 2, 10, 8}));     // just in time for its end
  EXPECT_TRUE(mode->may_pull({13, 10, 1, 10, 12}));  // one that is late by its own pace is taken to be in its next step
  const auto error = [](const std::string& bound) {
    return error_of_call([&] { make_mode(Spec::parse("dist_async:bound=" + bound)); });
  };
  EXPECT_NE(error("6..2").find("smaller number first"), std::string::npos);
  for (const char* bound : {"2..", "..2", "2...6", "-1..2", "2..6..8", "x"})
    EXPECT_NE(error(bound).find("expected a whole number"), std::string::npos) << bound << error(bound);
}

// Read your writes, exact counts, equal weights after a barrier, keys that are not pushed in every step.
TEST(Modes, KeepThePromisesOfTheStore) {
  constexpr int kSteps = 6;
  for (const std::string& text : every_mode()) {
    SCOPED_TRACE(text);
    if (mode_of(text)->traits().applies == Applies::kWithBackups) continue;  // refuses late pushes
    const bool rounds = mode_of(text)->traits().in_rounds();
    ClusterInProcess cluster({.mode = text + (text.find(':') == std::string::npos ? ":" : ",") + "staleness=none",
                              .serial = false,
                              .own = own_objects()});
    std::array<std::vector<double>, 2> final_weights;
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray often = NDArray::zeros(Shape{1}, DType::kFloat64, {}, engine);
      const NDArray seldom = NDArray::zeros(Shape{5000}, DType::kFloat64, {}, engine);
      store.init({{"often", often}, {"seldom", seldom}});
      store.set_optimizer(optim::SGD{.lr = 1});
      const NDArray one = NDArray::full(Shape{1}, -1, DType::kFloat64, {}, engine);
      const NDArray ones = NDArray::full(Shape{5000}, -1, DType::kFloat64, {}, engine);
      for (int step = 1; step <= kSteps; ++step) {
        store.push("often", one);
        if (step % 3 == 0 && worker == 0) store.push("seldom", ones);
        store.step_end();
        store.pull("often", often);
        EXPECT_GE(often.item<double>(), step);
      }
      store.pull("seldom", seldom);
      seldom.wait();
      store.barrier();
      store.pull("often", often);
      store.pull("seldom", seldom);
      auto& result = final_weights[static_cast<std::size_t>(worker)];
      result = seldom.to_vector<double>();
      result.push_back(often.item<double>());
      EXPECT_EQ(store.report().refused, 0);
    });
    std::vector<double> expected(5000, kSteps / 3);
    const bool means = mode_of(text)->aggregate() == Aggregate::kMean;
    expected.push_back(rounds && means ? kSteps : 2 * kSteps);
    EXPECT_EQ(final_weights[0], expected);
    EXPECT_EQ(final_weights[1], expected);
  }
}

// A worker that waits for what others may leave holds nobody back, and comes back into the rounds.
TEST(Modes, WorkersThatWaitForDataAreNotWaitedFor) {
  for (const std::string& text : every_mode()) {
    SCOPED_TRACE(text);
    if (mode_of(text)->traits().applies == Applies::kWithBackups) continue;  // refuses late pushes
    const bool rounds = mode_of(text)->traits().in_rounds();
    ClusterInProcess cluster({.mode = text, .serial = false, .own = own_objects()});
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray weight = NDArray::zeros(Shape{1}, DType::kFloat64, {}, engine);
      store.init({{"w", weight}});
      store.set_optimizer(optim::SGD{.lr = 1});
      Backend& exchange = store.backend();
      for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        const std::int64_t steps = worker == 0 ? 2 : 9;  // positions 0..1 and 2..10
        const std::int64_t first = worker == 0 ? 0 : 2;
        exchange.data_part(epoch);
        exchange.data_begin(epoch, {.mine = {{first, first + steps}}, .all = {{0, 11}}});
        for (std::int64_t step = first; step < first + steps; ++step) {
          store.push_pull({{"w", NDArray::full(Shape{1}, -1, DType::kFloat64, {}, engine)}}, {{"w", weight}});
          store.step_end();
          weight.wait();
          exchange.data_commit(epoch, {{step, step + 1}});
        }
        EXPECT_TRUE(exchange.data_take_over(epoch, true).empty());
        store.barrier();
        EXPECT_EQ(exchange.data_committed(epoch), (PositionRanges{{0, 11}}));
      }
      store.pull("w", weight);
      if (rounds) {
        const bool means = mode_of(text)->aggregate() == Aggregate::kMean;
        EXPECT_EQ(weight.item<double>(), means ? 27 : 33);
      }
      EXPECT_EQ(store.report().refused, 0);
    });
  }
}

}  // namespace
}  // namespace paceline::test

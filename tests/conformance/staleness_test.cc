// What every staleness policy of the catalogue promises, whatever it makes of a gradient.
#include <gtest/gtest.h>
#include <paceline/staleness.h>
#include <paceline/updater.h>
#include <support/own_objects.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

namespace paceline::test {
namespace {

// Every policy by name, one that is not in the library, two in a chain, and other branches of options.
std::vector<Spec> every_policy() {
  std::vector<Spec> policies;
  for (const auto& [name, make] : staleness_catalog().entries()) policies.push_back({name, {}});
  for (const auto& [name, policy] : own_objects().policies) policies.push_back({name, {}});
  policies.push_back({"gap_aware+traced+inverse_delay", {}});
  policies.push_back({"delay_compensated", {{"adaptive", "0"}, {"lambda", "0.5"}, {"clip", "0"}}});
  policies.push_back({"inverse_delay", {{"power", "0.5"}}});
  return policies;
}

std::unique_ptr<Staleness> make(const Spec& policy) {
  return make_staleness(policy.name, policy.options, own_objects());
}

StaleContext context_of(const Staleness& policy, std::int64_t delay) {
  StaleContext context{.delay = delay,
                       .learning_rate = 0.1,
                       .peak_rate = 0.2,
                       .step_size = make_optimizer(Spec{"momentum", {}})->step_size(),
                       .count = 5,
                       .examples = 32,
                       .workers = 3};
  context.factor = policy.factor(context);
  return context;
}

// A slice with all that a policy may look at. States are as large as squares of gradients.
template <class T>
struct Values {
  std::vector<T> gradient, weight, pulled;
  std::vector<std::vector<T>> states;

  Values(const Staleness& policy, std::size_t count, unsigned seed)
      : states(policy.state_names().size(), std::vector<T>(count)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (auto* const values : {&gradient, &weight, &pulled})
      for (std::size_t i = 0; i < count; ++i) values->push_back(static_cast<T>(normal(random)));
    for (auto& state : states)
      for (T& value : state) value = static_cast<T>(std::abs(normal(random)));
  }

  // Corrects the elements [begin, end).
  void correct(const Staleness& policy, const StaleContext& context, std::size_t begin, std::size_t end) {
    std::vector<T*> at;
    for (auto& state : states) at.push_back(state.data() + begin);
    Tile<T> tile;
    tile.count = static_cast<std::int64_t>(end - begin);
    tile.gradient = gradient.data() + begin;
    tile.weight = weight.data() + begin;
    tile.pulled = policy.needs_pulled() ? pulled.data() + begin : nullptr;
    tile.state = at.data();
    policy.correct(tile, context);
  }
  void correct(const Staleness& policy, const StaleContext& context) { correct(policy, context, 0, gradient.size()); }
  bool operator==(const Values&) const = default;
};

TEST(Policies, RefuseOptionsThatTheyDoNotKnow) {
  for (const Spec& policy : every_policy()) {
    Options options = policy.options;
    options.set("nonsense", "1");
    EXPECT_THROW(make_staleness(policy.name, options, own_objects()), InvalidArgument) << policy.text();
  }
  EXPECT_THROW(make_staleness("gap_awre", {}), InvalidArgument);
}

TEST(Policies, RefuseDelaysBelowZero) {
  for (const char* text : {"discard:discard_above=-1", "delay_adaptive:full_rate_delay=-1"})
    EXPECT_THROW(make(Spec::parse(text)), InvalidArgument) << text;
}

template <class T>
void leaves_fresh_gradients() {
  for (const Spec& spec : every_policy()) {
    SCOPED_TRACE(spec.text());
    const auto policy = make(spec);
    const StaleContext fresh = context_of(*policy, 0);
    EXPECT_TRUE(policy->accepts(fresh));
    Values<T> values(*policy, 700, 1);
    const Values<T> before = values;
    values.pulled = values.weight;  // which is what no delay means
    values.correct(*policy, fresh);
    EXPECT_EQ(values.gradient, before.gradient);
    EXPECT_EQ(values.weight, before.weight);
  }
}

TEST(Policies, LeaveAGradientWithoutDelayAsItIs) {
  leaves_fresh_gradients<float>();
  leaves_fresh_gradients<double>();
}

// Where corrects() says no, nothing changes: the pass over the slice leaves the policy out.
TEST(Policies, ChangeNothingWhereTheySayThatTheyDoNotCorrect) {
  for (const Spec& spec : every_policy()) {
    SCOPED_TRACE(spec.text());
    const auto policy = make(spec);
    for (const std::int64_t delay : {0, 1, 3, 50}) {
      const StaleContext context = context_of(*policy, delay);
      if (policy->corrects(context)) continue;
      Values<float> values(*policy, 700, 2);
      const Values<float> before = values;
      values.correct(*policy, context);
      EXPECT_EQ(values, before) << delay;
    }
  }
}

// Elements know nothing of each other: any cut into tiles gives the same bits, of gradients and of states.
TEST(Policies, AreTheSameBitsInAnyTiles) {
  constexpr std::size_t kCount = 1000;
  for (const Spec& spec : every_policy()) {
    SCOPED_TRACE(spec.text());
    const auto policy = make(spec);
    for (const std::int64_t delay : {0, 1, 3, 50}) {
      const StaleContext context = context_of(*policy, delay);
      Values<float> whole(*policy, kCount, 3), cut = whole;
      whole.correct(*policy, context);
      std::mt19937 random(4);
      for (std::size_t begin = 0; begin < kCount;) {
        const std::size_t end = std::min(kCount, begin + 1 + random() % 90);
        cut.correct(*policy, context, begin, end);
        begin = end;
      }
      EXPECT_EQ(cut, whole) << delay;
      EXPECT_EQ(whole.weight, Values<float>(*policy, kCount, 3).weight) << "a policy changes no weights";
    }
  }
}

TEST(Policies, AgreeInFloatAndDouble) {
  for (const Spec& spec : every_policy()) {
    SCOPED_TRACE(spec.text());
    const auto policy = make(spec);
    for (const std::int64_t delay : {1, 3, 50}) {
      const StaleContext context = context_of(*policy, delay);
      Values<float> single(*policy, 500, 5);
      Values<double> twice(*policy, 500, 5);
      single.correct(*policy, context);
      twice.correct(*policy, context);
      double error = 0, norm = 0;
      const auto compare = [&](const std::vector<float>& a, const std::vector<double>& b) {
        for (std::size_t i = 0; i < a.size(); ++i) {
          error += std::pow(static_cast<double>(a[i]) - b[i], 2);
          norm += b[i] * b[i];
        }
      };
      compare(single.gradient, twice.gradient);
      for (std::size_t s = 0; s < single.states.size(); ++s) compare(single.states[s], twice.states[s]);
      EXPECT_LT(std::sqrt(error / norm), 1e-5) << delay;
    }
  }
}

// Rows of a table with the same delay share the factor, whatever each row has counted.
TEST(Policies, HaveAFactorThatDoesNotDependOnTheCount) {
  for (const Spec& spec : every_policy()) {
    const auto policy = make(spec);
    for (const std::int64_t delay : {0, 1, 3, 50}) {
      StaleContext context = context_of(*policy, delay);
      context.count += 1000;
      EXPECT_EQ(policy->factor(context), context.factor) << spec.text();
    }
  }
}

// Pushes to an updater with delays of 0 to 4 versions. Refused ones count as well.
class Training {
 public:
  // The key lies in slices of so many elements.
  Training(const Spec& policy, const std::vector<std::int64_t>& slices) {
    updater_->set_rules(Spec::parse("momentum:lr=0.05,momentum=0.5"), policy.name, policy.options, own_objects());
    updater_->set_workers(kWorkers);
    std::int64_t begin = 0;
    for (const std::int64_t count : slices) {
      const std::vector<float> ones(static_cast<std::size_t>(count), 1);
      slices_.push_back(updater_->add_slice(
          {.name = "w", .begin = begin, .end = begin + count, .dtype = DType::kFloat32}, ones.data()));
      begin += count;
    }
  }

  void train(unsigned seed, int pushes) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    // What a worker pulled before this call counts no more.
    for (int worker = 0; worker < kWorkers; ++worker) pull(worker);
    for (int push = 0; push < pushes; ++push) {
      const int worker = static_cast<int>(random() % kWorkers);
      std::vector<float> gradient(kCount);
      for (float& value : gradient) value = normal(random);
      for (const int slice : slices_) {
        const SliceInfo info = updater_->info(slice);
        const std::uint64_t version = pulled_[static_cast<std::size_t>(worker)][static_cast<std::size_t>(slice)];
        updater_->apply(slice, {.worker = worker,
                                .version = version,
                                .examples = 8,
                                .gradient = &gradient[static_cast<std::size_t>(info.begin)]});
      }
      if (random() % 2 == 0) pull(worker);
    }
  }
  std::vector<float> weights() {
    std::vector<float> all(kCount);
    for (const int slice : slices_)
      updater_->read(slice, -1, &all[static_cast<std::size_t>(updater_->info(slice).begin)]);
    return all;
  }
  // Goes on from the state of another.
  void load(Training& other) {
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      SliceCounters counters;
      const NamedArrays state = other.updater_->save_slice(other.slices_[i], &counters);
      updater_->load_slice(slices_[i], state, counters);
    }
  }

  static constexpr std::int64_t kCount = 3000;

 private:
  static constexpr int kWorkers = 4;

  void pull(int worker) {
    auto& versions = pulled_[static_cast<std::size_t>(worker)];
    versions.resize(slices_.size());
    for (const int slice : slices_) versions[static_cast<std::size_t>(slice)] = updater_->pull(slice, worker).version;
  }

  const std::unique_ptr<Updater> updater_ = make_updater();
  std::vector<int> slices_;
  std::array<std::vector<std::uint64_t>, kWorkers> pulled_;
};

TEST(Policies, AreTheSameBitsInAnySlices) {
  for (const Spec& policy : every_policy()) {
    SCOPED_TRACE(policy.text());
    Training whole(policy, {Training::kCount}), cut(policy, {1, 999, 1500, 500});
    whole.train(6, 40);
    cut.train(6, 40);
    EXPECT_EQ(cut.weights(), whole.weights());
    EXPECT_NE(whole.weights(), std::vector<float>(Training::kCount, 1));
  }
}

TEST(Policies, GoOnFromACheckpointWithTheSameBits) {
  for (const Spec& policy : every_policy()) {
    SCOPED_TRACE(policy.text());
    Training first(policy, {Training::kCount}), second(policy, {Training::kCount});
    first.train(7, 30);
    second.load(first);
    first.train(8, 30);
    second.train(8, 30);
    EXPECT_EQ(second.weights(), first.weights());
  }
}

}  // namespace
}  // namespace paceline::test

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/kernel.h>
#include <paceline/updater.h>

#include <array>
#include <cmath>
#include <random>

#include "optimizer/adam_rule.h"
#include "optimizer/sgd_rules.h"

namespace paceline {
namespace {

using testing::HasSubstr;

// Runs `steps` updates of one element with gradient f(w) and returns the weight.
template <class Gradient>
double run(const Spec& optimizer, int steps, double weight, Gradient gradient) {
  auto updater = make_updater();
  updater->set_rules(optimizer, "none", {});
  const int slice = updater->add_slice({.name = "w", .end = 1, .dtype = DType::kFloat64}, &weight);
  for (int i = 0; i < steps; ++i) {
    const Snapshot now = updater->pull(slice, 0);
    const double g = gradient(*reinterpret_cast<const double*>(now.data.get()));
    updater->apply(slice, {.worker = 0, .version = now.version, .examples = 1, .gradient = &g});
  }
  return *reinterpret_cast<const double*>(updater->pull(slice, -1).data.get());
}

TEST(Optimizer, FollowsItsFormula) {
  const auto gradient = [](double w) { return 2 * w + 1; };
  double sgd = 1, momentum = 1, nesterov = 1, adam = 1, mom = 0, nag = 0, mean = 0, variance = 0;
  for (int t = 1; t <= 20; ++t) {
    sgd -= 0.1 * gradient(sgd);
    mom = 0.9 * mom + gradient(momentum);
    momentum -= 0.1 * mom;
    const double g = gradient(nesterov);
    nag = 0.9 * nag + g;
    nesterov -= 0.1 * (g + 0.9 * nag);
    const double a = gradient(adam);
    mean = 0.9 * mean + 0.1 * a;
    variance = 0.999 * variance + 0.001 * a * a;
    adam -= 0.1 * (mean / (1 - std::pow(0.9, t))) / (std::sqrt(variance / (1 - std::pow(0.999, t))) + 1e-12);
  }
  EXPECT_EQ(run(optim::SGD{.lr = 0.1}, 20, 1, gradient), sgd);
  EXPECT_EQ(run(optim::SGD{.lr = 0.1, .momentum = 0.9}, 20, 1, gradient), momentum);
  EXPECT_EQ(run(optim::SGD{.lr = 0.1, .momentum = 0.9, .nesterov = true}, 20, 1, gradient), nesterov);
  EXPECT_NEAR(run(optim::Adam{.lr = 0.1, .epsilon = 1e-12}, 20, 1, gradient), adam, 1e-9);
}

// However many elements a loop takes at a time, they have the same bits.
TEST(Optimizer, ATileIsItsElements) {
  std::mt19937 random(1);
  std::normal_distribution<float> draw;
  for (const char* name : {"sgd", "momentum", "nesterov", "adam", "adamw", "assign"}) {
    const auto optimizer = make_optimizer(Spec::parse(std::string(name) + ":lr=0.1"));
    for (const std::int64_t count : {1, 15, 64, 1023}) {
      const std::size_t arrays = 3 + optimizer->state_names().size(), n = static_cast<std::size_t>(count);
      std::vector<std::vector<float>> together(arrays, std::vector<float>(n));
      for (auto& array : together)
        for (float& value : array) value = std::abs(draw(random));
      auto apart = together;
      for (const bool beside : {false, true}) {
        if (beside && !optimizer->in_one_pass()) continue;
        const auto update = [&](std::vector<std::vector<float>>& values, std::int64_t begin, std::int64_t elements) {
          std::vector<float*> state;
          for (std::size_t s = 3; s < arrays; ++s) state.push_back(values[s].data() + begin);
          Tile<float> tile;
          tile.count = elements;
          tile.gradient = values[0].data() + begin;
          tile.weight = values[1].data() + begin;
          tile.before = beside ? values[2].data() + begin : nullptr;
          tile.state = state.data();
          optimizer->update(tile, {.learning_rate = 0.1, .count = 3});
        };
        update(together, 0, count);
        for (std::int64_t i = 0; i < count; ++i) update(apart, i, 1);
        EXPECT_EQ(together, apart) << name << ", " << count << " elements";
      }
    }
  }
}

// Whatever code this machine's processor was given, its floats have the bits of a plain loop, compiled here.
TEST(Optimizer, VectorCodeHasTheBitsOfAPlainLoop) {
  std::mt19937 random(1);
  std::normal_distribution<float> draw;
  constexpr std::size_t kElements = 1023;
  std::array<std::vector<float>, 4> given;  // gradient, weight, mean, variance
  for (auto& array : given)
    for (std::size_t i = 0; i < kElements; ++i) array.push_back(std::abs(draw(random)));
  const UpdateStep step{.learning_rate = 0.1, .count = 3};
  const auto expect_bits_of = [&](const Spec& spec, const auto& rule) {
    auto made = given, plain = given;
    std::array<float*, 2> state{made[2].data(), made[3].data()};
    Tile<float> tile;
    tile.count = kElements;
    tile.gradient = made[0].data();
    tile.weight = made[1].data();
    tile.state = state.data();
    make_optimizer(spec)->update(tile, step);
    const auto bound = rule.template bind<float>();
    for (std::size_t i = 0; i < kElements; ++i) {
      std::array<float, 2> slots{plain[2][i], plain[3][i]};
      plain[1][i] -= bound(plain[0][i], slots.data(), static_cast<float>(rule.rate(step)));
      plain[2][i] = slots[0];
      plain[3][i] = slots[1];
    }
    EXPECT_EQ(made, plain) << spec.name;
  };
  expect_bits_of(optim::Adam{.lr = 0.1, .epsilon = 1e-8}, AdamRule{.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8});
  expect_bits_of(optim::SGD{.lr = 0.1}, SgdRule{});
  expect_bits_of(optim::SGD{.lr = 0.1, .momentum = 0.9}, MomentumRule<false>{.momentum = 0.9});
  expect_bits_of(optim::SGD{.lr = 0.1, .momentum = 0.9, .nesterov = true}, MomentumRule<true>{.momentum = 0.9});
}

// The first step is the rate, whatever the gradient.
TEST(Optimizer, AdamsFirstStepInFloatIsTheRate) {
  float weight = 0, gradient = 3, mean = 0, variance = 0;
  std::array<float*, 2> state{&mean, &variance};
  Tile<float> tile;
  tile.count = 1, tile.gradient = &gradient, tile.weight = &weight, tile.state = state.data();
  make_optimizer(optim::Adam{.lr = 0.1, .beta2 = 0.9999})->update(tile, {.learning_rate = 0.1, .count = 1});
  EXPECT_NEAR(weight, -0.1, 1e-7);
}

// The steps of torch.optim.AdamW; beside them Adam's, whose decay goes through the moments.
TEST(Optimizer, AdamWDecaysBesideTheStep) {
  const auto gradient = [](double w) { return 2 * w + 1; };
  double weight = 1, mean = 0, variance = 0;
  for (int t = 1; t <= 20; ++t) {
    const double g = gradient(weight);
    weight *= 1 - 0.1 * 0.3;
    mean = 0.9 * mean + 0.1 * g;
    variance = 0.999 * variance + 0.001 * g * g;
    weight -= 0.1 * (mean / (1 - std::pow(0.9, t))) / (std::sqrt(variance / (1 - std::pow(0.999, t))) + 1e-12);
  }
  const optim::AdamW adamw{.lr = 0.1, .epsilon = 1e-12, .weight_decay = 0.3};
  EXPECT_NEAR(run(adamw, 20, 1, gradient), weight, 1e-9);
  EXPECT_GT(std::abs(run(optim::Adam{.lr = 0.1, .epsilon = 1e-12, .weight_decay = 0.3}, 20, 1, gradient) - weight),
            1e-3);
  // Without a gradient only the decay is left; 0.01 unless said.
  const auto nothing = [](double) { return 0.0; };
  EXPECT_DOUBLE_EQ(run(Spec::parse("adamw:lr=0.5"), 1, 2, nothing), 2 * (1 - 0.5 * 0.01));
  EXPECT_DOUBLE_EQ(run(optim::AdamW{.lr = 0.5, .weight_decay = 0}, 1, 2, nothing), 2);
}

TEST(Optimizer, AssignForgetsTheWeight) {
  EXPECT_EQ(run(optim::Assign{}, 3, 1, [](double w) { return 2 * w + 1; }), 15);
  EXPECT_EQ(run(Spec::parse("assign:rescale=0.5,weight_decay=2"), 1, 3, [](double) { return 8.0; }), 4 + 6);
}

TEST(Optimizer, RescalesClipsAndDecaysInThatOrder) {
  // g = clip(0.5 * 8, 3) + 0.1 * 2 = 3.2
  EXPECT_DOUBLE_EQ(
      run(Spec::parse("sgd:lr=1,rescale=0.5,clip_gradient=3,weight_decay=0.1"), 1, 2, [](double) { return 8.0; }),
      2 - 3.2);
}

TEST(Optimizer, CountsTheScheduleInExamples) {
  const auto at = [](const char* text, std::int64_t examples) {
    return LearningRate::parse(Options::parse(text)).at(examples);
  };
  EXPECT_DOUBLE_EQ(at("lr=0.5", 1000000), 0.5);
  EXPECT_DOUBLE_EQ(at("lr=1,schedule=linear,schedule_examples=100", 25), 0.75);
  EXPECT_DOUBLE_EQ(at("lr=1,schedule=linear,schedule_examples=100,schedule_end=0.2", 500), 0.2);
  EXPECT_NEAR(at("lr=1,schedule=cosine,schedule_examples=100", 50), 0.5, 1e-15);
  EXPECT_DOUBLE_EQ(at("lr=1,schedule=step,schedule_every=10,schedule_factor=0.5", 25), 0.25);
  EXPECT_DOUBLE_EQ(at("lr=1,schedule_warmup=9", 4), 0.5);
  for (const char* const wrong :
       {"lr=-1", "schedule_end=-0.1", "schedule_factor=-1", "schedule_factor=nan", "schedule_warmup=-5"})
    EXPECT_THROW(at(wrong, 0), InvalidArgument) << wrong;
}

TEST(Optimizer, NesterovNeedsAMomentum) {
  EXPECT_THROW(Spec spec(optim::SGD{.lr = 0.1, .nesterov = true}), InvalidArgument);
  EXPECT_EQ((Spec(optim::SGD{.lr = 0.1, .momentum = 0.9, .nesterov = true})).name, "nesterov");
}

TEST(Optimizer, WritesNumbersAsAPersonWould) {
  const Spec spec = optim::SGD{.lr = 0.05, .momentum = 0.9, .weight_decay = 1.0 / 3};
  EXPECT_EQ(spec.options.get<std::string>("lr", ""), "0.05");
  EXPECT_EQ(spec.options.get("weight_decay", 0.0), 1.0 / 3);
}

TEST(Optimizer, NamesWhatIsUnknown) {
  const auto message = [](const char* text) -> std::string {
    try {
      make_optimizer(Spec::parse(text));
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(message("sdg"), HasSubstr("unknown optimizer 'sdg'; known: sgd momentum nesterov adam adamw"));
  EXPECT_THAT(message("adam:beta3=1"), HasSubstr("beta3"));
  EXPECT_THAT(message("sgd:schedule=liner"), HasSubstr("known: constant linear step cosine"));
  EXPECT_THAT(message("momentum:momentum=1.5"), HasSubstr("between -1 and 1"));
}

TEST(Optimizer, RefusesNumbersThatSpoilWeights) {
  const auto expect_refused = [](const std::string& option, const std::string& value) {
    EXPECT_THAT([&] { make_optimizer(Spec::parse("adamw:" + option + "=" + value)); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr(option + " is " + value)));
  };
  for (const char* option : {"weight_decay", "clip_gradient"})
    for (const char* value : {"nan", "inf", "-1"}) expect_refused(option, value);
  for (const char* value : {"nan", "inf"}) expect_refused("rescale", value);
  make_optimizer(Spec::parse("sgd:rescale=-1,weight_decay=1"));
}

struct UpdateCall {
  std::unique_ptr<Optimizer> optimizer;
  Preparation preparation{.rescale = 0.5, .clip_gradient = 0.4, .weight_decay = 0.01};
  UpdateStep step{0.1, 3};
};

// Inputs: the gradients. Outputs: each key's weight and states.
template <class Update>
void with_arrays(const UpdateCall& call, std::span<const Tensor> in, std::span<const Tensor> out,
                 const Update& update) {
  const std::size_t arrays = 1 + call.optimizer->state_names().size();
  std::vector<std::vector<float*>> states;
  std::vector<DeviceUpdate> updates;
  for (; !out.empty(); in = in.subspan(1), out = out.subspan(arrays)) {
    for (std::vector<float*>& own = states.emplace_back(); const Tensor& state : out.subspan(1, arrays - 1))
      own.push_back(state.as<float>());
    updates.push_back({{.count = out[0].size(),
                        .gradient = in[0].as<float>(),
                        .weight = out[0].as<float>(),
                        .state = states.back().data()},
                       call.step});
    updates.back().step.decay_factor = static_cast<double>(updates.size() % 3);
  }
  update(updates);
}

TEST(Optimizer, CudaEqualsTheCpu) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  const Kernel kernel{
      "update",
      [](const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void* a) {
        const auto& call = *static_cast<const UpdateCall*>(a);
        with_arrays(call, in, out, [&](const std::vector<DeviceUpdate>& updates) {
          for (const auto& [arrays, step] : updates) {
            std::vector<float> gradient(arrays.gradient, arrays.gradient + arrays.count);
            Tile<float> tile = arrays;
            tile.gradient = gradient.data();
            Preparation preparation = call.preparation;
            preparation.weight_decay *= step.decay_factor;
            preparation.apply(tile.gradient, tile.weight, tile.count);
            call.optimizer->update(tile, step);
          }
        });
      },
      [](const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out, const void* a) {
        const auto& call = *static_cast<const UpdateCall*>(a);
        with_arrays(call, in, out, [&](const std::vector<DeviceUpdate>& updates) {
          call.optimizer->update_cuda(updates, call.preparation, context.device, context.native_stream);
        });
      }};
  constexpr int kKeys = 100;  // more than one launch takes
  for (const auto& [name, factory] : optimizer_catalog().entries()) {
    SCOPED_TRACE(name);
    const auto call = std::make_shared<UpdateCall>();
    call->optimizer = make_optimizer(Spec::parse(name));
    std::vector<NDArray> gradients, gradients_there, here, there;
    for (int key = 0; key < kKeys; ++key) {
      const Shape shape{key % 10 == 9 ? 0 : key == 5 ? 100003 : 1 + 37 * key};
      gradients.emplace_back(shape);
      kernels::fill_normal(gradients.back(), 0, 1, 1000 + key);
      gradients_there.push_back(gradients.back().to(Device("cuda:0")));
      for (std::size_t i = 0; i <= call->optimizer->state_names().size(); ++i) {
        here.emplace_back(shape);
        kernels::fill_uniform(here.back(), 0.5, 1, 2 + i);
        there.push_back(here.back().to(Device("cuda:0")));
      }
    }
    const auto update = [&](std::vector<NDArray> read, const std::vector<NDArray>& arrays) {
      read.insert(read.end(), arrays.begin(), arrays.end());
      launch(kernel, read, arrays, call);
    };
    update(gradients, here);
    update(gradients_there, there);
    for (std::size_t i = 0; i < here.size(); ++i) {
      const std::vector<float> expected = here[i].to_vector<float>(), actual = there[i].to_vector<float>();
      for (std::size_t k = 0; k < expected.size(); ++k) ASSERT_NEAR(actual[k], expected[k], 1e-5) << i << ' ' << k;
    }
  }
}

TEST(Optimizer, TypedFormsBecomeSpecs) {
  const Spec spec =
      optim::SGD{.lr = 0.05, .momentum = 0.9, .nesterov = true, .schedule = {.form = "linear", .examples = 300000}};
  EXPECT_EQ(spec.name, "nesterov");
  const Spec again = Spec::parse(spec.text());
  EXPECT_EQ(again.options.get("lr", 0.0), 0.05);
  EXPECT_EQ(again.options.get("schedule_examples", std::int64_t{0}), 300000);
}

}  // namespace
}  // namespace paceline

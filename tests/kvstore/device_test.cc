// Modes local and device: gradients of several devices of one process.
#include <gtest/gtest.h>
#include <paceline/error.h>
#include <paceline/kernel.h>
#include <paceline/kvstore.h>

#include <algorithm>
#include <array>
#include <random>

#include "failed_array.h"
#include "local/local.h"

namespace paceline::test {
namespace {

constexpr int kDevices = 3, kElements = 1000;

std::vector<float> random_values(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(kElements);
  for (float& value : values) value = normal(random);
  return values;
}

std::shared_ptr<KVStore> store_of(const std::string& mode, Engine& engine) {
  StoreOptions options;
  options.engine = &engine;
  return KVStore::create(mode, options);
}

struct Setting {
  bool backwards = false;  // the order in which the devices push
  Device weights = {};     // where they lie
  DeviceKind pushing = DeviceKind::kSim;
  const char* optimizer = "momentum:lr=0.1,momentum=0.9";
  bool shared = false;  // the store keeps them in the array that they came in
};

// Each device pushes gradients of its own in every step; the weights that each device got in the end.
std::vector<std::vector<float>> train(const std::string& mode, Engine& engine, const Setting& setting = {}) {
  const auto store = store_of(mode, engine);
  std::vector<Device> devices;
  for (int d = 0; d < kDevices; ++d) devices.emplace_back(setting.pushing, d);
  if (setting.backwards) std::reverse(devices.begin(), devices.end());
  const NDArray own = NDArray::from(random_values(1), Shape{10, 100}, setting.weights, engine);
  store->init({{.key = "w", .value = own, .shared = setting.shared},
               {"statistic", NDArray::zeros(Shape{1}, DType::kFloat32, setting.weights, engine), true}});
  store->set_optimizer(Spec::parse(setting.optimizer));
  std::vector<NDArray> weights;
  for (const Device& device : devices) weights.emplace_back(Shape{10, 100}, DType::kFloat32, device, engine);
  const NDArray host(Shape{kElements}, DType::kFloat32, {}, engine);
  const NDArray statistic(Shape{1}, DType::kFloat32, {}, engine);
  for (unsigned step = 0; step < 8; ++step) {
    std::vector<PushItem> pushes;
    std::vector<PullItem> pulls;
    for (std::size_t d = 0; d < devices.size(); ++d) {
      const auto index = static_cast<unsigned>(devices[d].index);
      const NDArray gradient = NDArray::from(random_values(100 * step + index), Shape{10, 100}, devices[d], engine);
      if (step > 0) kernels::axpy(0.01, weights[d], gradient);
      pushes.push_back({"w", gradient});
      pushes.push_back({"statistic", NDArray::full(Shape{1}, index, DType::kFloat32, devices[d], engine)});
      pulls.push_back({"w", weights[d]});
    }
    pulls.push_back({"w", host});
    pulls.push_back({"statistic", statistic});
    store->push_pull(pushes, pulls, 32);
    store->step_end();
  }
  EXPECT_EQ(statistic.item<float>(), 1);  // the mean of 0, 1 and 2
  EXPECT_EQ(store->report().pushes, 8);   // one update a step
  EXPECT_EQ(own.to_vector<float>() == host.to_vector<float>(), setting.shared);
  std::vector<std::vector<float>> result;
  for (const NDArray& weight : weights) result.push_back(weight.to_vector<float>());
  result.push_back(host.to_vector<float>());
  store->finish();
  return result;
}

TEST(Devices, SumsAreBitwiseTheSameUnderBothEnginesAndInEveryOrder) {
  const auto serial = make_serial_engine();
  const auto expected = train("device", *serial);
  for (const auto& weights : expected) EXPECT_EQ(weights, expected.front());
  EXPECT_NE(expected.front(), random_values(1));
  for (const char* mode : {"device", "local"}) {
    SCOPED_TRACE(mode);
    EXPECT_EQ(train(mode, *serial), expected);
    EXPECT_EQ(train(mode, *serial, {.backwards = true}), expected);
    for (int run = 0; run < 3; ++run) {
      const auto threaded = make_threaded_engine();
      EXPECT_EQ(train(mode, *threaded), expected);
    }
  }
}

TEST(Devices, WeightsOnADeviceAreTheSameBitsAsOnTheCpu) {
  const auto serial = make_serial_engine();
  for (const char* optimizer :
       {"sgd:lr=0.1,rescale=0.5,clip_gradient=0.3,weight_decay=0.01", "momentum:lr=0.1,momentum=0.9",
        "adamw:lr=0.01,schedule=linear,schedule_examples=200", "assign"}) {
    SCOPED_TRACE(optimizer);
    const auto expected = train("local", *serial, {.optimizer = optimizer});
    for (const char* mode : {"local", "device", "nccl"}) {
      SCOPED_TRACE(mode);
      const auto threaded = make_threaded_engine();
      EXPECT_EQ(train(mode, *threaded, {.weights = Device("sim:1"), .optimizer = optimizer}), expected);
      for (const char* shared : {"cpu", "sim:1"})
        EXPECT_EQ(train(mode, *threaded, {.weights = Device(shared), .optimizer = optimizer, .shared = true}),
                  expected);
    }
  }
}

TEST(LocalStore, SharedWeightsAreNeverCopied) {
  const auto engine = make_threaded_engine();
  const NDArray one = NDArray::full(Shape{6}, 1, DType::kFloat32, {}, *engine);
  for (const bool in_place : {true, false}) {
    SCOPED_TRACE(in_place);
    StoreOptions options;
    options.engine = engine.get();
    const auto store =
        std::make_unique<KVStore>(make_local_backend(options, {.updates_in_place = in_place}), Spec{"local", {}});
    const NDArray both = NDArray::zeros(Shape{12}, DType::kFloat32, {}, *engine);
    const NDArray shared = both.narrow(0, 0, 6), beside = both.narrow(0, 6, 12);
    store->init({{.key = "w", .value = shared, .shared = true}});
    store->set_optimizer(optim::SGD{.lr = 1, .momentum = 0.5});
    store->push("w", one);
    EXPECT_EQ(shared.to_vector<float>(), std::vector<float>(6, in_place ? -1 : 0));
    const StoreState state = store->save();
    store->push_pull({{"w", one}}, {{"w", beside}, {"w", shared.view({2, 3})}});
    EXPECT_EQ(both.to_vector<float>(), std::vector<float>(12, -2.5));
    store->load(state);
    EXPECT_EQ(shared.to_vector<float>(), std::vector<float>(6, -1));
    shared.fill(5);
    store->push_pull({{"w", one}}, {{"w", beside}});
    EXPECT_EQ(beside.to_vector<float>(), std::vector<float>(6, in_place ? 3.5 : -2.5));
    store->finish();
  }
}

TEST(Devices, WeightsOnCudaFollowTheCpu) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread reads the environment now
  setenv("PACELINE_CUDA_DEVICES", "4", 0);  // one GPU is enough
  if (device_count(DeviceKind::kCuda) < kDevices)
    GTEST_SKIP() << "needs " << kDevices << " CUDA devices, which may be logical ones, found "
                 << device_count(DeviceKind::kCuda);
  const auto serial = make_serial_engine();
  for (const char* optimizer : {"sgd:lr=0.1,clip_gradient=0.3,weight_decay=0.01", "adam:lr=0.01", "assign"}) {
    SCOPED_TRACE(optimizer);
    const auto expected = train("local", *serial, {.optimizer = optimizer});
    for (const char* mode : {"local", "device"}) {
      SCOPED_TRACE(mode);
      const auto threaded = make_threaded_engine();
      const auto actual =
          train(mode, *threaded, {.weights = Device("cuda:1"), .pushing = DeviceKind::kCuda, .optimizer = optimizer});
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t d = 0; d < actual.size(); ++d)
        for (std::size_t i = 0; i < actual[d].size(); ++i) ASSERT_NEAR(actual[d][i], expected[d][i], 1e-4);
    }
  }
}

// Training that is saved on one side and goes on at the other.
TEST(Devices, StateMovesBetweenDevicesAndTheCpu) {
  const auto engine = make_threaded_engine();
  const auto run = [&](Device first, Device second) {
    StoreState state;
    std::vector<float> result;
    for (const Device& device : {first, second}) {
      const auto store = store_of("local", *engine);
      const NDArray weight = NDArray::from(random_values(1), Shape{kElements}, device, *engine);
      store->init({{"w", weight}});
      store->set_optimizer(Spec::parse("adam:lr=0.05"));
      if (!state.arrays.empty()) store->load(state);
      for (unsigned step = 0; step < 3; ++step)
        store->push_pull({{"w", NDArray::from(random_values(10 + step), Shape{kElements}, device, *engine)}},
                         {{"w", weight}}, 32);
      EXPECT_EQ(store->report().pushes, 3);
      state = store->save();
      result = weight.to_vector<float>();
      store->finish();
    }
    return result;
  };
  const auto expected = run({}, {});
  EXPECT_EQ(run(Device("sim:2"), {}), expected);
  EXPECT_EQ(run({}, Device("sim:2")), expected);
  EXPECT_EQ(run(Device("sim:0"), Device("sim:3")), expected);
}

TEST(Devices, AnotherOptimizerBeginsAnewAndUnknownStateIsRefused) {
  const auto engine = make_threaded_engine();
  const auto store = store_of("device", *engine);
  const NDArray weight = NDArray::zeros(Shape{2}, DType::kFloat32, Device("sim:0"), *engine);
  const NDArray one = NDArray::full(Shape{2}, 1, DType::kFloat32, Device("sim:0"), *engine);
  store->init({{"w", weight}});
  store->set_optimizer(optim::SGD{.lr = 1, .momentum = 0.5});
  store->push_pull({{"w", one}}, {{"w", weight}});
  const StoreState with_momentum = store->save();
  store->set_optimizer(optim::SGD{.lr = 1});
  store->set_optimizer(optim::SGD{.lr = 1, .momentum = 0.5});
  store->set_learning_rate(2);
  store->push_pull({{"w", one}}, {{"w", weight}});
  EXPECT_EQ(weight.to_vector<float>(), std::vector<float>(2, -1 - 2));  // no momentum of the first step
  store->set_optimizer(optim::SGD{.lr = 1});
  EXPECT_THROW(store->load(with_momentum), InvalidArgument);
  EXPECT_THROW(store->set_optimizer(Spec{"no such", {}}), InvalidArgument);
  store->finish();
}

TEST(Devices, OneUpdateOfTheSum) {
  const auto engine = make_threaded_engine();
  for (const char* mode : {"device", "local"}) {
    const auto store = store_of(mode, *engine);
    store->init({{"w", NDArray::zeros(Shape{2}, DType::kFloat64, {}, *engine)}});
    store->set_optimizer(optim::SGD{.lr = 1, .momentum = 0.5});
    const auto on = [&](int device, double value) {
      return NDArray::full(Shape{2}, value, DType::kFloat64, Device(DeviceKind::kSim, device), *engine);
    };
    const NDArray out(Shape{2}, DType::kFloat64, Device(DeviceKind::kSim, 2), *engine);
    store->push_pull({{"w", on(0, 1)}, {"w", on(3, 2)}}, {{"w", out}});
    EXPECT_EQ(out.to_vector<double>(), std::vector<double>(2, -3));
    // A device may be without a batch.
    store->push_pull({{"w", on(3, 2)}}, {{"w", out}});
    EXPECT_EQ(out.to_vector<double>(), std::vector<double>(2, -3 - (0.5 * 3 + 2)));
    EXPECT_THROW(store->push_pull({{"w", on(0, 1)}, {"w", NDArray::zeros(Shape{3})}}, {}), InvalidArgument);
    store->finish();
  }
}

TEST(LocalStore, AFailedGradientLeavesSharedWeightsAndOtherKeysAlone) {
  const auto engine = make_threaded_engine();
  const auto store = store_of("local", *engine);
  const auto array = [&](double value) { return NDArray::full(Shape{3}, value, DType::kFloat32, {}, *engine); };
  const NDArray a = array(0), b = array(0), failed = array(0);
  store->init({{.key = "a", .value = a, .shared = true}, {.key = "b", .value = b, .shared = true}});
  store->set_optimizer(optim::SGD{.lr = 1, .momentum = 0.5});
  fail(failed);
  store->push_pull({{"a", failed}, {"b", array(1)}}, {{"a", a}, {"b", b}});
  EXPECT_THROW(a.wait(), Error);
  EXPECT_EQ(b.to_vector<float>(), std::vector<float>(3, -1));
  store->push_pull({{"a", array(1)}, {"b", array(1)}}, {{"a", a}, {"b", b}});
  EXPECT_EQ(a.to_vector<float>(), std::vector<float>(3, -1));
  EXPECT_EQ(b.to_vector<float>(), std::vector<float>(3, -2.5));
  store->finish();
}

TEST(LocalStore, AGradientWhoseKernelFailedOnItsDeviceLeavesTheWeightsAlone) {
  for (const auto& engine : {make_serial_engine(), make_threaded_engine()}) {
    const auto store = store_of("local", *engine);
    const auto on = [&](Device device, double value) {
      return NDArray::full(Shape{4}, value, DType::kFloat32, device, *engine);
    };
    store->init({{"w", on({}, 0)}});
    store->set_optimizer(optim::SGD{.lr = 1});
    const NDArray failed = on(Device("sim:0"), 5), out = on({}, 7);
    launch_host("broken", {}, std::span(&failed, 1), [](auto&&...) { throw IoError("planted"); });
    store->push("w", failed);
    store->pull("w", out);
    EXPECT_THROW(out.wait(), IoError);
    store->push("w", on(Device("sim:0"), 1));
    store->pull("w", out);
    EXPECT_EQ(out.to_vector<float>(), std::vector<float>(4, -1));
    store->finish();
  }
}

TEST(LocalStore, EveryOutputOfACallHoldsTheWeightsAfterIt) {
  for (const auto& engine : {make_serial_engine(), make_threaded_engine()}) {
    const auto store = store_of("local", *engine);
    const auto array = [&](double value) { return NDArray::full(Shape{3}, value, DType::kFloat64, {}, *engine); };
    store->init({{"pushed", array(0)}, {"other", array(7)}, {"replaced", array(0)}, {"statistic", array(0), true}});
    store->set_optimizer(optim::SGD{.lr = 1, .momentum = 0.5});
    const NDArray gradient = array(2), first = array(0), second = array(0), other = array(0), replaced = array(2);
    const NDArray statistic = array(4);
    const auto values = [](double value) { return std::vector<double>(3, value); };
    for (const double expected : {-2.0, -5.0, -8.5}) {
      store->push_pull(
          {{"pushed", gradient}, {"replaced", replaced}, {"statistic", statistic}},
          {{"other", other}, {"pushed", first}, {"replaced", replaced}, {"pushed", second}, {"statistic", statistic}});
      EXPECT_EQ(first.to_vector<double>(), values(expected));
      EXPECT_EQ(second.to_vector<double>(), values(expected));
      EXPECT_EQ(other.to_vector<double>(), values(7));
      EXPECT_EQ(replaced.to_vector<double>(), values(expected));
      EXPECT_EQ(statistic.to_vector<double>(), values(4));
      replaced.copy_from(gradient);
    }
    store->push("pushed", gradient);
    EXPECT_EQ(first.to_vector<double>(), values(-8.5));
    EXPECT_THROW(store->push_pull({{"pushed", gradient}}, {{"pushed", NDArray::zeros(Shape{2})}}), InvalidArgument);
    store->pull("pushed", first);
    EXPECT_EQ(first.to_vector<double>(), values(-8.5 - 3.75));  // the push, but not that of the refused call
    store->finish();
  }
}

}  // namespace
}  // namespace paceline::test

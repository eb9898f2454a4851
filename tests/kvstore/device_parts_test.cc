// Large keys of an accelerator go to the servers, and come back, part by part.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/engine_observer.h>
#include <support/cluster_in_process.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>

namespace paceline::test {
namespace {

constexpr std::int64_t kElements = (3 << 20) / sizeof(float);  // three parts

// Holds a task of a kind back, just before it begins, until tasks of another kind were complete.
class Gate final : public EngineObserver {
 public:
  struct Kind {
    std::string name;
    Lane lane;
    bool operator()(const TaskInfo& info) const { return info.name == name && info.lane == lane; }
  };
  // The `number`th of `held`, from 1, until one of `awaited` is complete.
  void hold(const Kind& held, int number, const Kind& awaited) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    awaited_ = awaited;
    left_ = number;
    complete_ = 0;
    passed_ = false;
  }
  bool passed() {
    const std::lock_guard lock(mutex_);
    return passed_;
  }
  void on_start(const TaskEvent& event) override {
    std::unique_lock lock(mutex_);
    if (!held_(event.info) || --left_ != 0) return;
    passed_ = changed_.wait_for(lock, std::chrono::seconds(20), [this] { return complete_ > 0; });
  }
  void on_finish(const TaskEvent& event) override {
    const std::lock_guard lock(mutex_);
    if (!awaited_(event.info)) return;
    ++complete_;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Kind held_{"", Lane::kCompute}, awaited_{"", Lane::kCompute};
  int left_ = 0, complete_ = 0;
  bool passed_ = false;
};

class DeviceParts : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (device_count(GetParam()) == 0) GTEST_SKIP() << "no such device here";
  }
  Device device() const { return {GetParam(), 0}; }
  static NDArray ramp(float factor, Device device, Engine& engine) {
    std::vector<float> values(kElements);
    std::iota(values.begin(), values.end(), 0.0f);
    for (float& value : values) value *= factor;
    return NDArray::from(values, {kElements}, {}, engine).to(device);
  }
};

TEST_P(DeviceParts, TheFirstIsSentBeforeTheLastIsCopied) {
  // One thread for requests, so that they start in the order in which the store makes them.
  const auto one_at_a_time = make_threaded_engine({.io_threads = 1});
  Engine& engine = *one_at_a_time;
  ClusterInProcess cluster({.workers = 1, .engine = &engine});
  cluster.run([&](int, KVStore& store) {
    const auto gate = std::make_shared<Gate>();
    engine.add_observer(gate);
    const NDArray weight = NDArray::zeros({kElements}, DType::kFloat32, device(), engine);
    store.init({{"w", weight}});
    store.set_optimizer(optim::SGD{.lr = 1});
    const NDArray gradient = ramp(1, device(), engine), out = weight.clone();
    gradient.wait();
    out.wait();
    gate->hold({"copy", Lane::kCopyOut}, 3, {"store.push", Lane::kCommunication});
    store.push("w", gradient);
    engine.wait_all();
    EXPECT_TRUE(gate->passed());
    gate->hold({"store.pull", Lane::kCommunication}, 3, {"copy", Lane::kCopyIn});
    store.pull("w", out);
    out.wait();
    EXPECT_TRUE(gate->passed());
    EXPECT_EQ(out.to_vector<float>(), ramp(-1, {}, engine).to_vector<float>());
  });
}

// Beside keys that go as a whole, of which some are on the host.
TEST_P(DeviceParts, AllModesGetTheSameWeights) {
  for (const char* mode : {"dist_sync", "dist_async:staleness=none,bound=2", "dist_sync:compression=bf16"}) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster({.mode = mode, .serial = false});
    std::vector<std::vector<float>> results(2);
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray weight = NDArray::zeros({kElements}, DType::kFloat32, device(), engine);
      const NDArray small = NDArray::zeros({5}, DType::kFloat32, device(), engine);
      const NDArray host = NDArray::zeros({kElements}, DType::kFloat32, {}, engine);
      store.init({{"w", weight}, {"small", small}, {"host", host}});
      store.set_optimizer(optim::SGD{.lr = 1});
      for (int step = 1; step <= 2; ++step) {
        const auto factor = static_cast<float>(step);
        const NDArray gradient = ramp(factor, device(), engine), on_host = ramp(factor, {}, engine);
        store.push_pull(
            {{"w", gradient}, {"small", NDArray::full({5}, 1, DType::kFloat32, device(), engine)}, {"host", on_host}},
            {{"host", host}, {"small", small}, {"w", weight}}, 8);
        store.step_end();
      }
      store.barrier();
      store.pull("w", weight);
      store.pull("host", host);
      results[static_cast<std::size_t>(worker)] = weight.to_vector<float>();
      EXPECT_EQ(host.to_vector<float>(), weight.to_vector<float>());
    });
    EXPECT_EQ(results[0], results[1]);
    EXPECT_LT(results[0].back(), -1e6f);
  }
}

// A failure of the whole key is one of its parts, and the other way round, until the next push.
TEST_P(DeviceParts, AndTheWholeKeyShareTheirFailures) {
  ClusterInProcess cluster({.mode = "dist_async:staleness=none", .workers = 1, .serial = false});
  cluster.run([&](int, KVStore& store) {
    Engine& engine = cluster.engine(0);
    const auto failed = [&](Device on) {
      const NDArray array(Shape{kElements}, DType::kFloat32, {}, engine);
      engine.push({"test.fail", {}}, {}, std::array{array.variable()},
                  [](TaskContext&) { throw InvalidArgument("no gradient"); });
      return array.to(on);
    };
    const NDArray there = NDArray::zeros({kElements}, DType::kFloat32, device(), engine);
    const NDArray here = NDArray::zeros({kElements}, DType::kFloat32, {}, engine);
    store.init({{"w", there}});
    store.set_optimizer(optim::SGD{.lr = 1});
    float pushed = 0;
    // Whether what fails, is pulled and then goes well does so in parts.
    for (const auto& [fails, pulls, pushes] : {std::array{true, false, true},
                                               {false, true, true},
                                               {false, true, false},
                                               {true, false, false},
                                               {true, true, false},
                                               {false, false, true}}) {
      SCOPED_TRACE(testing::Message() << fails << pulls << pushes);
      const auto out = [&](bool parts) { return (parts ? there : here).clone(); };
      const NDArray before = out(pulls), after = out(pulls), after_all = out(!pulls);
      store.push("w", failed(fails ? device() : Device{}));
      store.pull("w", before);
      EXPECT_THROW(before.wait(), InvalidArgument);
      store.push("w", ramp(1, pushes ? device() : Device{}, engine));
      store.pull("w", after);
      store.pull("w", after_all);
      const auto expected = ramp(-++pushed, {}, engine).to_vector<float>();
      EXPECT_EQ(after.to_vector<float>(), expected);
      EXPECT_EQ(after_all.to_vector<float>(), expected);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(On, DeviceParts, testing::Values(DeviceKind::kSim, DeviceKind::kCuda),
                         [](const auto& info) { return info.param == DeviceKind::kSim ? "sim" : "cuda"; });

}  // namespace
}  // namespace paceline::test

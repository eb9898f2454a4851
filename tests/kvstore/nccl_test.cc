// Modes local and device on several GPUs, whose arrays NCCL moves. On one GPU these are skipped; the emulated devices
// have an NCCL of their own, which counts and fails when it is told to.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/detail/physical_device.h>
#include <paceline/error.h>
#include <paceline/kvstore.h>

#include <random>
#include <set>

namespace paceline::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kElements = 3000;
constexpr int kRemoteError = 6;

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    if (gpus() < 2) GTEST_SKIP() << "needs 2 GPUs, found " << gpus();
    refuse(nullptr);
    library_ = dlopen("libnccl.so.2", RTLD_NOW);
    if (!library_) GTEST_SKIP() << "there is no NCCL: " << dlerror();
    issued_ = reinterpret_cast<int (*)()>(dlsym(library_, "emulated_nccl_issued"));
    fail_ = reinterpret_cast<void (*)(int, int, bool)>(dlsym(library_, "emulated_nccl_fail"));
  }
  void TearDown() override {
    if (fail_) fail_(-1, 0, false);
    refuse(nullptr);
  }

  static std::size_t gpus() {
    std::set<int> physical;
    for (int d = 0; d < device_count(DeviceKind::kCuda); ++d) physical.insert(detail::physical_cuda_device(d));
    return physical.size();
  }
  static void refuse(const char* by) { by ? setenv("PACELINE_NCCL", by, 1) : unsetenv("PACELINE_NCCL"); }
  // Collectives since the last call.
  int issued() {
    const int before = issued_before_;
    issued_before_ = issued_ ? issued_() : 0;
    return issued_before_ - before;
  }

  std::shared_ptr<KVStore> store() {
    StoreOptions options;
    options.engine = engine_.get();
    return KVStore::create("device", options);
  }
  NDArray array(unsigned seed, int device) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(kElements);
    for (float& value : values) value = normal(random);
    return NDArray::from(values, Shape{kElements}, {}, *engine_).to({DeviceKind::kCuda, device});
  }

  // Weights of two keys, on every device and on the CPU, after some steps.
  std::vector<std::vector<float>> train(const std::vector<int>& devices, int weights) {
    const auto kv = store();
    kv->init({{"a", array(1, weights)}, {"b", array(2, weights)}, {"mean", array(3, weights), true}});
    kv->set_optimizer(optim::SGD{.lr = 0.1, .momentum = 0.9});
    std::vector<PullItem> pulls;
    const NDArray host(Shape{kElements}, DType::kFloat32, {}, *engine_);
    for (const char* key : {"a", "b", "mean"}) {
      for (const int d : devices) pulls.push_back({key, array(4, d)});
      if (*key == 'b') pulls.push_back({key, host});
    }
    for (unsigned step = 0; step < 4; ++step) {
      std::vector<PushItem> pushes;
      for (const int d : devices)
        for (const char* key : {"a", "b", "mean"})
          pushes.push_back({key, array(100 * step + 10 * static_cast<unsigned>(d) + static_cast<unsigned>(*key), d)});
      kv->push_pull(pushes, pulls, 32);
      kv->step_end();
    }
    std::vector<std::vector<float>> result;
    for (const PullItem& pull : pulls) result.push_back(pull.out.to_vector<float>());
    kv->finish();
    return result;
  }

  const std::unique_ptr<Engine> engine_ = make_threaded_engine();
  void* library_ = nullptr;
  int (*issued_)() = nullptr;
  int issued_before_ = 0;
  void (*fail_)(int, int, bool) = nullptr;
};

TEST_F(Nccl, TwoCudaDevicesGetTheSameBitsAsByCopies) {
  refuse("0");
  issued();
  const auto expected = train({0, 1}, 1);
  EXPECT_EQ(issued(), 0);
  refuse(nullptr);
  EXPECT_EQ(train({0, 1}, 1), expected);
  EXPECT_EQ(train({1, 0}, 1), expected);
  if (issued_) {
    EXPECT_EQ(issued(), 2 * 4 * (3 + 2));  // of each step three sums; "b" is pulled to the CPU too, which is by copies
  }
  EXPECT_EQ(expected[0], expected[1]);
}

TEST_F(Nccl, ThreeCudaDevicesAgreeWithCopiesAndAmongThemselves) {
  if (gpus() < 3) GTEST_SKIP() << "needs 3 GPUs, found " << gpus();
  refuse("0");
  const auto expected = train({0, 1, 2}, 0);
  refuse("");
  issued();
  for (int run = 0; run < 3; ++run) {
    const auto actual = train({2, 0, 1}, 0);
    if (issued_) {
      EXPECT_EQ(issued(), 4 * (3 + 2));
    }
    for (std::size_t i = 0; i < actual.size(); ++i)
      for (std::size_t k = 0; k < actual[i].size(); ++k) ASSERT_NEAR(actual[i][k], expected[i][k], 1e-4);
    EXPECT_EQ(actual[0], actual[1]);
    EXPECT_EQ(actual[0], actual[2]);
  }
  // Gradients of two, weights on the third: only the weights go together.
  train({0, 1}, 2);
  if (issued_) {
    EXPECT_EQ(issued(), 4 * 2);
  }
}

TEST_F(Nccl, CudaDevicesWithoutTheLibraryUseCopies) {
  refuse("0");
  const auto expected = train({0, 1}, 0);
  refuse("libno_such_nccl.so.2");
  issued();
  EXPECT_EQ(train({0, 1}, 0), expected);
  EXPECT_EQ(issued(), 0);
}

TEST_F(Nccl, AFailureOnCudaNamesTheKeyAndLeavesOtherWorkAlone) {
  if (!fail_) GTEST_SKIP() << "this NCCL does not fail when it is told to";
  const auto kv = store();
  kv->init({{"a", array(1, 0)}, {"b", array(2, 0)}});
  kv->set_optimizer(optim::SGD{.lr = 0.1});
  const NDArray out = array(4, 1);
  const auto step = [&] {
    kv->push_pull({{"a", array(5, 0)}, {"a", array(6, 1)}, {"b", array(7, 0)}, {"b", array(8, 1)}}, {{"a", out}});
  };
  step();
  out.wait();
  fail_(0, kRemoteError, false);
  step();
  const auto names_it = ThrowsMessage<DeviceError>(
      testing::AllOf(HasSubstr("store.sum"), HasSubstr("key 'a'"), HasSubstr("remote process")));
  EXPECT_THAT([&] { out.wait(); }, names_it);
  step();
  EXPECT_THAT([&] { out.wait(); }, names_it);
  EXPECT_EQ(array(9, 1).to_vector<float>(), array(9, 0).to_vector<float>());
  kv->finish();
}

TEST_F(Nccl, AFailureOnCudaThatShowsLaterFailsTheWeights) {
  if (!fail_) GTEST_SKIP() << "this NCCL does not fail when it is told to";
  const auto kv = store();
  kv->init({{"a", array(1, 0)}, {"b", array(2, 0)}});
  kv->set_optimizer(optim::SGD{.lr = 0.1});
  const NDArray out = array(4, 1);
  fail_(0, kRemoteError, true);
  kv->push_pull({{"a", array(5, 0)}, {"a", array(6, 1)}}, {});
  kv->barrier();  // it would wait forever for what is stuck
  for (int i = 0; i < 2; ++i) {
    kv->pull("a", out);
    EXPECT_THAT([&] { out.wait(); },
                ThrowsMessage<DeviceError>(testing::AllOf(HasSubstr("key 'a'"), HasSubstr("remote process"))));
    kv->push_pull({{"a", array(5, 0)}, {"a", array(6, 1)}}, {});
  }
  EXPECT_THROW(kv->save(), DeviceError);
  kv->finish();
}

// What copies have filled from weights that come of a sum, or will, before NCCL says that the sum is none.
TEST_F(Nccl, AFailureOnCudaThatShowsLaterFailsWhatCopiesFilled) {
  if (!fail_) GTEST_SKIP() << "this NCCL does not fail when it is told to";
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {  // weights on a GPU, weights on the CPU
    const auto kv = store();
    const auto ones = [&](int device) {
      return NDArray::full(Shape{kElements}, 1, dtype, {}, *engine_).to({DeviceKind::kCuda, device});
    };
    kv->init({{"a", ones(0)}, {"b", ones(0)}});
    kv->set_optimizer(optim::SGD{.lr = 0.1});
    const NDArray first(Shape{kElements}, dtype, {}, *engine_), second = ones(0), later = ones(1);
    const NDArray other = first.clone();
    fail_(0, kRemoteError, true);
    kv->push_pull({{"a", ones(0)}, {"a", ones(1)}}, {{"a", first}, {"a", second}, {"b", other}});
    kv->pull("a", later);
    kv->barrier();  // who waits since before the failure may miss it
    for (const NDArray& out : {first, second, later})
      EXPECT_THAT([&] { out.wait(); },
                  ThrowsMessage<DeviceError>(testing::AllOf(HasSubstr("key 'a'"), HasSubstr("remote process"))));
    EXPECT_NO_THROW(other.wait());
    kv->finish();
  }
}

// Weights that a failed sum came into, whichever push comes next and wherever they are.
TEST_F(Nccl, AFailureOnCudaThatShowsLaterIsNotForgottenByAPushOfOneGradient) {
  if (!fail_) GTEST_SKIP() << "this NCCL does not fail when it is told to";
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {  // weights on a GPU, weights on the CPU
    const auto kv = store();
    const auto ones = [&](Device device) { return NDArray::full(Shape{kElements}, 1, dtype, {}, *engine_).to(device); };
    const Device gpu("cuda:0");
    kv->init({{"a", ones(gpu)}, {"b", ones(gpu)}});
    kv->set_optimizer(optim::SGD{.lr = 0.1});
    const NDArray pushed_and_pulled = ones({}), pulled = ones(gpu), other = ones({});
    fail_(0, kRemoteError, true);
    kv->push_pull({{"a", ones(gpu)}, {"a", ones(Device("cuda:1"))}}, {});
    kv->barrier();
    kv->push_pull({{"a", ones(gpu)}}, {{"a", pushed_and_pulled}});
    kv->pull("a", pulled);
    kv->push_pull({{"b", ones(gpu)}}, {{"b", other}});
    for (const NDArray& out : {pushed_and_pulled, pulled})
      EXPECT_THAT([&] { out.wait(); },
                  ThrowsMessage<DeviceError>(testing::AllOf(HasSubstr("key 'a'"), HasSubstr("remote process"))));
    EXPECT_NEAR(other.to_vector<double>().front(), 0.9, 1e-6);
    kv->finish();
  }
}

// Weights on the CPU. Of few tasks, which all wait for the sum, the pushing thread is held back behind the last, until
// the failure has shown: between any two pushes of a call.
TEST_F(Nccl, AFailureOnCudaThatShowsBetweenTwoTasksFailsWhatTheyFill) {
  if (!fail_) GTEST_SKIP() << "this NCCL does not fail when it is told to";
  for (std::int64_t tasks = 1; tasks <= 8; ++tasks) {
    SCOPED_TRACE(tasks);
    const auto engine = make_threaded_engine({.queue_limit = tasks});
    StoreOptions options;
    options.engine = engine.get();
    const auto kv = KVStore::create("device", options);
    const auto ones = [&](Device device) {
      return NDArray::full(Shape{kElements}, 1, DType::kFloat64, {}, *engine).to(device);
    };
    const Device first("cuda:0"), second("cuda:1");
    kv->init({{"a", ones({})}});
    kv->set_optimizer(optim::SGD{.lr = 0.1});
    const std::vector<PushItem> gradients{{"a", ones(first)}, {"a", ones(second)}};
    const std::vector<PullItem> outs{{"a", ones({})}, {"a", ones(second)}, {"a", ones(first)}};
    engine->wait_all();
    fail_(0, kRemoteError, true);
    kv->push_pull(gradients, outs);
    kv->barrier();
    for (const PullItem& item : outs)
      EXPECT_THAT([&] { item.out.wait(); }, ThrowsMessage<DeviceError>(HasSubstr("remote process")))
          << item.out.device().name();
    kv->finish();
  }
}

// The weights go to other devices than the gradients come from, by another group, which has not failed.
TEST_F(Nccl, AFailureOnCudaThatShowsLaterFailsWhatAnotherGroupSpread) {
  if (!fail_) GTEST_SKIP() << "this NCCL does not fail when it is told to";
  if (gpus() < 3) GTEST_SKIP() << "needs 3 GPUs, found " << gpus();
  const auto kv = store();
  kv->init({{"a", array(1, 0)}});
  kv->set_optimizer(optim::SGD{.lr = 0.1});
  const std::vector<PullItem> outs{{"a", array(2, 1)}, {"a", array(3, 2)}};
  const auto step = [&] { kv->push_pull({{"a", array(5, 0)}, {"a", array(6, 1)}}, outs); };
  issued();
  step();
  engine_->wait_all();
  EXPECT_EQ(issued(), 2);
  fail_(0, kRemoteError, true);
  step();
  kv->barrier();
  for (const PullItem& item : outs)
    EXPECT_THAT([&] { item.out.wait(); }, ThrowsMessage<DeviceError>(HasSubstr("remote process")));
  kv->finish();
}

}  // namespace
}  // namespace paceline::test

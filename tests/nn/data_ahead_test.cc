// Batches lie in pinned memory and are copied to an accelerator while it computes.
#include <gtest/gtest.h>
#include <paceline/engine_observer.h>
#include <paceline/image.h>
#include <paceline/kernel.h>
#include <paceline/manifest.h>
#include <paceline/memory_iterator.h>
#include <paceline/nn.h>
#include <paceline/record_loader.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <numeric>

#include "memory_pool.h"

namespace paceline {
namespace {

constexpr std::int64_t kRecords = 40, kBatch = 4;

class DataAhead : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    DatasetWriter writer(folder_ + "/points", 1);
    for (int i = 0; i < kRecords; ++i) {
      const auto label = static_cast<float>(i % 2);
      writer.write(0, i, pack_image_record({&label, 1}, 0, str("P5 1 1 255\n", static_cast<char>('0' + i))));
    }
    Manifest manifest;
    manifest.encoding = "raw";
    manifest.image = {1, 1, 1};
    manifest.class_labels = true;
    manifest_ = writer.finish(manifest);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static nn::Module network() { return nn::Sequential(nn::Flatten(), nn::Dense(2)); }

  const std::string folder_ =
      testing::TempDir() + "paceline_data_ahead_" + testing::UnitTest::GetInstance()->current_test_info()->name();
  std::string manifest_;
};

// Two epochs of kRecords records from `pinned`, which are delivered to cuda:0, and from `plain`, which are not.
void expect_pinned_and_the_same(DataIterator& plain, DataIterator& pinned) {
  const Device device("cuda:0");
  pinned.deliver_to(device);
  detail::MemoryPool& pool = detail::memory_pool(device, detail::MemoryKind::kPinned);
  const std::int64_t before = pool.statistics().allocations;
  for (int epoch = 0; epoch < 2; ++epoch) {
    plain.start(epoch);
    pinned.start(epoch);
    Batch expected, actual;
    while (plain.next(expected)) {
      ASSERT_TRUE(pinned.next(actual));
      EXPECT_EQ(actual.data.device(), Device());
      EXPECT_EQ(actual.data.to(device).to_vector<float>(), expected.data.to_vector<float>());
      EXPECT_EQ(actual.label.to_vector<int>(), expected.label.to_vector<int>());
    }
    EXPECT_FALSE(pinned.next(actual));
  }
  const detail::MemoryPoolStatistics after = pool.statistics();
  EXPECT_GE(after.allocations - before, 2 * 2 * kRecords / kBatch);
  EXPECT_LT(after.peak_bytes_in_use, 64 << 10);  // handed out again and again
}

TEST_F(DataAhead, RecordsForCudaArePinnedAndHoldTheSame) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  RecordLoader plain(manifest_, {.batch = kBatch}), pinned(manifest_, {.batch = kBatch});
  expect_pinned_and_the_same(plain, pinned);
}

TEST_F(DataAhead, ArraysForCudaArePinnedAndHoldTheSame) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  std::vector<float> numbers(kRecords);
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  const NDArray data = NDArray::from(numbers, {kRecords}), label = data.cast(DType::kInt32);
  MemoryIterator plain(data, label, {.batch = kBatch, .shuffle = 7}),
      pinned(data, label, {.batch = kBatch, .shuffle = 7});
  expect_pinned_and_the_same(plain, pinned);
}

TEST_F(DataAhead, ATrainerAsksForItOnCuda) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  const Device device("cuda:0");
  auto kv = KVStore::create("local");
  RecordLoader data(manifest_, {.batch = kBatch, .source = nn::shared_source(kv)});
  nn::Trainer trainer(network(), optim::SGD{.lr = 0.1}, kv, {.device = device});
  detail::MemoryPool& pool = detail::memory_pool(device, detail::MemoryKind::kPinned);
  const std::int64_t before = pool.statistics().allocations;
  for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::softmax_ce);
  EXPECT_GE(pool.statistics().allocations - before, 2 * kRecords / kBatch);
}

// Weights after two epochs of JPEGs in colour, augmented, on cuda:0.
std::vector<float> weights_after(const std::string& manifest, Decoding decoding, bool captured) {
  const Device device("cuda:0");
  auto kv = KVStore::create("local");
  RecordLoader data(manifest, {.batch = kBatch,
                               .shuffle = 3,
                               .source = nn::shared_source(kv),
                               .decoding = decoding,
                               .image = {.random_crop = 2, .random_flip = true}});
  nn::TrainerOptions options;
  options.device = device;
  options.captured = captured;
  nn::Trainer trainer(nn::Sequential(nn::Flatten(), nn::Dense(2)), optim::SGD{.lr = 0.1}, kv, options);
  while (trainer.epoch() < 2)
    for (Batch& batch : trainer.epoch_of(data)) {
      EXPECT_EQ(batch.data.device(), decoding == Decoding::kDevice ? device : Device());
      trainer.step(batch, nn::softmax_ce);
    }
  return trainer.net().parameters().front()->value.to_vector<float>();
}

TEST_F(DataAhead, ATrainerOnCudaLearnsTheSameOfJpegsThatAreDecodedThere) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  DatasetWriter writer(folder_ + "/colours", 1);
  for (int i = 0; i < kRecords; ++i) {
    const auto label = static_cast<float>(i % 2);
    Image image{12, 10, 3, std::vector<std::uint8_t>(360, static_cast<std::uint8_t>(40 + 5 * i))};
    writer.write(0, i, pack_image_record({&label, 1}, 0, ImageCodec().encode(image, ImageEncoding::kJpeg)));
  }
  Manifest manifest;
  manifest.encoding = "jpg";
  manifest.image = {12, 10, 3};
  const std::string path = writer.finish(manifest);
  for (const bool captured : {false, true}) {
    const std::vector<float> expected = weights_after(path, Decoding::kCpu, captured);
    try {
      const std::vector<float> actual = weights_after(path, Decoding::kDevice, captured);
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-2);
    } catch (const NotAvailable& error) {
      GTEST_SKIP() << error.what();
    }
  }
}

// Copies to the device that are complete.
class Copies final : public EngineObserver {
 public:
  explicit Copies(Device device) : device_(device) {}
  void on_start(const TaskEvent&) override {}
  void on_finish(const TaskEvent& event) override {
    if (event.info.device != device_ || event.info.lane != Lane::kCopyIn) return;
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  int count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  bool come_to(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return count_ >= count; });
  }

 private:
  const Device device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

// A step that ends only when the next batch is there.
TEST_F(DataAhead, TheNextBatchArrivesWhileAStepComputes) {
  const Device device("sim:0");
  const auto copies = std::make_shared<Copies>(device);
  default_engine().add_observer(copies);
  auto kv = KVStore::create("local");
  RecordLoader data(manifest_, {.batch = kBatch, .source = nn::shared_source(kv)});
  nn::Trainer trainer(network(), optim::SGD{.lr = 0.1}, kv, {.device = device});
  const NDArray gate({1}, DType::kFloat32, device);
  std::atomic<bool> arrived = false;
  int steps = 0;
  for (Batch& batch : trainer.epoch_of(data)) {
    const bool waits = ++steps == 4;
    if (waits) default_engine().wait_all();
    const int before = copies->count();
    trainer.step(batch, [&](const NDArray& scores, const NDArray& label) {
      if (waits)
        launch_host("wait for the next batch", std::array{scores}, std::array{gate},
                    [&, before](const KernelContext&, std::span<const Tensor>, std::span<const Tensor>) {
                      arrived = copies->come_to(before + 2 * 2);  // data and label of both batches
                    });
      return nn::softmax_ce(scores, label);
    });
  }
  gate.wait();
  EXPECT_TRUE(arrived);
}

}  // namespace
}  // namespace paceline

// Batches whose images a CUDA device decodes equal those of the CPU. The emulated devices have an nvJPEG of their own,
// whose pixels are the CPU's bit for bit, which counts, and which refuses when it is told to.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <paceline/error.h>
#include <paceline/record_loader.h>
#include <turbojpeg.h>

#include <array>
#include <cmath>
#include <functional>
#include <set>

#include "fixtures.h"

enum cudaError_t : int;  // NOLINT(readability-identifier-naming): CUDA's
namespace cuda_emulation {
[[gnu::weak]] void fail_device(int device, cudaError_t status);
}

namespace paceline::test {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

constexpr int kNotInitialized = 1, kNotSupported = 4, kAllocatorFailure = 5;
constexpr unsigned kAllFlags = ~0u;

// Smooth, so that decoders differ in little but rounding; another for each number.
Image picture(int number, int height, int width, int channels) {
  Image image{height, width, channels, {}};
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c)
        image.pixels.push_back(static_cast<std::uint8_t>(
            std::lround(120 + 90 * std::sin(0.07 * x + number + c) * std::cos(0.05 * y + 0.3 * number))));
  return image;
}

std::string cmyk_jpeg() {
  const tjhandle compressor = tjInitCompress();
  const std::vector<unsigned char> inks(24 * 24 * 4, 40);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  EXPECT_EQ(tjCompress2(compressor, inks.data(), 24, 0, 24, TJPF_CMYK, &bytes, &size, TJSAMP_444, 90, 0), 0);
  std::string jpeg(reinterpret_cast<const char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(compressor);
  return jpeg;
}

// Image i is what `image` makes of i, its label i % 10.
std::string write_set(const TemporaryFolder& folder, int count, const std::string& encoding,
                      const std::function<std::string(int)>& image) {
  DatasetWriter writer(folder / "set", 2);
  for (int i = 0; i < count; ++i) {
    const float label = static_cast<float>(i % 10);
    writer.write(i * 2 / count, i, pack_image_record({&label, 1}, static_cast<std::uint64_t>(i), image(i)));
  }
  Manifest manifest;
  manifest.encoding = encoding;
  manifest.image = {24, 32, 3};
  return writer.finish(manifest);
}

std::string encoded(int number, ImageEncoding encoding, int height = 24, int width = 32, int channels = 3) {
  return ImageCodec().encode(picture(number, height, width, channels), encoding, 95);
}

std::vector<Batch> all_batches(RecordLoader& loader, std::int64_t epoch = 0) {
  std::vector<Batch> batches;
  loader.start(epoch);
  for (Batch batch; loader.next(batch); batch = {}) batches.push_back(batch);
  return batches;
}

class DeviceDecoderOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
    for (const char* name : {"libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so.11", "libnvjpeg.so"})
      if (!library_) library_ = dlopen(name, RTLD_NOW);
    if (!library_) GTEST_SKIP() << "there is no nvJPEG: " << dlerror();
    answer_ = reinterpret_cast<void (*)(int, int, unsigned)>(dlsym(library_, "emulated_nvjpeg_answer"));
    decoded_ = reinterpret_cast<int (*)()>(dlsym(library_, "emulated_nvjpeg_decoded"));
    alive_ = reinterpret_cast<int (*)()>(dlsym(library_, "emulated_nvjpeg_alive"));
    if (decoded_) before_ = decoded_();
  }
  void TearDown() override {
    if (!answer_) return;
    answer_(0, 0, kAllFlags);
    EXPECT_EQ(alive_(), 0) << "handles and states of nvJPEG are left";
  }

  bool emulated() const { return answer_ != nullptr; }
  int decoded() const { return decoded_() - before_; }

  // Levels of 255 that two decoders may be apart in one value, where these are JPEGs.
  float tolerance(const std::string& encoding) const { return emulated() || encoding == "raw" ? 0 : 8; }

  void expect_equal(const Batch& actual, const Batch& expected, float most) {
    EXPECT_EQ(actual.data.device(), kDevice);
    EXPECT_EQ(expected.data.device(), Device());
    ASSERT_EQ(actual.data.shape(), expected.data.shape());
    EXPECT_EQ(actual.examples, expected.examples);
    EXPECT_EQ(actual.positions, expected.positions);
    EXPECT_EQ(actual.label.to_vector<int>(), expected.label.to_vector<int>());
    const std::vector<float> a = actual.data.to_vector<float>(), b = expected.data.to_vector<float>();
    if (most == 0) {
      EXPECT_EQ(a, b);
      return;
    }
    double worst = 0, sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double apart = std::abs(a[i] - b[i]);
      worst = std::max(worst, apart);
      sum += apart;
    }
    EXPECT_LE(worst, most);
    EXPECT_LE(sum / static_cast<double>(a.size()), most / 4);
  }

  void expect_equal_epochs(const std::string& manifest, RecordLoaderOptions options, float most = 0, int epochs = 1) {
    options.decoding = Decoding::kDevice;
    RecordLoader device(manifest, options);
    device.deliver_to(kDevice);
    options.decoding = Decoding::kCpu;
    options.decode_threads = 1;
    RecordLoader cpu(manifest, options);
    for (int epoch = 0; epoch < epochs; ++epoch) {
      const std::vector<Batch> actual = all_batches(device, epoch), expected = all_batches(cpu, epoch);
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t i = 0; i < actual.size(); ++i) expect_equal(actual[i], expected[i], most);
    }
  }

  const Device kDevice{DeviceKind::kCuda, 0};
  TemporaryFolder folder_;
  void* library_ = nullptr;
  void (*answer_)(int create, int decode, unsigned flags) = nullptr;

 private:
  int (*decoded_)() = nullptr;
  int (*alive_)() = nullptr;
  int before_ = 0;
};

class DeviceDecoderOfAllOnCuda : public DeviceDecoderOnCuda, public testing::WithParamInterface<const char*> {
 protected:
  std::string set(int count = 30) {
    return write_set(folder_, count, GetParam(), [](int i) {
      const std::string all = GetParam();
      const auto encoding = all == "jpg" ? ImageEncoding::kJpeg
                            : all == "raw"
                                ? ImageEncoding::kRaw
                                : std::array{ImageEncoding::kJpeg, ImageEncoding::kPng, ImageEncoding::kRaw}.at(
                                      static_cast<std::size_t>(i % 3));
      return encoded(i, encoding, 24 + i % 2 * 7, 32 - i % 4 / 2 * 5, i % 5 == 0 ? 1 : 3);
    });
  }
  float most() const { return tolerance(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Encodings, DeviceDecoderOfAllOnCuda, testing::Values("jpg", "raw", "mixed"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DeviceDecoderOfAllOnCuda, BatchesEqualTheCpus) {
  const std::string manifest = set();
  expect_equal_epochs(manifest, {.batch = 7, .image = {.scale = 1}}, most());
  const int jpegs = GetParam() == std::string("jpg") ? 30 : GetParam() == std::string("raw") ? 0 : 10;
  EXPECT_TRUE(!emulated() || decoded() == jpegs);
}

TEST_P(DeviceDecoderOfAllOnCuda, GreyBatchesEqualTheCpus) {
  expect_equal_epochs(set(), {.batch = 8, .image = {.channels = 1, .scale = 1}}, most());
}

TEST_P(DeviceDecoderOfAllOnCuda, ResizedBatchesEqualTheCpus) {
  const std::string manifest = set();
  expect_equal_epochs(manifest, {.batch = 8, .image = {.height = 9, .width = 50, .scale = 1}}, most());
  expect_equal_epochs(manifest, {.batch = 8, .image = {.height = 3, .width = 3, .scale = 1}}, most());
}

TEST_P(DeviceDecoderOfAllOnCuda, AugmentedAndScaledBatchesEqualTheCpus) {
  const float scale = 1 / 3.0f;
  expect_equal_epochs(
      set(),
      {.batch = 8,
       .shuffle = 5,
       .image =
           {.scale = scale, .mean = {40, 50, 60.5f}, .deviation = {2, 3, 0.7f}, .random_crop = 5, .random_flip = true}},
      most() * scale / 0.7f, 3);
}

TEST_P(DeviceDecoderOfAllOnCuda, ShuffledEpochsOfSeveralThreadsEqualTheCpus) {
  for (const Partition partition : {Partition::kShards, Partition::kRecords})
    expect_equal_epochs(set(50),
                        {.batch = 3,
                         .shuffle = 9,
                         .partition = partition,
                         .decode_threads = 3,
                         .prefetch = 5,
                         .image = {.scale = 1, .random_crop = 2, .random_flip = true}},
                        most(), 3);
}

TEST_F(DeviceDecoderOnCuda, DoesStepsThatAreListed) {
  const std::string manifest = write_set(folder_, 20, "jpg", [](int i) { return encoded(i, ImageEncoding::kJpeg); });
  expect_equal_epochs(
      manifest,
      {.batch = 7, .shuffle = 3, .image = {.scale = 1, .steps = augment::parse("resize;random_crop(pad=3);flip")}},
      tolerance("jpg"), 2);
  EXPECT_TRUE(!emulated() || decoded() == 40);
}

TEST_F(DeviceDecoderOnCuda, OtherStepsAreTheCpusAndALineSaysSo) {
  const std::string manifest = write_set(folder_, 20, "jpg", [](int i) { return encoded(i, ImageEncoding::kJpeg); });
  for (const char* text :
       {"random_resized_crop(size=9)", "resize(size=9);rotate(degrees=5)", "flip_vertical", "mixup"}) {
    const ImageOptions image{.steps = augment::parse(text), .classes = 10};
    RecordLoader loader(manifest, {.batch = 6, .image = image});
    loader.deliver_to(kDevice);
    testing::internal::CaptureStderr();
    for (const Batch& batch : all_batches(loader)) EXPECT_EQ(batch.data.device(), Device());
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                testing::ContainsRegex("images for cuda:0 are decoded on the CPU: the step '[a-z_]+' is done on"));
    RecordLoader must(manifest, {.decoding = Decoding::kDevice, .image = image});
    must.deliver_to(kDevice);
    EXPECT_THAT(error_of<NotAvailable>([&] { must.start(0); }), HasSubstr("is done on the CPU alone"));
  }
}

// More than the memory that images share, and one larger than that.
TEST_F(DeviceDecoderOnCuda, LargeImagesArriveOneAfterTheOther) {
  const std::string manifest = write_set(folder_, 5, "jpg", [](int i) {
    return i == 3 ? encoded(i, ImageEncoding::kJpeg, 2100, 2800) : encoded(i, ImageEncoding::kJpeg, 1500, 1700);
  });
  expect_equal_epochs(manifest, {.batch = 5, .decode_threads = 1, .image = {.height = 4, .width = 5, .scale = 1}},
                      tolerance("jpg"));
  EXPECT_TRUE(!emulated() || decoded() == 5);
}

TEST_F(DeviceDecoderOnCuda, WhatNvjpegRefusesTheCpuDecodes) {
  if (!emulated()) GTEST_SKIP() << "only the emulated nvJPEG refuses when it is told to";
  const std::string manifest =
      write_set(folder_, 20, "jpg", [](int i) { return i == 7 ? cmyk_jpeg() : encoded(i, ImageEncoding::kJpeg); });
  expect_equal_epochs(manifest, {.batch = 6});
  EXPECT_EQ(decoded(), 19);
  for (const int status : {kNotSupported, kAllocatorFailure}) {
    answer_(0, status, kAllFlags);
    testing::internal::CaptureStderr();
    expect_equal_epochs(manifest, {.batch = 6});
    const std::string log = testing::internal::GetCapturedStderr();
    const bool said = log.find("decoded on the CPU: nvJPEG, decoding: allocator failure (5)") != std::string::npos;
    EXPECT_EQ(said, status == kAllocatorFailure) << log;
  }
  EXPECT_EQ(decoded(), 19);
}

TEST_F(DeviceDecoderOnCuda, AnOldNvjpegKnowsNoFlags) {
  if (!emulated()) GTEST_SKIP() << "only the emulated nvJPEG forgets its flags";
  answer_(0, 0, 0);
  expect_equal_epochs(write_set(folder_, 9, "jpg", [](int i) { return encoded(i, ImageEncoding::kJpeg); }),
                      {.batch = 4});
  EXPECT_EQ(decoded(), 9);
}

// 3: cut off; 11: no end and junk; 12: an image of nothing; 17: no rows and columns.
std::string damaged(int i) {
  std::string jpeg = encoded(i, ImageEncoding::kJpeg);
  if (i == 3) return jpeg.substr(0, jpeg.size() / 2);
  if (i == 11) return jpeg.substr(0, 60) + std::string(200, '\x55');
  if (i == 12) return "";
  if (i == 17) jpeg.replace(jpeg.find("\xff\xc0") + 5, 4, std::string(4, '\0'));
  return jpeg;
}

TEST_F(DeviceDecoderOnCuda, SkipsWhatTheCpuSkips) {
  const std::string manifest = write_set(folder_, 24, "jpg", damaged);
  const RecordLoaderOptions options{.batch = 6, .on_damage = OnDamage::kSkip, .image = {.scale = 1}};
  expect_equal_epochs(manifest, options, tolerance("jpg"));
  RecordLoader device(manifest, options), cpu(manifest, options);
  device.deliver_to(kDevice);
  EXPECT_EQ(all_batches(device).size(), all_batches(cpu).size());
  ASSERT_EQ(device.damaged(), 4);
  std::set<std::string> actual, expected;
  for (const RecordDamage& each : device.damage()) actual.insert(each.text());
  for (const RecordDamage& each : cpu.damage()) expected.insert(each.text());
  EXPECT_EQ(actual, expected);
}

TEST_F(DeviceDecoderOnCuda, ABatchOfDamageAloneIsCommitted) {
  const std::string manifest = write_set(folder_, 12, "jpg", [](int i) {
    return i / 4 == 1 ? std::string("\xff\xd8\xff") : encoded(i, ImageEncoding::kJpeg);
  });
  RecordLoader device(manifest, {.batch = 4, .on_damage = OnDamage::kSkip});
  device.deliver_to(kDevice);
  for (const Batch& batch : all_batches(device)) device.commit(batch);
  EXPECT_EQ(device.damaged(), 4);
  EXPECT_EQ(device.committed().text(), "0-12");
}

TEST_F(DeviceDecoderOnCuda, FailsOfWhatTheCpuFailsOf) {
  const std::string manifest = write_set(folder_, 24, "jpg", damaged);
  const auto message = [&](Device to) {
    RecordLoader loader(manifest, {.batch = 2});
    loader.deliver_to(to);
    loader.start(0);
    Batch batch;
    EXPECT_TRUE(loader.next(batch));
    const std::string first = error_of<Corrupt>([&] { loader.next(batch); });
    EXPECT_EQ(error_of<Corrupt>([&] { loader.next(batch); }), first);
    loader.start(0);
    EXPECT_TRUE(loader.next(batch));
    return first;
  };
  EXPECT_THAT(message(kDevice), HasSubstr("record 3 at offset"));
  EXPECT_EQ(message(kDevice), message(Device()));
}

class LeavingSource final : public Source {
 public:
  Part part(std::int64_t) override { return {0, 2}; }
  void begin(std::int64_t, const EpochPlan&) override {}
  void commit(std::int64_t, const std::vector<Range>& positions, const std::string&) override {
    for (const Range& range : positions) committed.add(range);
  }
  RangeSet take_over(std::int64_t, std::int64_t, bool) override { return std::exchange(left, {}); }
  RangeSet left, committed;
};

TEST_F(DeviceDecoderOnCuda, TakesOverAndCommits) {
  auto source = std::make_shared<LeavingSource>();
  source->left.add({15, 20});
  RecordLoader loader(write_set(folder_, 20, "jpg", [](int i) { return encoded(i, ImageEncoding::kJpeg); }),
                      {.batch = 3, .source = source});
  loader.deliver_to(kDevice);
  loader.start(0);
  Batch batch;
  do {
    while (loader.next(batch)) {
      EXPECT_EQ(batch.data.device(), kDevice);
      loader.commit(batch);
    }
  } while (loader.take_over());
  EXPECT_EQ(source->committed.text(), "0-10,15-20");
  EXPECT_EQ(loader.committed().text(), "0-10,15-20");
}

TEST_F(DeviceDecoderOnCuda, IsAbandonedAnyTimeAndBatchesOutliveIt) {
  const std::string manifest = write_set(folder_, 40, "jpg", [](int i) { return encoded(i, ImageEncoding::kJpeg); });
  std::vector<Batch> kept;
  {
    RecordLoader loader(manifest, {.batch = 2, .shuffle = 1, .decode_threads = 3, .prefetch = 4});
    loader.deliver_to(kDevice);
    for (int epoch = 0; epoch < 8; ++epoch) {
      loader.start(epoch);
      Batch batch;
      for (int i = 0; i <= epoch; ++i) ASSERT_TRUE(loader.next(batch));
      kept.push_back(batch);
    }
    loader.start(8);
    kept.resize(4);
  }
  for (const Batch& batch : kept) EXPECT_THAT(batch.data.to_vector<float>(), SizeIs(2 * 3 * 24 * 32));
}

TEST_F(DeviceDecoderOnCuda, ABrokenDeviceIsADeviceError) {
  if (!emulated()) GTEST_SKIP() << "only an emulated device breaks and is mended";
  constexpr auto kIllegalAddress = static_cast<cudaError_t>(700), kWhole = static_cast<cudaError_t>(0);
  const std::string manifest = write_set(folder_, 60, "jpg", [](int i) { return encoded(i, ImageEncoding::kJpeg); });
  {
    RecordLoader loader(manifest, {.batch = 3, .decode_threads = 2});
    loader.deliver_to(kDevice);
    loader.start(0);
    Batch batch;
    ASSERT_TRUE(loader.next(batch));
    cuda_emulation::fail_device(0, kIllegalAddress);
    const std::string message = error_of<DeviceError>([&] {
      while (loader.next(batch)) batch = {};
    });
    EXPECT_THAT(message, HasSubstr("illegal memory access"));
    EXPECT_EQ(error_of<DeviceError>([&] { loader.next(batch); }), message);
  }
  cuda_emulation::fail_device(0, kWhole);
  expect_equal_epochs(manifest, {.batch = 3});
}

TEST_F(DeviceDecoderOnCuda, DeliversToWhichDeviceItIsTold) {
  const std::string manifest = write_set(folder_, 12, "jpg", [](int i) { return encoded(i, ImageEncoding::kJpeg); });
  RecordLoader loader(manifest, {.batch = 4});
  std::vector<float> first;
  for (int d = -1; d < std::min(2, device_count(DeviceKind::kCuda)); ++d) {
    const Device device = d < 0 ? Device() : Device(DeviceKind::kCuda, d);
    loader.deliver_to(device);
    for (const Batch& batch : all_batches(loader)) EXPECT_EQ(batch.data.device(), device);
  }
  loader.deliver_to(Device("cpu"));
  for (const Batch& batch : all_batches(loader)) EXPECT_EQ(batch.data.device(), Device());
}

TEST_F(DeviceDecoderOnCuda, ImagesThatAreNoJpegsStayTheCpusUnlessAsked) {
  RecordLoader loader(write_set(folder_, 4, "raw", [](int i) { return encoded(i, ImageEncoding::kRaw); }));
  loader.deliver_to(kDevice);
  EXPECT_EQ(all_batches(loader).at(0).data.device(), Device());
}

TEST_F(DeviceDecoderOnCuda, WithoutNvjpegTheCpuDecodesAndALineSaysSo) {
  if (!emulated()) GTEST_SKIP() << "only the emulated nvJPEG refuses to start";
  const std::string manifest = write_set(folder_, 20, "jpg", [](int i) { return encoded(i, ImageEncoding::kJpeg); });
  answer_(kNotInitialized, 0, kAllFlags);
  RecordLoader loader(manifest, {.batch = 6}), cpu(manifest, {.batch = 6, .decoding = Decoding::kCpu});
  loader.deliver_to(kDevice);
  cpu.deliver_to(kDevice);
  testing::internal::CaptureStderr();
  for (int epoch = 0; epoch < 2; ++epoch) {
    const std::vector<Batch> actual = all_batches(loader), expected = all_batches(cpu);
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_EQ(actual[i].data.device(), Device());
      EXPECT_EQ(actual[i].data.to_vector<float>(), expected[i].data.to_vector<float>());
    }
  }
  const std::string log = testing::internal::GetCapturedStderr(),
                    line = "images for cuda:0 are decoded on the CPU: nvJPEG, starting: not initialized (1)";
  EXPECT_THAT(log, HasSubstr(line));
  EXPECT_EQ(log.find(line), log.rfind(line)) << "said once";
  RecordLoader strict(manifest, {.decoding = Decoding::kDevice});
  strict.deliver_to(kDevice);
  EXPECT_THAT(error_of<NotAvailable>([&] { strict.start(0); }),
              HasSubstr("images cannot be decoded on cuda:0: nvJPEG, starting: not initialized (1); or choose"));
}

TEST(Decoding, OfADeviceNeedsACudaDevice) {
  TemporaryFolder folder;
  RecordLoader loader(write_data_set(folder, 10, 1), {.decoding = Decoding::kDevice});
  EXPECT_THAT(error_of<NotAvailable>([&] { loader.start(0); }),
              HasSubstr("images cannot be decoded on cpu: it is no CUDA device"));
}

TEST(Decoding, HasNames) {
  EXPECT_EQ(parse_decoding("auto"), Decoding::kAuto);
  EXPECT_EQ(parse_decoding("cpu"), Decoding::kCpu);
  EXPECT_EQ(parse_decoding("device"), Decoding::kDevice);
  EXPECT_THAT(error_of<InvalidArgument>([] { parse_decoding("gpu"); }), HasSubstr("auto cpu device"));
}

}  // namespace
}  // namespace paceline::test

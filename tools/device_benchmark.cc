// Times copies, products, single operators and the decoding of images on one device. One line each: bandwidth by the
// bytes that must move, rate by the operations that must be done, or by the images.
#include <gflags/gflags.h>
#include <paceline/cores.h>
#include <paceline/image.h>
#include <paceline/kvstore.h>
#include <paceline/log.h>
#include <paceline/manifest.h>
#include <paceline/ops.h>
#include <paceline/record_loader.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iostream>
#include <vector>

#include "flags.h"

DEFINE_string(device, "cpu", "cpu, cuda:0, ...");
DEFINE_int64(side, 4096, "rows and columns of the matrices");
DEFINE_double(seconds, 0.1, "how long each is measured at least, three times; the median counts");

namespace {

using namespace paceline;
using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "device_benchmark [--device NAME] [--side N] [--seconds S]\n\n"
    "Times copies, products, single operators and the decoding of images on one device:\n"
    "  device_benchmark --device cuda:0";

double seconds_of(const std::function<NDArray()>& call) {
  call().wait();
  std::vector<double> rounds;
  for (int round = 0; round < 3; ++round) {
    std::int64_t calls = 0;
    const auto start = Clock::now();
    double taken = 0;
    while (taken < FLAGS_seconds) {
      // Some in a row, so that the device and not the wait for it is measured.
      NDArray last;
      for (int i = 0; i < 8; ++i) last = call();
      last.wait();
      calls += 8;
      taken = std::chrono::duration<double>(Clock::now() - start).count();
    }
    rounds.push_back(taken / static_cast<double>(calls));
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[1];
}

// `amount`: bytes, operations or images of one call; 0: only the time is of interest.
void measure(const char* name, double amount, const char* unit, const std::function<NDArray()>& call) {
  std::printf("%-40s ", name);
  try {
    const double seconds = seconds_of(call);
    std::printf("%10.1f us", seconds * 1e6);
    const double scale = unit[0] == 'T' ? 1e12 : unit[0] == 'G' ? 1e9 : 1;
    if (amount > 0) std::printf(" %10.2f %s", amount / seconds / scale, unit);
    std::printf("\n");
  } catch (const Error& error) {
    std::printf("not available: %s\n", error.what());
  }
  std::fflush(stdout);
}

NDArray normal(const Shape& shape, DType dtype, Device device) {
  NDArray x(shape);
  kernels::fill_normal(x, 0, 1, 1);
  return x.cast(dtype).to(device);
}

// Records of one JPEG of 256 x 256 pixels, smooth with some grain as a photograph, in a folder that goes with it.
class Photographs {
 public:
  static constexpr int kCount = 512;

  Photographs() {
    std::string name = (std::filesystem::temp_directory_path() / "paceline-benchmark-XXXXXX").string();
    if (!mkdtemp(name.data())) throw IoError(str("no folder can be made in ", std::filesystem::temp_directory_path()));
    folder_ = name;
    Image image{256, 256, 3, {}};
    std::uint32_t noise = 1;
    for (int i = 0; i < 256 * 256 * 3; ++i) {
      noise = noise * 1664525 + 1013904223;
      const double wave = std::sin(0.11 * (i / 3 % 256) + i % 3) * std::cos(0.07 * (i / 768)) * 90 + 120;
      image.pixels.push_back(static_cast<std::uint8_t>(wave + (noise >> 28)));
    }
    const std::string jpeg = ImageCodec().encode(image, ImageEncoding::kJpeg, 90);
    DatasetWriter writer((folder_ / "photographs").string(), 1);
    const float label = 0;
    for (int i = 0; i < kCount; ++i) writer.write(0, i, pack_image_record({&label, 1}, 0, jpeg));
    Manifest manifest;
    manifest.encoding = "jpg";
    manifest.image = {256, 256, 3};
    manifest_ = writer.finish(manifest);
  }
  ~Photographs() { std::filesystem::remove_all(folder_); }
  Photographs(const Photographs&) = delete;
  Photographs& operator=(const Photographs&) = delete;

  const std::string& manifest() const { return manifest_; }

 private:
  std::filesystem::path folder_;
  std::string manifest_;
};

void measure_decoding(Device device) {
  const Photographs photographs;
  const auto epoch = [&](Decoding decoding) {
    const auto loader = std::make_shared<RecordLoader>(
        photographs.manifest(),
        RecordLoaderOptions{.batch = 64, .decoding = decoding, .image = {.height = 224, .width = 224}});
    loader->deliver_to(device);
    return [loader, device] {
      NDArray last;
      for (const Batch& batch : EpochRange(*loader, 0, {})) last = batch.data.to(device);
      return last;
    };
  };
  measure("512 JPEGs to 224 x 224, decoded on CPU", Photographs::kCount, "images/s", epoch(Decoding::kCpu));
  if (device.kind == DeviceKind::kCuda)
    measure("512 JPEGs to 224 x 224, nvJPEG", Photographs::kCount, "images/s", epoch(Decoding::kDevice));
}

void measure_all() {
  require(FLAGS_side >= 32 && FLAGS_side % 32 == 0 && FLAGS_seconds > 0,
          "--side is a multiple of 32 and --seconds above 0");
  const Device device{std::string_view(FLAGS_device)};
  const std::int64_t n = FLAGS_side;
  const double elements = static_cast<double>(n * n), cube = elements * static_cast<double>(n);
  const NDArray host = normal({n, n}, DType::kFloat32, Device());
  const NDArray x = host.to(device), y = host.to(device);
  const NDArray half = x.cast(DType::kBfloat16);
  const NDArray one = NDArray::full({n}, 1, DType::kFloat32, device),
                zero = NDArray::zeros({n}, DType::kFloat32, device);
  const NDArray small = NDArray::full({32}, 1, DType::kFloat32, device);
  const NDArray ids = argmax(x, -1);

  if (!device.is_cpu()) {
    measure("copy in", 4 * elements, "GB/s", [&] { return host.to(device); });
    measure("copy out", 4 * elements, "GB/s", [&] { return x.to(Device()); });
  }
  measure("copy", 8 * elements, "GB/s", [&] { return x.clone(); });
  measure("add of 32 numbers", 0, "", [&] { return small + small; });
  measure("add", 12 * elements, "GB/s", [&] { return x + y; });
  measure("add, transposed", 12 * elements, "GB/s", [&] { return x + y.permute({1, 0}); });
  measure("cast to bfloat16", 6 * elements, "GB/s", [&] { return x.cast(DType::kBfloat16); });
  measure("gelu, bfloat16", 4 * elements, "GB/s", [&] { return gelu(half); });
  measure("sum of all", 4 * elements, "GB/s", [&] { return sum(x); });
  measure("sum of rows", 4 * elements, "GB/s", [&] { return sum(x, {1}); });
  measure("sum of columns", 4 * elements, "GB/s", [&] { return sum(x, {0}); });
  measure("softmax", 8 * elements, "GB/s", [&] { return softmax(x); });
  measure("layer_norm", 8 * elements, "GB/s", [&] { return layer_norm(x, one, zero); });
  measure("dropout", 8 * elements, "GB/s", [&] { return dropout(x, 0.1, 1); });
  measure("embedding", 8 * elements, "GB/s", [&] { return embedding(ids, x); });
  measure("softmax_cross_entropy", 8 * elements, "GB/s", [&] { return softmax_cross_entropy(x, ids); });
  const std::shared_ptr<KVStore> store = KVStore::create("local");
  store->set_optimizer(optim::Adam{});
  NDArray trained = x.clone();
  store->init({{.key = "weight", .value = trained, .shared = true}});
  measure("adam", 28 * elements, "GB/s", [&] {
    store->push_pull({{"weight", y}}, {{"weight", trained}});
    return trained;
  });
  measure("sort", 16 * elements, "GB/s", [&] { return sort(x).values; });
  measure("matmul, float32", 2 * cube, "TFLOP/s", [&] { return matmul(x, y); });
  measure("matmul, bfloat16", 2 * cube, "TFLOP/s", [&] { return matmul(half, half); });

  const NDArray image = normal({32, 64, 56, 56}, DType::kFloat32, device);
  const NDArray weight = normal({64, 64, 3, 3}, DType::kFloat32, device);
  const NDArray channel = NDArray::full({64}, 1, DType::kFloat32, device);
  const double places = 32.0 * 56 * 56, pixels = places * 64;
  measure("convolution 3x3, 64 to 64", 2 * pixels * 64 * 9, "TFLOP/s", [&] {
    return convolution(image, weight, {}, {.padding = {1, 1}});
  });
  measure("max_pool 2x2", 5 * pixels, "GB/s", [&] { return max_pool(image, {.kernel = {2, 2}}); });
  measure("batch_norm", 12 * pixels, "GB/s",
          [&] { return batch_norm(image, channel, channel, channel.clone(), channel.clone()); });
  const NDArray last = cast(channels_last(image), DType::kBfloat16), half_weight = weight.cast(DType::kBfloat16);
  measure("convolution, bfloat16, channels last", 2 * pixels * 64 * 9, "TFLOP/s", [&] {
    return convolution(last, half_weight, {}, {.padding = {1, 1}});
  });
  measure("max_pool 2x2, bfloat16, channels last", 3.5 * pixels, "GB/s", [&] {
    return max_pool(last, {.kernel = {2, 2}});
  });
  measure("batch_norm, bfloat16, channels last", 6 * pixels, "GB/s",
          [&] { return batch_norm(last, channel, channel, channel.clone(), channel.clone()); });
  const NDArray heads = normal({8, 8, 512, 64}, DType::kFloat32, device);
  measure("attention, 64 heads of 512 x 64", 4.0 * 64 * 512 * 512 * 64, "TFLOP/s",
          [&] { return attention(heads, heads, heads); });
  const NDArray half_heads = heads.cast(DType::kBfloat16);
  measure("attention, bfloat16", 4.0 * 64 * 512 * 512 * 64, "TFLOP/s",
          [&] { return attention(half_heads, half_heads, half_heads); });
  measure_decoding(device);
}

}  // namespace

int main(int argc, char** argv) {
  use_passive_waiting(argv);
  tools::parse_flags(kUsage, __FILE__, &argc, &argv);
  return tools::run_main("device_benchmark", [] {
    measure_all();
    return 0;
  });
}

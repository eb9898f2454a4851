// Times training steps of a network on random images or made-up symbols. The last line of standard output is a JSON
// object.
#include <gflags/gflags.h>
#include <paceline/cores.h>
#include <paceline/engine_observer.h>
#include <paceline/kvstore.h>
#include <paceline/log.h>
#include <paceline/nn.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "flags.h"

DEFINE_string(network, "resnet20", "mlp, lenet, resnet20, resnet50, vgg16, mobilenet_v2, transformer or lstm");
DEFINE_int32(image_size, 0, "pixels of an image's side; 0: what the network was published for (28, 32 or 224)");
DEFINE_int32(batch_size, 64, "examples of a step: images, or runs of 64 symbols");
DEFINE_int32(threads, 0, "threads of the operators; 0: as many as there are cores, or PACELINE_NUM_THREADS");
DEFINE_string(device, "cpu", "where the network is computed: cpu, cuda:0, ...");
DEFINE_bool(channels_last, false, "images with their channels last in memory, for GPUs");
DEFINE_string(precision, "float32", "what the network computes in: float32, bfloat16 or float16");
DEFINE_bool(captured, true, "replay the step from a plan instead of running it eagerly");
DEFINE_int32(steps_ahead, 2, "steps that may be queued before the oldest is waited for; each holds memory");
DEFINE_double(seconds, 5, "how long to measure, after three steps that do not count");

namespace {

using namespace paceline;
using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "train_benchmark [--network NAME] [--batch_size N] [--threads N] [--device NAME] [--seconds S] "
    "[--captured=false]\n\n"
    "Times whole training steps (forward, backward, update by momentum in mode local) on random examples:\n"
    "  train_benchmark --network resnet50 --batch_size 16 --threads 2";

// Language models for characters, in sizes that two cores can train.
constexpr std::int64_t kSteps = 64;
const Catalog<nn::Module (*)()> kLanguageModels(
    "network",
    {{"transformer", [] { return nn::models::causal_transformer({.symbols = 65, .width = 128, .layers = 4}); }},
     {"lstm", [] { return nn::models::lstm_language_model({.symbols = 65, .width = 256, .layers = 1}); }}});

struct Problem {
  nn::Module net;
  Batch batch;
};

NDArray labels(const Shape& shape, std::int64_t classes) {
  std::vector<std::int32_t> numbers;
  for (std::int64_t i = 0; i < shape.size(); ++i) numbers.push_back(static_cast<std::int32_t>(i * 7 % classes));
  return NDArray::from(numbers, shape);
}

Problem images(const std::string& network) {
  const bool small = network == "mlp" || network == "lenet";
  const std::int64_t size = FLAGS_image_size > 0 ? FLAGS_image_size : small ? 28 : network == "resnet20" ? 32 : 224;
  const std::int64_t classes = size < 224 ? 10 : 1000;
  Problem problem{nn::models::catalog().at(network)(classes), {}};
  problem.batch.data = NDArray({FLAGS_batch_size, small ? 1 : 3, size, size});
  kernels::fill_normal(problem.batch.data, 0, 1, 1);
  problem.batch.label = labels({FLAGS_batch_size}, classes);
  return problem;
}

Problem symbols(const std::string& network) {
  Problem problem{kLanguageModels.at(network)(), {}};
  problem.batch.data = labels({FLAGS_batch_size, kSteps}, 65);
  problem.batch.label = labels({FLAGS_batch_size, kSteps}, 65);
  return problem;
}

// Measures how long a device has no task that has begun and is not complete. A device that waits within a task does not
// count as idle.
class IdleTime final : public EngineObserver {
 public:
  explicit IdleTime(Device device) : device_(device) {}
  void on_start(const TaskEvent& event) override { note(event, 1); }
  void on_finish(const TaskEvent& event) override { note(event, -1); }
  double seconds() {
    const std::lock_guard lock(mutex_);
    return idle_;
  }

 private:
  void note(const TaskEvent& event, int change) {
    if (event.info.device != device_) return;
    const std::lock_guard lock(mutex_);
    if (open_ == 0) idle_ += std::max(0.0, std::chrono::duration<double>(event.time - since_).count());
    open_ += change;
    if (open_ == 0) since_ = event.time;
  }

  const Device device_;
  std::mutex mutex_;
  int open_ = 0;
  Clock::time_point since_ = Clock::now();
  double idle_ = 0;
};

double peak_memory_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;  // kilobytes
}

// The rate of a large float32 product, in billions of multiply-adds a second. Training steps can be compared with it.
double product_rate(const Device& device) {
  constexpr std::int64_t kSize = 1024;
  const Shape shape{kSize, kSize};
  const NDArray a = NDArray::full(shape, 1, DType::kFloat32, device), b = a.clone(), c = a.clone();
  std::vector<double> rates;
  for (int i = 0; i < 15; ++i) {
    c.wait();
    const auto start = Clock::now();
    kernels::gemm(a, false, b, true, c);
    c.wait();
    rates.push_back(kSize * kSize * kSize / std::chrono::duration<double, std::nano>(Clock::now() - start).count());
  }
  std::nth_element(rates.begin(), rates.begin() + 7, rates.end());
  return rates[7];
}

void measure() {
  require(FLAGS_batch_size >= 1 && FLAGS_image_size >= 0 && FLAGS_seconds > 0,
          "--batch_size is at least 1, --image_size at least 0 and --seconds above 0");
  const bool language = FLAGS_network == "transformer" || FLAGS_network == "lstm";
  Problem problem = language ? symbols(FLAGS_network) : images(FLAGS_network);
  problem.batch.examples = FLAGS_batch_size;
  const Device device{std::string_view(FLAGS_device)};
  nn::Trainer trainer(problem.net, optim::SGD{.lr = 0.001, .momentum = 0.9}, KVStore::create("local"),
                      {.device = device,
                       .steps_ahead = FLAGS_steps_ahead,
                       .precision = parse_dtype(FLAGS_precision),
                       .channels_last = FLAGS_channels_last,
                       .captured = FLAGS_captured});
  const Batch& batch = problem.batch;
  for (int step = 0; step < 3; ++step) trainer.step(batch, nn::softmax_ce);
  trainer.synchronize();
  const auto idle = std::make_shared<IdleTime>(device);
  if (!device.is_cpu()) default_engine().add_observer(idle);
  const auto start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  std::int64_t steps = 0;
  for (; seconds() < FLAGS_seconds; ++steps) trainer.step(batch, nn::softmax_ce);
  trainer.synchronize();
  const double taken = seconds(), nothing_to_do = idle->seconds();
  nlohmann::json result{{"network", FLAGS_network},
                        {"batch_size", FLAGS_batch_size},
                        {"threads", core_budget()},
                        {"device", device.name()},
                        {"captured", FLAGS_captured},
                        {"precision", FLAGS_precision},
                        {"channels_last", FLAGS_channels_last},
                        {"parameters", trainer.net().parameter_count()},
                        {"steps", steps},
                        {"seconds", taken},
                        {"samples_per_second", static_cast<double>(steps * FLAGS_batch_size) / taken},
                        {"peak_memory_mb", peak_memory_mb()},
                        {"gemm_gmacs", product_rate(device)}};
  if (!device.is_cpu()) result["device_idle"] = nothing_to_do / taken;
  if (!language) result["image_size"] = batch.data.size(-1);
  std::cout << result << '\n' << std::flush;
}

}  // namespace

int main(int argc, char** argv) {
  use_passive_waiting(argv);
  keep_freed_memory();
  tools::parse_flags(kUsage, __FILE__, &argc, &argv);
  return tools::run_main("train_benchmark", [] {
    // The budget is read once, at the first use.
    if (FLAGS_threads != 0)
      // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread is there yet
      setenv("PACELINE_NUM_THREADS", std::to_string(tools::threads_wanted(FLAGS_threads)).c_str(), 1);
    measure();
    return 0;
  });
}

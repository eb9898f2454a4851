// What a staleness policy is worth: a small residual network on 10,000 images of CIFAR-10, trained by logical workers
// of one process through a real server under a deterministic schedule of delays, and the table of policies (T1.11 of
// algorithms).
#include <gflags/gflags.h>
#include <paceline/autograd.h>
#include <paceline/image.h>
#include <paceline/kvstore.h>
#include <paceline/log.h>
#include <paceline/nn.h>
#include <paceline/ops.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "../../tools/flags.h"

DEFINE_string(data, "", "folder with train/CLASS/*.jpg and test/CLASS/*.jpg");
DEFINE_string(rows, "sequential,asgd,dc,ga,dana,dana+ga", "rows of the table, or policies as in staleness=...");
DEFINE_string(schedule, "exp", "exp: a random worker pushes next; const: they take turns");
DEFINE_int32(workers, 8, "logical workers");
DEFINE_int32(seed, 1, "of images, weights, batches and schedule");
DEFINE_int32(epochs, 6, "passes over the images");
DEFINE_double(lr, 0.02, "learning rate; a tenth of it in the last quarter");
DEFINE_double(momentum, 0.9, "of the optimizer");
DEFINE_bool(processes, false,
            "join the job that the environment describes (DMLC_*) instead of a server in this process");

using namespace paceline;

namespace {

constexpr char kUsage[] =
    "convergence --data DIR [flags]\n\n"
    "Trains a small residual network on 10,000 images of CIFAR-10 by logical workers that push through a real server\n"
    "under a deterministic schedule of delays. Prints a table of staleness policies and their test accuracy.";

constexpr std::int64_t kTrain = 10000, kTest = 2000, kBatch = 32, kPixels = 3 * 32 * 32;

struct Images {
  std::vector<float> pixels;  // (n, 3, 32, 32)
  std::vector<float> labels;
};

Images load_images(const std::filesystem::path& folder, std::int64_t count, std::mt19937_64& random) {
  std::vector<std::pair<std::filesystem::path, int>> files;
  std::vector<std::filesystem::path> classes;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) classes.push_back(entry.path());
  std::sort(classes.begin(), classes.end());
  for (std::size_t label = 0; label < classes.size(); ++label)
    for (const auto& file : std::filesystem::directory_iterator(classes[label]))
      files.emplace_back(file.path(), static_cast<int>(label));
  require(static_cast<std::int64_t>(files.size()) >= count, folder.string(), " holds ", files.size(),
          " images, expected ", count, " or more");
  std::sort(files.begin(), files.end());
  std::shuffle(files.begin(), files.end(), random);
  Images images;
  ImageCodec codec;
  Image image;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto& [file, label] = files[static_cast<std::size_t>(i)];
    std::ifstream in(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    codec.decode(bytes, image, 3);
    require(image.height == 32 && image.width == 32, file.string(), " is not 32x32");
    for (std::size_t channel = 0; channel < 3; ++channel)
      for (std::size_t p = 0; p < 32 * 32; ++p)
        images.pixels.push_back((static_cast<float>(image.pixels[3 * p + channel]) / 255 - 0.47f) / 0.25f);
    images.labels.push_back(static_cast<float>(label));
  }
  return images;
}

struct Batch {
  NDArray images, labels;
};

Batch make_batch(const Images& set, std::span<const std::int64_t> examples) {
  const auto count = static_cast<std::int64_t>(examples.size());
  std::vector<float> pixels, labels;
  pixels.reserve(static_cast<std::size_t>(count * kPixels));
  for (const std::int64_t e : examples) {
    pixels.insert(pixels.end(), set.pixels.begin() + e * kPixels, set.pixels.begin() + (e + 1) * kPixels);
    labels.push_back(set.labels[static_cast<std::size_t>(e)]);
  }
  return {NDArray::from<float>(pixels, Shape{count, 3, 32, 32}), NDArray::from<float>(labels, Shape{count})};
}

// 28,714 parameters.
class Net {
 public:
  explicit Net(std::uint64_t seed) {
    const Images one{std::vector<float>(kPixels), {0}};
    forward(make_batch(one, std::array<std::int64_t, 1>{0}).images, {.seed = seed});
    for (const nn::Module* layer : layers_)
      for (const auto& parameter : layer->parameters()) parameters_.push_back(parameter);
  }

  NDArray forward(const NDArray& x, const nn::Context& context = {}) const {
    const NDArray first = relu(first_(x, context));
    const NDArray second = relu(second_(first, context));
    const NDArray third = relu(third_(second, context));
    const NDArray sum = relu(second + relu(fourth_(third, context)));
    return scores_(pool_(sum, context), context);
  }
  const std::vector<std::shared_ptr<nn::Parameter>>& parameters() const { return parameters_; }

 private:
  static nn::ConvOptions convolution(std::int64_t stride, const nn::Initializer& weight) {
    nn::ConvOptions options;
    options.stride = stride;
    options.padding = 1;
    options.weight = weight;
    return options;
  }
  static nn::DenseOptions linear() {
    nn::DenseOptions options;
    options.weight = nn::normal(0.03);
    return options;
  }

  nn::Conv2d first_{16, 3, convolution(2, nn::he_normal())}, second_{32, 3, convolution(2, nn::he_normal())};
  nn::Conv2d third_{32, 3, convolution(1, nn::he_normal())};
  nn::Conv2d fourth_{32, 3, convolution(1, nn::normal(0.5 * std::sqrt(2.0 / (32 * 9))))};
  nn::AveragePool pool_{2};
  nn::Dense scores_{10, linear()};
  const std::vector<const nn::Module*> layers_{&first_, &second_, &third_, &fourth_, &scores_};
  std::vector<std::shared_ptr<nn::Parameter>> parameters_;
};

// A number that depends on the seed and the step alone.
std::uint64_t counter_random(std::uint64_t seed, std::uint64_t step) {
  std::uint64_t z = (seed << 32) + step * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

struct Row {
  std::string staleness;
  bool one_worker = false;
};

Row row_of(const std::string& name) {
  const std::map<std::string, Row> known = {{"sequential", {"none", true}},
                                            {"asgd", {"none"}},
                                            {"dc", {"delay_compensated"}},
                                            {"ga", {"gap_aware"}},
                                            {"dana+ga", {"dana+gap_aware"}}};
  const auto found = known.find(name);
  return found == known.end() ? Row{name} : found->second;
}

// A server in this process and logical workers that join it.
class Job {
 public:
  Job(const std::string& staleness, int workers) : stores_(static_cast<std::size_t>(workers)) {
    ClusterConfig config;
    if (FLAGS_processes) {
      config = ClusterConfig::from_environment();
      config.workers = workers;
    } else {
      static int count = 0;
      config.transport = "inproc";
      config.scheduler_host = str("convergence ", ++count);
      config.servers = 1;
      config.workers = workers;
      for (const Role role : {Role::kScheduler, Role::kServer})
        threads_.emplace_back([config, role]() mutable {
          config.role = role;
          serve(config);
        });
    }
    each([&](std::size_t i) {
      ClusterConfig mine = config;
      mine.task = static_cast<int>(i);
      stores_[i] = KVStore::join(mine, "dist_async:staleness=" + staleness);
    });
  }
  ~Job() {
    for (std::thread& thread : threads_) thread.join();
  }

  void each(const std::function<void(std::size_t)>& work) {
    std::vector<std::thread> all;
    for (std::size_t i = 0; i < stores_.size(); ++i) all.emplace_back([&, i] { work(i); });
    for (std::thread& thread : all) thread.join();
  }
  KVStore& operator[](std::size_t worker) { return *stores_[worker]; }

 private:
  std::vector<std::thread> threads_;
  std::vector<std::shared_ptr<KVStore>> stores_;
};

struct Result {
  double accuracy = 0, delay = 0;
};

Result train(const Row& row, const Images& training, const Images& testing) {
  const int workers = row.one_worker ? 1 : FLAGS_workers;
  const auto seed = static_cast<std::uint64_t>(FLAGS_seed);
  const Net net(seed);
  const auto& parameters = net.parameters();
  Job job(row.staleness, workers);
  std::vector<std::vector<PullItem>> weights(static_cast<std::size_t>(workers));
  const std::int64_t total = FLAGS_epochs * kTrain;
  job.each([&](std::size_t worker) {
    std::vector<InitValue> values;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      values.push_back({"p" + std::to_string(p), parameters[p]->value.clone()});
      weights[worker].push_back({values.back().key, values.back().value});
    }
    job[worker].init(values);
    job[worker].set_optimizer(optim::SGD{.lr = FLAGS_lr,
                                         .momentum = FLAGS_momentum,
                                         .schedule = {.form = "step", .every = 3 * total / 4, .factor = 0.1}});
  });
  const auto use = [&](std::size_t worker) {
    for (std::size_t p = 0; p < parameters.size(); ++p) parameters[p]->value.copy_from(weights[worker][p].out);
  };

  std::mt19937_64 random(seed + 1);
  std::vector<std::int64_t> order(kTrain);
  std::iota(order.begin(), order.end(), 0);
  std::size_t next = order.size();
  for (std::int64_t step = 0; step < total / kBatch; ++step) {
    const auto turn = FLAGS_schedule == "const" ? static_cast<std::uint64_t>(step)
                                                : counter_random(seed, static_cast<std::uint64_t>(step));
    const std::size_t worker = turn % static_cast<std::uint64_t>(workers);
    std::vector<std::int64_t> examples;
    for (std::int64_t e = 0; e < kBatch; ++e) {
      if (next == order.size()) {
        std::shuffle(order.begin(), order.end(), random);
        next = 0;
      }
      examples.push_back(order[next++]);
    }
    const Batch batch = make_batch(training, examples);
    use(worker);
    Tape tape;
    for (const auto& parameter : parameters) tape.watch(parameter->value, parameter->gradient);
    const NDArray loss = nn::softmax_ce(net.forward(batch.images, {.training = true}), batch.labels);
    tape.stop();
    tape.backward(loss);
    std::vector<PushItem> pushes;
    for (std::size_t p = 0; p < parameters.size(); ++p)
      pushes.push_back({weights[worker][p].key, parameters[p]->gradient});
    job[worker].push_pull(pushes, weights[worker], kBatch);
    job[worker].step_end(kBatch);
    for (const PullItem& item : weights[worker]) item.out.wait();
  }

  job[0].push_pull({}, weights[0]);
  use(0);
  constexpr std::int64_t kAtOnce = 500;
  std::int64_t right = 0;
  for (std::int64_t begin = 0; begin < kTest; begin += kAtOnce) {
    std::vector<std::int64_t> examples(kAtOnce);
    std::iota(examples.begin(), examples.end(), begin);
    const Batch batch = make_batch(testing, examples);
    const std::vector<float> scores = net.forward(batch.images).to_vector<float>();
    for (std::size_t e = 0; e < static_cast<std::size_t>(kAtOnce); ++e) {
      const auto first = scores.begin() + static_cast<std::ptrdiff_t>(10 * e);
      right += std::max_element(first, first + 10) - first ==
               static_cast<std::ptrdiff_t>(testing.labels[static_cast<std::size_t>(begin) + e]);
    }
  }
  const double delay = job[0].report().all_delays().mean();
  job.each([&](std::size_t worker) { job[worker].finish(); });
  return {100.0 * static_cast<double>(right) / kTest, delay};
}

int run() {
  require(!FLAGS_data.empty(), "--data names no folder of images");
  require(FLAGS_schedule == "exp" || FLAGS_schedule == "const", "--schedule is '", FLAGS_schedule,
          "', expected exp or const");
  require(FLAGS_workers >= 1 && FLAGS_epochs >= 1, "--workers and --epochs are at least 1");
  std::mt19937_64 random(static_cast<std::uint64_t>(FLAGS_seed));
  const std::filesystem::path data(FLAGS_data);
  const Images training = load_images(data / "train", kTrain, random),
               testing = load_images(data / "test", kTest, random);
  std::printf("| policy | workers | schedule | mean delay | test accuracy %% | seconds |\n|---|---|---|---|---|---|\n");
  std::fflush(stdout);
  for (std::size_t begin = 0; begin < FLAGS_rows.size();) {
    const std::size_t end = std::min(FLAGS_rows.find(',', begin), FLAGS_rows.size());
    const Row row = row_of(FLAGS_rows.substr(begin, end - begin));
    begin = end + 1;
    const auto start = std::chrono::steady_clock::now();
    const Result result = train(row, training, testing);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("| %s | %d | %s | %.2f | %.2f | %.0f |\n", row.one_worker ? "sequential" : row.staleness.c_str(),
                row.one_worker ? 1 : FLAGS_workers, row.one_worker ? "" : FLAGS_schedule.c_str(), result.delay,
                result.accuracy, seconds.count());
    std::fflush(stdout);
  }
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  tools::parse_flags(kUsage, __FILE__, &argc, &argv);
  start_logging(argv[0]);
  FLAGS_minloglevel = 1;
  return tools::run_main("convergence", run);
}

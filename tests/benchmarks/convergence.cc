// What a staleness policy is worth: a small residual network on 10,000 images of CIFAR-10, trained by worker processes
// through server processes under a deterministic schedule of delays, and the table of policies (T1.11 of algorithms).
#include <gflags/gflags.h>
#include <paceline/autograd.h>
#include <paceline/detail/split_mix.h>
#include <paceline/image.h>
#include <paceline/kvstore.h>
#include <paceline/log.h>
#include <paceline/nn.h>
#include <paceline/ops.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
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
DEFINE_int32(workers, 8, "worker processes, which take turns");
DEFINE_int32(seed, 1, "of images, weights, batches and schedule");
DEFINE_int32(epochs, 6, "passes over the images");
DEFINE_double(lr, 0.02, "learning rate; a tenth of it in the last quarter");
DEFINE_double(momentum, 0.9, "of the optimizer");
DEFINE_int32(servers, 2, "servers");
DEFINE_string(transport, "shm", "between workers and servers: shm or tcp");

using namespace paceline;

namespace {

constexpr char kUsage[] =
    "convergence --data DIR [flags]\n\n"
    "Trains a small residual network on 10,000 images of CIFAR-10 by worker processes that push through server "
    "processes\n"
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

// A number that depends on the seed and the step alone.
std::uint64_t counter_random(std::uint64_t seed, std::uint64_t step) {
  return detail::finalised((seed << 32) + step * detail::kSplitMixStep);
}

// 28,714 parameters.
class Net {
 public:
  explicit Net(std::uint64_t seed) {
    const std::array<Shape, 5> inputs{Shape{1, 3, 32, 32}, Shape{1, 16, 16, 16}, Shape{1, 32, 8, 8}, Shape{1, 32, 8, 8},
                                      Shape{1, 512}};
    // Layers that were told the same seed would begin with the same numbers.
    for (std::size_t i = 0; i < layers_.size(); ++i) layers_[i]->initialize(inputs[i], counter_random(seed, i));
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

// Of what a row trains: the same in every process, made before they fork.
struct Task {
  const Images& training;
  const Images& testing;
  std::vector<std::int64_t> examples;  // in the order in which they are trained on
};

struct Result {
  double accuracy = 0, delay = 0;
};

// Commands to a worker beside the numbers of steps.
constexpr std::int64_t kEvaluate = -1, kFinish = -2;

class Worker {
 public:
  Worker(const ClusterConfig& config, const std::string& staleness, const Task& task)
      : task_(task),
        net_(static_cast<std::uint64_t>(FLAGS_seed)),
        store_(KVStore::join(config, "dist_async:staleness=" + staleness)) {
    std::vector<InitValue> values;
    for (const auto& parameter : net_.parameters()) {
      values.push_back({"p" + std::to_string(values.size()), parameter->value.clone()});
      weights_.push_back({values.back().key, values.back().value});
    }
    store_->init(values);
    const auto total = static_cast<std::int64_t>(task.examples.size());
    store_->set_optimizer(optim::SGD{.lr = FLAGS_lr,
                                     .momentum = FLAGS_momentum,
                                     .schedule = {.form = "step", .every = 3 * total / 4, .factor = 0.1}});
  }

  void train(std::int64_t step) {
    const Batch batch = make_batch(task_.training, std::span(task_.examples).subspan(step * kBatch, kBatch));
    use_weights();
    Tape tape;
    for (const auto& parameter : net_.parameters()) tape.watch(parameter->value, parameter->gradient);
    const NDArray loss = nn::softmax_ce(net_.forward(batch.images, {.training = true}), batch.labels);
    tape.stop();
    tape.backward(loss);
    std::vector<PushItem> pushes;
    for (const auto& parameter : net_.parameters())
      pushes.push_back({weights_[pushes.size()].key, parameter->gradient});
    store_->push_pull(pushes, weights_, kBatch);
    store_->step_end();
    for (const PullItem& item : weights_) item.out.wait();
  }

  Result evaluate() {
    store_->push_pull({}, weights_);
    use_weights();
    constexpr std::int64_t kAtOnce = 500;
    std::int64_t right = 0;
    for (std::int64_t begin = 0; begin < kTest; begin += kAtOnce) {
      std::vector<std::int64_t> examples(kAtOnce);
      std::iota(examples.begin(), examples.end(), begin);
      const Batch batch = make_batch(task_.testing, examples);
      const std::vector<float> scores = net_.forward(batch.images).to_vector<float>();
      for (std::size_t e = 0; e < static_cast<std::size_t>(kAtOnce); ++e) {
        const auto first = scores.begin() + static_cast<std::ptrdiff_t>(10 * e);
        right += std::max_element(first, first + 10) - first ==
                 static_cast<std::ptrdiff_t>(task_.testing.labels[static_cast<std::size_t>(begin) + e]);
      }
    }
    return {100.0 * static_cast<double>(right) / kTest, store_->report().all_delays().mean()};
  }

  void finish() { store_->finish(); }

 private:
  void use_weights() {
    for (std::size_t p = 0; p < weights_.size(); ++p) net_.parameters()[p]->value.copy_from(weights_[p].out);
  }

  const Task& task_;
  const Net net_;
  const std::shared_ptr<KVStore> store_;
  std::vector<PullItem> weights_;
};

template <class T>
bool get(int socket, T& value) {
  return recv(socket, &value, sizeof value, MSG_WAITALL) == sizeof value;
}

template <class T>
bool put(int socket, const T& value) {
  return send(socket, &value, sizeof value, MSG_NOSIGNAL) == sizeof value;
}

// A job of processes: a scheduler, servers and workers, which do what they are told when they are told. To be made
// while this process has one thread.
class Job {
 public:
  Job(const std::string& staleness, int workers, const Task& task) : Job() {
    char folder[] = "/tmp/convergence-XXXXXX";
    if (!mkdtemp(folder)) throw IoError("cannot make a folder in /tmp");
    ClusterConfig config;
    config.job = folder;
    config.transport = FLAGS_transport;
    config.servers = FLAGS_servers;
    config.workers = workers;
    const auto serves = [&config](Role role) {
      return [&config, role](int) {
        config.role = role;
        serve(config);
      };
    };
    config.port_file = std::string(folder) + "/port";
    start(serves(Role::kScheduler));
    while (!(std::ifstream(config.port_file) >> config.scheduler_host >> config.scheduler_port)) {
      char ended;
      if (recv(processes_[0].socket, &ended, 1, MSG_DONTWAIT) == 0) throw Error("the scheduler has failed, see above");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    std::filesystem::remove_all(folder);
    for (int s = 0; s < config.servers; ++s) start(serves(Role::kServer));
    first_worker_ = processes_.size();
    for (config.task = 0; config.task < workers; ++config.task)
      start([&](int socket) {
        Worker worker(config, staleness, task);
        for (std::int64_t command = 0; get(socket, command) && command != kFinish;) {
          if (command == kEvaluate) {
            put(socket, worker.evaluate());
          } else {
            worker.train(command);
            put(socket, command);
          }
        }
        worker.finish();
      });
  }
  ~Job() {
    for (const Process& process : processes_) {
      kill(process.id, SIGKILL);
      waitpid(process.id, nullptr, 0);
      close(process.socket);
    }
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Returns when the worker has done it.
  void train(std::size_t worker, std::int64_t step) {
    if (ask<std::int64_t>(worker, step) != step) throw Error("a worker has done another step than it was told");
  }
  Result evaluate() { return ask<Result>(0, kEvaluate); }
  void finish() {
    for (std::size_t p = first_worker_; p < processes_.size(); ++p) put(processes_[p].socket, kFinish);
    bool failed = false;
    for (const Process& process : processes_) {
      int status = 0;
      waitpid(process.id, &status, 0);
      failed |= status != 0;
      close(process.socket);
    }
    processes_.clear();
    if (failed) throw Error("a process of the job has failed, see above");
  }

 private:
  Job() = default;  // from here on the destructor ends what was started

  struct Process {
    pid_t id;
    int socket;
  };

  template <class Answer>
  Answer ask(std::size_t worker, std::int64_t command) {
    const int socket = processes_[first_worker_ + worker].socket;
    Answer answer;
    if (!put(socket, command) || !get(socket, answer)) throw Error(str("worker ", worker, " has failed, see above"));
    return answer;
  }

  template <class Body>
  void start(const Body& body) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw IoError("cannot make a pair of sockets");
    const pid_t process = fork();
    if (process < 0) throw IoError("cannot start a process");
    if (process == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::_Exit(tools::run_main("convergence", [&] {
        body(ends[1]);
        return EXIT_SUCCESS;
      }));
    }
    close(ends[1]);
    processes_.push_back({process, ends[0]});
  }

  std::vector<Process> processes_;
  std::size_t first_worker_ = 0;
};

Result train(const Row& row, const Task& task) {
  const int workers = row.one_worker ? 1 : FLAGS_workers;
  Job job(row.staleness, workers, task);
  for (std::int64_t step = 0; step < static_cast<std::int64_t>(task.examples.size()) / kBatch; ++step) {
    const auto turn = FLAGS_schedule == "const"
                          ? static_cast<std::uint64_t>(step)
                          : counter_random(static_cast<std::uint64_t>(FLAGS_seed), static_cast<std::uint64_t>(step));
    job.train(turn % static_cast<std::uint64_t>(workers), step);
  }
  const Result result = job.evaluate();
  job.finish();
  return result;
}

int run() {
  require(!FLAGS_data.empty(), "--data names no folder of images");
  require(FLAGS_schedule == "exp" || FLAGS_schedule == "const", "--schedule is '", FLAGS_schedule,
          "', expected exp or const");
  require(FLAGS_workers >= 1 && FLAGS_epochs >= 1, "--workers and --epochs are at least 1");
  require(FLAGS_servers >= 1 && (FLAGS_transport == "shm" || FLAGS_transport == "tcp"),
          "--servers is at least 1, --transport shm or tcp");
  std::mt19937_64 random(static_cast<std::uint64_t>(FLAGS_seed));
  const std::filesystem::path data(FLAGS_data);
  const Images training = load_images(data / "train", kTrain, random),
               testing = load_images(data / "test", kTest, random);
  Task task{training, testing, {}};
  random.seed(static_cast<std::uint64_t>(FLAGS_seed) + 1);
  std::vector<std::int64_t> order(kTrain);
  std::iota(order.begin(), order.end(), 0);
  for (int epoch = 0; epoch < FLAGS_epochs; ++epoch) {
    std::shuffle(order.begin(), order.end(), random);
    task.examples.insert(task.examples.end(), order.begin(), order.end());
  }
  std::printf("| policy | workers | schedule | mean delay | test accuracy %% | seconds |\n|---|---|---|---|---|---|\n");
  std::fflush(stdout);
  for (std::size_t begin = 0; begin < FLAGS_rows.size();) {
    const std::size_t end = std::min(FLAGS_rows.find(',', begin), FLAGS_rows.size());
    const Row row = row_of(FLAGS_rows.substr(begin, end - begin));
    begin = end + 1;
    const auto start = std::chrono::steady_clock::now();
    const Result result = train(row, task);
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

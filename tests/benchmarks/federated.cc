// Federated averaging (McMahan et al. 2017) on MNIST: clients of this process, each with images of two classes and a
// worker's KVStore of its own, train through real servers until the mean of their weights is good enough.
#include <gflags/gflags.h>
#include <paceline/cores.h>
#include <paceline/kvstore.h>
#include <paceline/log.h>
#include <paceline/nn.h>
#include <paceline/record_loader.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "../../tools/flags.h"

DEFINE_string(train, "", "manifest of the training set, written by im2rec");
DEFINE_string(test, "", "manifest of the test set");
DEFINE_int32(clients, 100, "a multiple of 5");
DEFINE_double(fraction, 0.1, "of the clients in each round");
DEFINE_int32(local_epochs, 5, "that a client trains in a round");
DEFINE_int32(batch_size, 10, "examples in a batch, about: every client cuts its images into as many batches");
DEFINE_double(lr, 0.05, "learning rate of the clients, constant");
DEFINE_int32(rounds, 200, "at most");
DEFINE_double(target, 0.97, "ends at this test accuracy");
DEFINE_int32(every, 5, "rounds between two evaluations");
DEFINE_int32(vanish, 0, "so many clients end without a word in the middle of their first round");
DEFINE_double(silence, 15, "seconds until a client that is not heard of is lost");
DEFINE_int32(seed, 1, "of weights, of who has which images, and of who takes part");
DEFINE_bool(processes, false,
            "join the job that the environment describes (DMLC_*) instead of two servers in this process");

using namespace paceline;

namespace {

constexpr char kUsage[] =
    "federated --train MANIFEST --test MANIFEST [flags]\n\n"
    "Federated averaging on MNIST: every client is a thread with images of two classes and a store of its own; two\n"
    "servers average what those that were drawn for a round learned in it. Prints a table of rounds and accuracy, and\n"
    "ends with 0 once the mean is as good as --target.";

constexpr std::int64_t kPixels = 28 * 28;
constexpr int kClasses = 10;

RecordLoaderOptions images() {
  RecordLoaderOptions options;
  options.batch = 500;
  options.image.mean = {0.1307f};
  options.image.deviation = {0.3081f};
  return options;
}

struct Examples {
  std::vector<float> pixels;
  std::vector<std::int32_t> labels;
};

Examples load(const std::string& manifest) {
  Examples examples;
  RecordLoader loader(manifest, images());
  Batch batch;
  for (loader.start(0); loader.next(batch);) {
    const std::vector<float> pixels = batch.data.to_vector<float>();
    examples.pixels.insert(examples.pixels.end(), pixels.begin(), pixels.end());
    for (const std::int32_t label : batch.label.to_vector<std::int32_t>()) examples.labels.push_back(label);
  }
  return examples;
}

// Every class is cut into as many shards; each client gets two of different classes.
std::vector<std::vector<std::int64_t>> share_out(const Examples& examples, std::size_t clients,
                                                 std::mt19937_64& random) {
  std::array<std::vector<std::int64_t>, kClasses> classes;
  for (std::size_t i = 0; i < examples.labels.size(); ++i)
    classes.at(static_cast<std::size_t>(examples.labels[i])).push_back(static_cast<std::int64_t>(i));
  std::vector<std::size_t> shards(2 * clients);
  std::iota(shards.begin(), shards.end(), 0);
  std::shuffle(shards.begin(), shards.end(), random);
  // A swap may spoil a pair that was good before.
  for (std::size_t good = 0, c = 0; good < clients; c = (c + 1) % clients) {
    good = shards[2 * c] % kClasses == shards[2 * c + 1] % kClasses ? 0 : good + 1;
    if (good == 0) std::swap(shards[2 * c + 1], shards[random() % shards.size()]);
  }
  const std::size_t in_class = 2 * clients / kClasses;
  std::vector<std::vector<std::int64_t>> shares(clients);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::vector<std::int64_t>& all = classes[shards[i] % kClasses];
    const std::size_t part = shards[i] / kClasses;
    for (std::size_t e = part * all.size() / in_class; e < (part + 1) * all.size() / in_class; ++e)
      shares[i / 2].push_back(all[e]);
  }
  return shares;
}

Batch make_batch(const Examples& examples, std::span<const std::int64_t> chosen) {
  std::vector<float> pixels;
  std::vector<std::int32_t> labels;
  for (const std::int64_t e : chosen) {
    pixels.insert(pixels.end(), examples.pixels.begin() + e * kPixels, examples.pixels.begin() + (e + 1) * kPixels);
    labels.push_back(examples.labels[static_cast<std::size_t>(e)]);
  }
  Batch batch;
  batch.examples = static_cast<std::int64_t>(chosen.size());
  batch.data = NDArray::from<float>(pixels, Shape{batch.examples, 1, 28, 28});
  batch.label = NDArray::from<std::int32_t>(labels, Shape{batch.examples});
  return batch;
}

nn::Module lenet() {
  return nn::Sequential(nn::Conv2d(6, 5, {.padding = 2}), nn::Tanh(), nn::MaxPool(2),  //
                        nn::Conv2d(16, 5), nn::Tanh(), nn::MaxPool(2),                 //
                        nn::Flatten(), nn::Dense(120), nn::Tanh(), nn::Dense(84), nn::Tanh(), nn::Dense(kClasses));
}

void wait_for_weights(const nn::Module& net) {
  for (const auto& parameter : net.parameters()) parameter->value.wait();
}

// What the clients have reached together.
class Progress {
 public:
  bool over() const { return over_; }
  bool reached() const { return reached_; }

  // The weights of the first client to come, after every so many rounds, are tested.
  void after_round(std::int64_t round, const nn::Module& net) {
    if (round < next_) return;
    const std::lock_guard lock(mutex_);
    if (round < next_ || over_) return;
    next_ = std::min<std::int64_t>((round / FLAGS_every + 1) * FLAGS_every, FLAGS_rounds);
    wait_for_weights(net);
    RecordLoader test(FLAGS_test, images());
    const double accuracy = nn::evaluate(net, test);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
    std::printf("| %lld | %.2f | %.0f |\n", static_cast<long long>(round), 100 * accuracy, seconds.count());
    std::fflush(stdout);
    reached_ = accuracy >= FLAGS_target;
    over_ = reached_ || round >= FLAGS_rounds;
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::atomic<std::int64_t> next_ = std::min(FLAGS_every, FLAGS_rounds);
  std::atomic<bool> over_ = false, reached_ = false;
};

struct Vanished {};

class Client {
 public:
  Client(const ClusterConfig& config, const Examples& examples, std::vector<std::int64_t> mine, std::int64_t batches,
         bool vanishes)
      : examples_(examples),
        mine_(std::move(mine)),
        batches_(batches),
        vanishes_(vanishes),
        random_(static_cast<std::uint64_t>(FLAGS_seed * 1000 + config.task)),
        store_(KVStore::join(config, str("dist_local:averaging=federated,steps=", FLAGS_local_epochs * batches,
                                         ",fraction=", FLAGS_fraction, ",seed=", FLAGS_seed))) {}

  void train(Progress& progress) {
    nn::Trainer trainer(lenet(), optim::SGD{.lr = FLAGS_lr}, store_, {.seed = static_cast<std::uint64_t>(FLAGS_seed)});
    while (!progress.over()) {
      std::int64_t round = store_->report().clock;
      for (std::int64_t step = 0; step < FLAGS_local_epochs * batches_; ++step) {
        if (step % batches_ == 0) std::shuffle(mine_.begin(), mine_.end(), random_);
        trainer.step(batch(step % batches_), nn::softmax_ce);
        if (vanishes_ && step == FLAGS_local_epochs * batches_ / 2) throw Vanished();
        if (step > 0) continue;
        // In rounds of others the store drops a step and waits for the next round of this client's own.
        if (const std::int64_t own = store_->report().clock; own != round) {
          // Tasks queued meanwhile, by all the clients that wait, would fill the engine that they share.
          wait_for_weights(trainer.net());
          if (progress.over()) break;
          round = own;
          trainer.step(batch(0), nn::softmax_ce);
        }
      }
      progress.after_round(round + 1, trainer.net());
    }
    store_->finish();
  }

 private:
  Batch batch(std::int64_t number) const {
    const auto size = static_cast<std::int64_t>(mine_.size());
    const std::int64_t begin = number * size / batches_, end = (number + 1) * size / batches_;
    return make_batch(examples_,
                      std::span(mine_).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
  }

  const Examples& examples_;
  std::vector<std::int64_t> mine_;
  const std::int64_t batches_;  // of an epoch, as many at every client
  const bool vanishes_;
  std::mt19937_64 random_;
  const std::shared_ptr<KVStore> store_;
};

int run() {
  require(!FLAGS_train.empty() && !FLAGS_test.empty(), "--train and --test name the manifests that im2rec wrote");
  require(FLAGS_clients >= 5 && FLAGS_clients % 5 == 0, "--clients is ", FLAGS_clients, ", expected a multiple of 5");
  require(FLAGS_local_epochs >= 1 && FLAGS_batch_size >= 1 && FLAGS_every >= 1 && FLAGS_rounds >= 1,
          "--local_epochs, --batch_size, --every and --rounds are at least 1");
  const Examples examples = load(FLAGS_train);
  const auto clients = static_cast<std::size_t>(FLAGS_clients);
  const auto mean_share = static_cast<std::int64_t>(examples.labels.size() / clients);
  const std::int64_t batches = mean_share / FLAGS_batch_size;
  require(batches >= 2, "--batch_size is ", FLAGS_batch_size, ", more than half of a client's ", mean_share, " images");
  std::mt19937_64 random(static_cast<std::uint64_t>(FLAGS_seed));
  auto shares = share_out(examples, clients, random);

  ClusterConfig config;
  std::vector<std::thread> servers;
  if (FLAGS_processes) {
    config = ClusterConfig::from_environment();
  } else {
    config.transport = "inproc";
    config.scheduler_host = "federated";
    config.servers = 2;
    for (const Role role : {Role::kScheduler, Role::kServer, Role::kServer})
      servers.emplace_back([own = config, role]() mutable {
        own.role = role;
        own.workers = FLAGS_clients;
        own.silence_deadline_seconds = FLAGS_silence;
        serve(own);
      });
  }
  config.workers = FLAGS_clients;
  config.silence_deadline_seconds = FLAGS_silence;
  std::printf("| rounds | test accuracy %% | seconds |\n|---|---|---|\n");
  Progress progress;
  std::vector<std::thread> threads;
  for (std::size_t c = 0; c < clients; ++c) {
    threads.emplace_back([&, c] {
      ClusterConfig mine = config;
      mine.task = static_cast<int>(c);
      try {
        Client(mine, examples, std::move(shares[c]), batches, static_cast<int>(c) < FLAGS_vanish).train(progress);
      } catch (const Vanished&) {
      } catch (const std::exception& error) {
        std::fprintf(stderr, "federated: client %zu: %s\n", c, error.what());
        std::_Exit(EXIT_FAILURE);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::thread& server : servers) server.join();
  return progress.reached() ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  use_passive_waiting(argv);
  keep_freed_memory();
  tools::parse_flags(kUsage, __FILE__, &argc, &argv);
  start_logging(argv[0]);
  FLAGS_minloglevel = 2;  // a server that keeps a client waiting for its round is worth a warning elsewhere
  return tools::run_main("federated", run);
}

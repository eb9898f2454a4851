// Trains a small network on MNIST, alone or as a worker of a distributed job: the same program, the mode is a flag.
#include <gflags/gflags.h>
#include <paceline/cluster.h>
#include <paceline/cores.h>
#include <paceline/engine_observer.h>
#include <paceline/kvstore.h>
#include <paceline/log.h>
#include <paceline/nn.h>
#include <paceline/record_loader.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "../tools/flags.h"

DEFINE_string(kvstore, "local", "mode of the store, with options: local, dist_sync, dist_async:bound=4,staleness=gap_aware, ...");
DEFINE_string(train, "", "manifest of the training set, written by im2rec");
DEFINE_string(test, "", "manifest of the test set; without it nothing is evaluated, and test_accuracy is null");
DEFINE_string(network, "lenet", "lenet (LeNet-5, 61,706 parameters) or mlp (784-512-512-10)");
DEFINE_string(optimizer, "nesterov", "sgd, momentum, nesterov or adam");
DEFINE_double(lr, 0.05, "learning rate at the start");
DEFINE_double(momentum, 0.9, "momentum, for the optimizers that have one");
DEFINE_double(weight_decay, 0, "weight decay");
DEFINE_string(schedule, "linear", "how the learning rate falls to 0 at the end: constant, linear or cosine");
DEFINE_int32(batch_size, 64, "examples in a batch of one worker");
DEFINE_int32(epochs, 3, "passes over the training set");
DEFINE_uint64(seed, 1, "of weights and order");
DEFINE_string(checkpoint, "", "folder of the checkpoint: written after each epoch, resumed from if present");
DEFINE_string(evaluate, "", "do not train: load this checkpoint file and print the accuracy");
DEFINE_int32(log_every, 100, "steps between two lines of progress");
DEFINE_int32(slow_worker, -1, "for trying out stragglers: the rank of a worker that sleeps after every step; -1: none");
DEFINE_double(slow_factor, 5, "how many times as long its steps take");
DEFINE_string(trace, "", "write the engine's tasks to this file, for chrome://tracing");

namespace {

using namespace paceline;

nn::Module network(const std::string& name) {
  if (name == "mlp")
    return nn::Sequential(nn::Flatten(), nn::Dense(512), nn::Relu(), nn::Dense(512), nn::Relu(), nn::Dense(10));
  require(name == "lenet", "unknown --network '", name, "'; known: lenet mlp");
  return nn::Sequential(nn::Conv2d(6, 5, {.padding = 2}), nn::Tanh(), nn::MaxPool(2),  //
                        nn::Conv2d(16, 5), nn::Tanh(), nn::MaxPool(2),                 //
                        nn::Flatten(), nn::Dense(120), nn::Tanh(), nn::Dense(84), nn::Tanh(), nn::Dense(10));
}

RecordLoaderOptions images() {
  RecordLoaderOptions options;
  options.batch = FLAGS_batch_size;
  options.image.mean = {0.1307f};
  options.image.deviation = {0.3081f};
  return options;
}

double test_accuracy(const nn::Module& net) {
  RecordLoaderOptions options = images();
  options.batch = 500;
  RecordLoader test(FLAGS_test, options);
  return nn::evaluate(net, test);
}

double test_accuracy(const std::string& checkpoint) {
  RecordLoader test(FLAGS_test, images());
  Batch first;
  test.start(0);
  require(test.next(first), "'", FLAGS_test, "' holds no records");
  const nn::Module net = network(FLAGS_network);
  net.initialize(first.data.shape(), FLAGS_seed);
  nn::load_weights(net, checkpoint);
  return test_accuracy(net);
}

void show(const nn::TrainerReport& report) {
  static const bool terminal = isatty(STDERR_FILENO);
  if (terminal)
    std::cerr << "\r\033[K" << report << std::flush;
  else
    std::cerr << report << std::endl;
}

// Makes a step that began at `began` take --slow_factor times as long as it does.
void slow_down(const nn::Module& net, std::chrono::steady_clock::time_point began) {
  for (const auto& parameter : net.parameters()) parameter->value.wait();
  std::this_thread::sleep_for((FLAGS_slow_factor - 1) * (std::chrono::steady_clock::now() - began));
}

void train() {
  auto kv = KVStore::create(FLAGS_kvstore);
  RecordLoaderOptions loading = images();
  loading.shuffle = FLAGS_seed;
  loading.source = nn::shared_source(kv);
  RecordLoader data(FLAGS_train, loading);
  // Other workers need the test set only if they come to lead.
  if (!FLAGS_test.empty() && kv->rank() == 0) RecordLoader(FLAGS_test, images());

  Spec optimizer{FLAGS_optimizer, {}};
  optimizer.options.set("lr", str(FLAGS_lr));
  if (FLAGS_optimizer == "momentum" || FLAGS_optimizer == "nesterov")
    optimizer.options.set("momentum", str(FLAGS_momentum));
  if (FLAGS_weight_decay != 0) optimizer.options.set("weight_decay", str(FLAGS_weight_decay));
  if (FLAGS_schedule != "constant") {
    optimizer.options.set("schedule", FLAGS_schedule);
    optimizer.options.set("schedule_examples", str(data.size() * FLAGS_epochs));
  }

  nn::Trainer trainer(network(FLAGS_network), optimizer, kv, {.seed = FLAGS_seed});
  std::string checkpoint;
  if (!FLAGS_checkpoint.empty() && trainer.resume_if_present(FLAGS_checkpoint))
    checkpoint = nn::checkpoint_path(FLAGS_checkpoint);
  kv->barrier();
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t first_epoch = trainer.epoch();
  double accuracy = 0, evaluating = 0;
  std::int64_t evaluated = -1;
  const auto evaluate = [&] {
    const auto before = std::chrono::steady_clock::now();
    // A worker that took a lost one's place may have had nothing to train yet.
    if (trainer.net().parameter_count() > 0)
      accuracy = test_accuracy(trainer.net());
    else if (!checkpoint.empty())
      accuracy = test_accuracy(checkpoint);
    evaluated = trainer.epoch();
    evaluating += std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
    std::fprintf(stderr, "%sepoch %lld of %d: test accuracy %.4f\n", isatty(STDERR_FILENO) ? "\n" : "",
                 static_cast<long long>(trainer.epoch()), FLAGS_epochs, accuracy);
  };
  while (trainer.epoch() < FLAGS_epochs) {
    auto began = std::chrono::steady_clock::now();
    for (Batch& batch : trainer.epoch_of(data)) {
      trainer.step(batch, nn::softmax_ce);
      if (kv->rank() == FLAGS_slow_worker) slow_down(trainer.net(), began);
      began = std::chrono::steady_clock::now();
      if (trainer.every(FLAGS_log_every)) show(trainer.report());
    }
    trainer.synchronize();
    if (!FLAGS_checkpoint.empty()) checkpoint = trainer.checkpoint(FLAGS_checkpoint);
    if (!FLAGS_test.empty() && kv->exchange().leads()) evaluate();
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() - evaluating;
  // Whoever led may have been lost while it evaluated: one of those that are still there prints.
  kv->barrier();
  const bool leads = kv->exchange().leads();
  kv->barrier();
  if (leads && !FLAGS_test.empty() && evaluated != trainer.epoch()) evaluate();
  const StoreReport report = kv->report();
  kv->finish();
  if (!leads) return;
  const Histogram delays = report.all_delays();
  const bool bounded = Spec::parse(FLAGS_kvstore).options.has("bound");  // else nobody counts
  nlohmann::json waits = nlohmann::json::array();
  for (const WorkerWait& wait : report.waits) waits.push_back(wait.seconds);
  const double examples = static_cast<double>(data.size() * (trainer.epoch() - first_epoch));
  std::cout << nlohmann::json{{"mode", FLAGS_kvstore},
                              {"network", FLAGS_network},
                              {"workers", kv->size()},
                              {"servers", kv->exchange().server_count()},
                              {"epochs", trainer.epoch()},
                              {"test_accuracy", FLAGS_test.empty() ? nlohmann::json() : nlohmann::json(accuracy)},
                              {"train_seconds", seconds},
                              {"images_per_second", seconds > 0 ? examples / seconds : 0},
                              {"delay_mean", delays.mean()},
                              {"delay_p50", delays.quantile(0.5)},
                              {"delay_p99", delays.quantile(0.99)},
                              {"wait_seconds", waits},
                              {"furthest_ahead", bounded ? nlohmann::json(report.furthest_ahead) : nlohmann::json()},
                              {"checkpoint", checkpoint}}
            << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  use_passive_waiting(argv);
  keep_freed_memory();
  tools::parse_flags(
      "mnist --train MANIFEST [--test MANIFEST] [flags]\n\n"
      "Trains LeNet-5 or an MLP on MNIST, alone or as a worker of a job:\n"
      "  mnist --train train.manifest --test test.manifest\n"
      "  launch.py -n 2 -s 2 mnist --kvstore dist_async --train train.manifest --test test.manifest",
      __FILE__, &argc, &argv);
  start_logging(argv[0]);
  try {
    require(argc == 1, "unknown argument '", argc > 1 ? argv[1] : "", "'; see --help");
    std::shared_ptr<ChromeTrace> trace;
    if (!FLAGS_trace.empty()) {
      default_engine().add_observer(trace = make_chrome_trace(FLAGS_trace));
      trace->flush();  // a path that cannot be written shows before hours of training
    }
    require(FLAGS_slow_factor >= 1, "--slow_factor is ", FLAGS_slow_factor, ", expected at least 1");
    require(FLAGS_epochs >= 1 && FLAGS_batch_size >= 1 && FLAGS_log_every >= 1,
            "--epochs, --batch_size and --log_every are at least 1");
    if (!FLAGS_evaluate.empty()) {
      require(!FLAGS_test.empty(), "--evaluate needs --test, the manifest to evaluate on");
      std::cout << nlohmann::json{{"checkpoint", FLAGS_evaluate}, {"test_accuracy", test_accuracy(FLAGS_evaluate)}}
                << std::endl;
    } else {
      require(!FLAGS_train.empty(), "--train is missing: the manifest that im2rec wrote");
      train();
    }
    if (trace) trace->flush();
  } catch (const std::exception& error) {
    std::cerr << "mnist: " << error.what() << std::endl;
    return 1;
  }
}

#include "training.h"

#include <paceline/catalog.h>
#include <paceline/kvstore.h>
#include <paceline/remote_path.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <thread>

#include "program.h"

DEFINE_double(clip_norm, 0, "scale a worker's gradients to a norm of at most this; 0: off");
DEFINE_string(
    precision, "float32",
    "what the network computes in: float32, or bfloat16 or float16 with weights kept in float32; tests are in float32");
DEFINE_bool(channels_last, false, "convolutions over images with their channels last in memory, for GPUs");
DEFINE_bool(
    captured, true,
    "replay the step from a plan, with the same numbers; not where there are several devices or sparse gradients");
DEFINE_string(on_nan, "stop",
              "where a loss is not finite: stop, before a checkpoint is overwritten; skip the step; warn; or ignore");
DEFINE_int32(slow_worker, -1, "for trying out stragglers: the rank of a worker that sleeps after every step; -1: none");
DEFINE_double(slow_factor, 5, "how many times as long its steps take");

namespace paceline::examples {

const char* const kTrainingFlags = __FILE__;

namespace {

using nlohmann::json;

nn::Evaluation evaluate(const Task& task, const nn::Module& net) {
  return nn::evaluate(net, *task.test(), task.loss, Device(std::string_view(FLAGS_device)));
}

nn::Evaluation evaluate(const Task& task, const std::string& checkpoint) {
  Batch first;
  const auto test = task.test();
  test->start(0);
  require(test->next(first), "the data to evaluate on holds no examples");
  const nn::Module net = task.network();
  net.initialize(first.data.shape(), FLAGS_seed, Device(std::string_view(FLAGS_device)));
  const nn::LoadedWeights loaded = nn::load_weights(net, checkpoint, {.allow_missing = true, .allow_extra = true});
  for (const auto* names : {&loaded.other_shape, &loaded.missing, &loaded.extra})
    require(names->empty(), "'", redacted(checkpoint), "' is of another network: they differ in '",
            names->empty() ? "" : names->front(),
            "'; give the flags of the network (--network, --classes, --hidden, ...) that its training had");
  return evaluate(task, net);
}

std::string text_of(const Task& task, const nn::TrainerReport& report) {
  char text[160];
  std::snprintf(text, sizeof text, "epoch %lld  step %lld  loss %.4f  %.0f %s/s",
                static_cast<long long>(report.epoch + 1), static_cast<long long>(report.steps), report.loss,
                report.examples_per_second * static_cast<double>(task.units), task.unit.c_str());
  return report.left_out > 0 ? str(text, "  ", report.left_out, " steps left out") : text;
}

// Makes a step that began at `began` take --slow_factor times as long as it does.
void slow_down(const nn::Module& net, Clock::time_point began) {
  for (const auto& parameter : net.parameters()) parameter->value.wait();
  std::this_thread::sleep_for((FLAGS_slow_factor - 1) * (Clock::now() - began));
}

const Catalog<nn::OnNan> kOnNan("on_nan", {{"warn", nn::OnNan::kWarn},
                                           {"stop", nn::OnNan::kStop},
                                           {"skip", nn::OnNan::kSkip},
                                           {"ignore", nn::OnNan::kIgnore}});

class Run {
 public:
  explicit Run(const Task& task)
      : task_(task),
        kv_(store_of_flags()),
        data_(task.data(source_of_flags(kv_))),
        trainer_(task.network(), optimizer_of_flags(data_->size()), kv_,
                 {.seed = FLAGS_seed,
                  .device = Device(std::string_view(FLAGS_device)),
                  .precision = parse_dtype(FLAGS_precision),
                  .channels_last = FLAGS_channels_last,
                  .clip_norm = FLAGS_clip_norm,
                  .captured = FLAGS_captured && task.captured,
                  .on_nan = kOnNan.at(FLAGS_on_nan),
                  .notes = task.notes}) {
    require(FLAGS_slow_worker < kv_->size(), "--slow_worker is ", FLAGS_slow_worker, ", expected a rank below ",
            kv_->size(), ", the number of workers");
    if (task.tables && kv_->rank() == 0 && !kv_->holds_tables())
      show_result(
          str("mode '", FLAGS_kvstore, "' holds no row-sparse tables: gradients are dense in spite of --sparse_grad"));
  }

  void train() {
    const std::string path = nn::checkpoint_path(FLAGS_checkpoint);
    const auto check = [&](const nn::Notes& trained) { require_as_trained(path, trained, task_.notes); };
    if (!FLAGS_checkpoint.empty() && trainer_.resume_if_present(FLAGS_checkpoint, check)) checkpoint_ = path;
    const std::int64_t first_epoch = trainer_.epoch(), before = examples_done(*kv_, first_epoch);
    kv_->barrier();
    const auto start = Clock::now();
    if (first_epoch >= FLAGS_epochs && kv_->backend().leads()) show_nothing_left(checkpoint_, first_epoch);
    while (trainer_.epoch() < FLAGS_epochs && !enough_steps(steps_)) {
      train_epoch();
      trainer_.synchronize();
      if (!FLAGS_checkpoint.empty()) checkpoint_ = trainer_.checkpoint(FLAGS_checkpoint);
      if (task_.test && kv_->backend().leads()) evaluate();
    }
    const double seconds = seconds_since(start) - evaluating_;
    // Whoever led may have been lost while it evaluated: one of those that are still there prints.
    kv_->barrier();
    const bool leads = kv_->backend().leads();
    kv_->barrier();
    if (leads && task_.test && evaluated_ != trainer_.epoch()) evaluate();
    const StoreReport report = kv_->report();
    kv_->finish();
    const std::int64_t trained = data_->size() * (trainer_.epoch() - first_epoch) - before;
    if (leads) print(report, seconds, FLAGS_max_steps > 0 ? examples_ : std::max(trained, std::int64_t{0}));
  }

 private:
  void train_epoch() {
    auto began = Clock::now();
    for (Batch& batch : trainer_.epoch_of(*data_)) {
      trainer_.step(batch, task_.loss);
      if (kv_->rank() == FLAGS_slow_worker) slow_down(trainer_.net(), began);
      began = Clock::now();
      ++steps_;
      examples_ += batch.examples;
      if (trainer_.every(FLAGS_log_every)) show_progress(text_of(task_, trainer_.report()));
      if (!enough_steps(steps_)) continue;
      return show_result(str("ends after ", steps_, " steps, as --max_steps says"));
    }
    const LoaderTiming timing = data_->timing();
    if (timing.batches > 0 && kv_->backend().leads())
      show_result(str("epoch ", trainer_.epoch(), " of ", FLAGS_epochs, ": ", timing));
  }

  void evaluate() {
    const auto before = Clock::now();
    // A worker that took a lost one's place may have had nothing to train yet.
    if (trainer_.net().parameter_count() > 0)
      found_ = examples::evaluate(task_, trainer_.net());
    else if (!checkpoint_.empty())
      found_ = examples::evaluate(task_, checkpoint_);
    else
      return show_result("this worker has nothing to evaluate: it came when all was trained");
    evaluated_ = trainer_.epoch();
    evaluating_ += seconds_since(before);
    char text[64];
    std::snprintf(text, sizeof text, " accuracy %.4f, loss %.4f", found_.accuracy, found_.loss);
    show_result(str("epoch ", trainer_.epoch(), " of ", FLAGS_epochs, ": ", task_.tested, text));
  }

  void print(const StoreReport& report, double seconds, std::int64_t examples) {
    const Histogram delays = report.all_delays();
    const bool bounded = Spec::parse(FLAGS_kvstore).options.has("bound");  // else nobody counts
    json waits = json::array();
    for (const WorkerWait& wait : report.waits) waits.push_back(wait.seconds);
    const double units = static_cast<double>(examples * task_.units);
    json result = task_.description;
    result.update({{"mode", FLAGS_kvstore},
                   {"workers", kv_->size()},
                   {"servers", kv_->backend().server_count()},
                   {"epochs", trainer_.epoch()},
                   {task_.tested + "_accuracy", evaluated_ >= 0 ? json(found_.accuracy) : json()},
                   {task_.tested + "_loss", evaluated_ >= 0 ? json(found_.loss) : json()},
                   {"train_seconds", seconds},
                   {task_.unit + "_per_second", seconds > 0 ? units / seconds : 0},
                   {"delay_mean", delays.mean()},
                   {"delay_p50", delays.quantile(0.5)},
                   {"delay_p99", delays.quantile(0.99)},
                   {"wait_seconds", waits},
                   {"furthest_ahead", bounded ? json(report.furthest_ahead) : json()},
                   {"checkpoint", checkpoint_}});
    std::cout << result << '\n' << std::flush;
  }

  const Task& task_;
  std::shared_ptr<KVStore> kv_;
  std::unique_ptr<DataIterator> data_;
  nn::Trainer trainer_;
  std::string checkpoint_;
  nn::Evaluation found_;
  double evaluating_ = 0;
  std::int64_t evaluated_ = -1, steps_ = 0, examples_ = 0;  // of this run
};

}  // namespace

void train_or_evaluate(const Task& task) {
  require(FLAGS_slow_factor >= 1, "--slow_factor is ", FLAGS_slow_factor, ", expected at least 1");
  if (FLAGS_slow_worker < 0) refuse_without_effect({"slow_factor"}, "without --slow_worker");
  if (FLAGS_evaluate.empty()) {
    // Before the process joins, so that a job does not begin without the worker that writes its checkpoints, and does
    // not lose whoever comes to lead over a test set.
    require_checkpoint_folder();
    if (task.test && trains()) task.test();
    return Run(task).train();
  }
  require_checkpoint();
  require_as_trained(FLAGS_evaluate, nn::checkpoint_notes(FLAGS_evaluate), task.notes);
  const nn::Evaluation found = evaluate(task, FLAGS_evaluate);
  std::cout << json{{"checkpoint", FLAGS_evaluate},
                    {task.tested + "_accuracy", found.accuracy},
                    {task.tested + "_loss", found.loss}}
            << '\n'
            << std::flush;
}

}  // namespace paceline::examples

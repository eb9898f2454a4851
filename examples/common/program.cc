#include "program.h"

#include <paceline/cores.h>
#include <paceline/engine_observer.h>
#include <paceline/kernel.h>
#include <paceline/kvstore.h>
#include <paceline/log.h>
#include <paceline/remote_path.h>
#include <paceline/trainer.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <system_error>

#include "../../tools/flags.h"

DEFINE_string(kvstore, "local",
              "mode of the store, with options: local, dist_sync, dist_async:bound=4,staleness=gap_aware, ...");
DEFINE_string(device, "cpu", "where the network is computed: cpu, cuda:0, ...");
DEFINE_string(
    optimizer, "nesterov",
    "sgd, momentum, nesterov, adam or adamw, with options: adam:lr=0.001,beta2=0.99; --lr and the other flags of the "
    "optimizer say what is missing here");
DEFINE_double(lr, 0.05, "learning rate at the start");
DEFINE_double(momentum, 0.9, "momentum, for the optimizers that have one");
DEFINE_double(weight_decay, 0, "weight decay; where it is not given, the optimizer's own: 0, but 0.01 for adamw");
DEFINE_string(schedule, "linear", "how the learning rate falls: constant, linear or cosine (to 0 at the end), or step");
DEFINE_double(warmup, 0, "epochs in which the learning rate rises from 0 first");
DEFINE_double(step_epochs, 30, "schedule=step: epochs between two steps");
DEFINE_double(step_factor, 0.1, "schedule=step: what each step multiplies the learning rate by");
DEFINE_int32(batch_size, 64, "examples in a batch of one worker");
DEFINE_int32(epochs, 3, "passes over the training set");
DEFINE_int32(
    max_steps, 0,
    "steps after which this run ends as at the end of its epochs; a checkpoint goes on behind them; one process "
    "alone; 0: no limit");
DEFINE_string(balance, "even",
              "how workers share an epoch: even, in equal parts, or dynamic, where each asks for more when it is done");
DEFINE_uint64(seed, 1, "of weights and order");
DEFINE_int32(log_every, 100, "steps between two lines of progress");
DEFINE_string(checkpoint, "",
              "folder of the checkpoint, or s3://BUCKET/FOLDER: written after each epoch, resumed from if present");
DEFINE_string(evaluate, "", "do not train: load this checkpoint, a folder or its file, and evaluate it");
DEFINE_string(
    trace, "",
    "write the engine's tasks to this file, for chrome://tracing; in a job to FILE.worker-0, FILE.worker-1, ...");

namespace paceline::examples {
namespace {

bool line_is_open = false;  // the terminal shows a line of progress

struct LineEnd {
  ~LineEnd() {
    if (line_is_open) std::cerr << '\n' << std::flush;
  }
};

void check_flags() {
  for (const auto& [flag, value] :
       {std::pair{"epochs", FLAGS_epochs}, {"batch_size", FLAGS_batch_size}, {"log_every", FLAGS_log_every}})
    require(value >= 1, "--", flag, " is ", value, ", expected at least 1");
  require(FLAGS_max_steps >= 0, "--max_steps is ", FLAGS_max_steps, ", expected a number of steps, or 0 for no limit");
  require(FLAGS_warmup >= 0, "--warmup is ", FLAGS_warmup, ", expected a number of epochs");
  require(FLAGS_schedule != "step" || (FLAGS_step_epochs > 0 && FLAGS_step_factor > 0), "--step_epochs is ",
          FLAGS_step_epochs, " and --step_factor ", FLAGS_step_factor, ", expected numbers above 0");
  Device(std::string_view(FLAGS_device));
  nn::parse_balance(FLAGS_balance);
  require(FLAGS_evaluate.empty() || variable("DMLC_ROLE").empty(), "--evaluate runs alone: start it without launch.py");
}

// Processes of a job may share a folder.
std::string trace_path() {
  const std::string role = variable("DMLC_ROLE"), task = variable("DMLC_TASK_ID");
  return role.empty() ? FLAGS_trace : str(FLAGS_trace, '.', role, '-', task.empty() ? std::to_string(getpid()) : task);
}

bool is_given(const char* flag) { return !gflags::GetCommandLineFlagInfoOrDie(flag).is_default; }

std::string host_name() {
  char name[256] = "";
  return gethostname(name, sizeof name - 1) == 0 && *name ? name : "unknown";
}

bool is_folder(const std::string& path) {
  std::error_code none;
  return std::filesystem::is_directory(path, none);
}

// Is this process alone, or the worker with task number 0, which gets rank 0? Without task numbers nobody is.
bool leads_at_first() {
  const std::string task = variable("DMLC_TASK_ID");
  return variable("DMLC_ROLE").empty() ||
         (trains() && !task.empty() && task.find_first_not_of('0') == std::string::npos);
}

}  // namespace

int run(const Program& program, int argc, char** argv, const std::function<void()>& body) {
  use_passive_waiting(argv);
  keep_freed_memory();
  for (const auto& [flag, value] : program.defaults)
    gflags::SetCommandLineOptionWithMode(flag, value, gflags::SET_FLAGS_DEFAULT);
  std::vector<std::string> sources = program.flags_of;
  sources.push_back(__FILE__);
  tools::parse_flags(program.usage, sources, &argc, &argv);
  start_logging(argv[0]);
  return tools::run_main(program.name, [&] {
    const LineEnd end;
    check_flags();
    std::shared_ptr<ChromeTrace> trace;
    if (!FLAGS_trace.empty()) {
      default_engine().add_observer(trace = make_chrome_trace(trace_path()));
      try {
        trace->flush();  // a path that cannot be written shows before hours of training
      } catch (const IoError& error) {
        throw InvalidArgument(str("--trace: ", error.what()));
      }
    }
    body();
    if (trace) trace->flush();
    return 0;
  });
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

void refuse_without_effect(std::initializer_list<const char*> flags, const std::string& where) {
  for (const char* const flag : flags) require(!is_given(flag), "--", flag, " has no effect ", where, ": leave it out");
}

bool trains() {
  const std::string role = variable("DMLC_ROLE");
  return role.empty() || role == "worker";
}

void require_readable(const char* flag, const std::string& path) {
  if (is_remote(path)) return;  // seen when it is read
  require(!is_folder(path), "--", flag, ": '", path, "' is a folder, expected a file");
  if (access(path.c_str(), R_OK) == 0) return;
  const int error = errno;
  throw InvalidArgument(
      str("--", flag, ": cannot open ", path, " on host ", host_name(), ": ", std::generic_category().message(error)));
}

void require_checkpoint() {
  const std::string& place = FLAGS_evaluate;
  require_readable("evaluate", is_folder(place) ? nn::checkpoint_path(place) : place);
}

void require_checkpoint_folder() {
  const std::string& path = FLAGS_checkpoint;
  if (path.empty() || !leads_at_first()) return;
  if (is_remote(path)) {
    require(path.starts_with("s3://"), "--checkpoint: cannot write to ", redacted(path),
            ": only files of s3:// can be written on other hosts");
    return;
  }
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error && access(path.c_str(), W_OK | X_OK) != 0) error = {errno, std::generic_category()};
  require(!error, "--checkpoint: cannot write into the folder ", path, " on host ", host_name(), ": ", error.message());
}

void require_as_trained(const std::string& checkpoint, const nn::Notes& trained, const nn::Notes& notes) {
  for (const auto& [name, value] : notes) {
    const auto found = trained.find(name);
    gflags::CommandLineFlagInfo info;
    const bool is_flag = gflags::GetCommandLineFlagInfo(name.c_str(), &info);
    require(found == trained.end() || found->second == value, "'", redacted(checkpoint), "' was trained with ",
            is_flag ? "--" : "", name, "=", found == trained.end() ? "" : found->second, ", this run has ", value, ": ",
            is_flag           ? "give the same"
            : name == "scale" ? "give the step normalize the same"
            : name == "columns" || name == "class_names"
                ? "give data that are converted alike, as to_rec does with --schema or --split"
                : "give the network and the data of the training");
  }
}

std::shared_ptr<KVStore> store_of_flags() {
  KVStore::check(FLAGS_kvstore);
  const std::string mode = Spec::parse(FLAGS_kvstore).name;
  const char* const workers = std::getenv("DMLC_NUM_WORKER");
  const bool alone = mode == "local" || mode == "device" || mode == "nccl";
  require(!alone || !workers || std::atoi(workers) <= 1, "--kvstore is '", mode, "', one process alone, in a job of ",
          workers ? workers : "",
          " workers: each would train by itself; "
          "say --kvstore dist_sync, dist_async or another mode of several");
  // Workers that stop would have others wait for what they leave of the epoch.
  require(FLAGS_max_steps == 0 || !workers || std::atoi(workers) <= 1,
          "--max_steps ends the run of one process alone, not a job of ", workers ? workers : "",
          " workers; leave it out");
  return KVStore::create(FLAGS_kvstore);
}

std::shared_ptr<Source> source_of_flags(std::shared_ptr<KVStore> store) {
  return nn::shared_source(std::move(store), {.balance = nn::parse_balance(FLAGS_balance)});
}

Spec optimizer_of_flags(std::int64_t examples_of_epoch) {
  const auto examples = [&](double epochs) {
    return str(static_cast<std::int64_t>(epochs * static_cast<double>(examples_of_epoch)));
  };
  Spec optimizer = Spec::parse(FLAGS_optimizer);
  require(optimizer.name != "assign", "--optimizer assign trains nothing");
  // The text of --optimizer goes before the defaults of other flags.
  const auto set = [&](const char* option, const char* flag, const std::string& value) {
    const bool has = optimizer.options.has(option);
    require(!has || !is_given(flag), "--optimizer has ", option, ", which --", flag, " is for, too: leave one out");
    if (!has) optimizer.options.set(option, value);
  };
  set("lr", "lr", str(FLAGS_lr));
  if (optimizer.name == "momentum" || optimizer.name == "nesterov")
    set("momentum", "momentum", str(FLAGS_momentum));
  else
    refuse_without_effect({"momentum"}, "with --optimizer " + optimizer.name);
  if (is_given("weight_decay")) set("weight_decay", "weight_decay", str(FLAGS_weight_decay));
  if (FLAGS_warmup > 0 || is_given("warmup")) set("schedule_warmup", "warmup", examples(FLAGS_warmup));
  set("schedule", "schedule", FLAGS_schedule);
  const std::string schedule = optimizer.options.get("schedule", "");
  if (schedule != "step") refuse_without_effect({"step_epochs", "step_factor"}, "with --schedule " + schedule);
  if (schedule == "step") {
    set("schedule_every", "step_epochs", examples(FLAGS_step_epochs));
    set("schedule_factor", "step_factor", str(FLAGS_step_factor));
  } else if (schedule != "constant" && !optimizer.options.has("schedule_examples")) {
    optimizer.options.set("schedule_examples", examples(FLAGS_epochs));
  }
  return optimizer;
}

std::int64_t examples_done(KVStore& store, std::int64_t epoch) {
  std::int64_t done = 0;
  for (const auto& [begin, end] : store.backend().data_committed(epoch)) done += end - begin;
  return done;
}

bool enough_steps(std::int64_t steps) { return FLAGS_max_steps > 0 && steps >= FLAGS_max_steps; }

void show_progress(const std::string& line) {
  line_is_open = isatty(STDERR_FILENO);
  if (line_is_open)
    std::cerr << "\r\033[K" << line << std::flush;
  else
    std::cerr << line << '\n' << std::flush;
}

void show_result(const std::string& line) {
  std::cerr << (line_is_open ? "\n" : "") << line << '\n' << std::flush;
  line_is_open = false;
}

void show_nothing_left(const std::string& checkpoint, std::int64_t epoch) {
  show_result(str("nothing is left to do: ", checkpoint, " has done ", epoch, " of ", FLAGS_epochs,
                  " epochs; raise --epochs to go on"));
}

}  // namespace paceline::examples

// Bandwidth and latency of push and pull on a cluster of this machine, which it starts itself.

#include <gflags/gflags.h>
#include <paceline/cores.h>
#include <paceline/kernel.h>
#include <paceline/kvstore.h>
#include <paceline/log.h>
#include <paceline/optimizer.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "flags.h"
#include "placement.h"

DEFINE_string(mode, "dist_async:staleness=none",
              "mode of the store, with options: local, device, ring, dist_sync, ..., dist_local:steps=8");
DEFINE_string(compression, "", "codec with its options, added to the mode: bf16, or top_k,ratio=0.01");
DEFINE_string(optimizer, "sgd:lr=0.01", "what becomes of gradients; assign: an all-reduce, under ring or dist_sync");
DEFINE_string(transport, "tcp", "tcp or shm (every role is a process) or inproc (every role is a thread)");
DEFINE_int32(servers, 1, "servers; modes ring and gossip have none: 0");
DEFINE_int32(workers, 1, "workers");
DEFINE_bool(apart, false, "workers on the first half of the processors, the others on the rest");
DEFINE_int64(keys, 25, "keys");
DEFINE_bool(call_per_key, false, "one call for each key instead of one for all");
DEFINE_int64(key_bytes, 4 << 20, "bytes of a key, float32");
DEFINE_int64(sparse_rows, 0, "rows of a row-sparse table in a call, drawn at random; 0: dense keys");
DEFINE_int64(row_floats, 64, "floats of a row");
DEFINE_int64(table_rows, 10000000, "rows of the table");
DEFINE_int64(pushes, 0, "one phase of that many pushes with pulls, marks on stderr, in place of three timed ones");
DEFINE_double(seconds, 2, "how long each of the four measurements runs");

namespace {

using namespace paceline;
using Clock = std::chrono::steady_clock;

constexpr char kUsage[] =
    "kvbench [flags]\n\n"
    "Measures push, pull and both together, and the round trip of one small key, on a cluster that it starts on this\n"
    "machine. The last line is a JSON object: gigabytes per second and worker (medians over the workers, one way),\n"
    "keys per second, and the round trip in microseconds. With --sparse_rows it measures rows of one table instead.";

// Set in the worker processes that kvbench starts: they print their figures instead of starting a cluster.
constexpr const char* kIsWorker = "PACELINE_KVBENCH_WORKER";

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Calls of `action` per second, for --seconds and at least three calls.
double rate_of(const std::function<void()>& action) {
  action();
  int calls = 0;
  const auto start = Clock::now();
  while (calls < 3 || seconds_since(start) < FLAGS_seconds) {
    action();
    ++calls;
  }
  return calls / seconds_since(start);
}

// Calls of `step` per second. Rounds do not wait for a worker inside the last barrier, so the others go on without it.
double rate_of_steps(KVStore& kv, const std::function<void()>& step) {
  kv.barrier();
  const double rate = rate_of([&] {
    step();
    kv.step_end();
  });
  kv.barrier();
  return rate;
}

// Pushes of keys per second, measured over at least --pushes of them. Prints five marks on standard error. They tell a
// program that watches the memory how far the pushes are.
double rate_of_pushes(KVStore& kv, const std::function<void()>& step) {
  constexpr std::int64_t kMarks[] = {10, 25, 50, 75, 100};
  kv.barrier();
  const auto start = Clock::now();
  std::int64_t pushed = 0;
  for (const std::int64_t mark : kMarks) {
    for (; 100 * pushed < mark * FLAGS_pushes; pushed += FLAGS_keys) {
      step();
      kv.step_end();
    }
    std::cerr << "pushed " << mark << " %\n" << std::flush;
  }
  const double rate = static_cast<double>(pushed) / seconds_since(start);
  kv.barrier();
  return rate;
}

// Do pulls wait until others have ended their steps?
bool waits_for_others() {
  const Spec mode = Spec::parse(FLAGS_mode);
  return mode.name != "dist_async" || mode.options.has("bound");
}

bool one_process() {
  const std::string name = Spec::parse(FLAGS_mode).name;
  return name == "local" || name == "device" || name == "nccl";
}

nlohmann::json measure_rows(KVStore& kv) {
  kv.init_table({.name = "table", .rows = FLAGS_table_rows, .width = FLAGS_row_floats});
  kv.set_optimizer(Spec::parse(FLAGS_optimizer));
  // The draws are meant to take more rows than caches hold. Each row is made before the clock runs, in the order of the
  // ids. So rows that are neighbours in a call are not neighbours in the table's memory.
  constexpr int kDraws = 16;
  std::mt19937_64 random(static_cast<std::uint64_t>(kv.rank()));
  std::vector<NDArray> draws;
  std::vector<std::int64_t> made;
  for (int d = 0; d < kDraws; ++d) {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(FLAGS_sparse_rows));
    for (std::int64_t& id : ids)
      id = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(FLAGS_table_rows));
    draws.push_back(NDArray::from<std::int64_t>(ids, {FLAGS_sparse_rows}));
    made.insert(made.end(), ids.begin(), ids.end());
  }
  const NDArray gradients = NDArray::full({FLAGS_sparse_rows, FLAGS_row_floats}, 1e-6);
  const NDArray rows = NDArray::zeros({FLAGS_sparse_rows, FLAGS_row_floats});
  std::sort(made.begin(), made.end());
  for (std::size_t begin = 0; begin < made.size(); begin += static_cast<std::size_t>(FLAGS_sparse_rows)) {
    const auto first = made.begin() + static_cast<std::ptrdiff_t>(begin);
    kv.push_rows(
        {{"table", NDArray::from<std::int64_t>({first, first + FLAGS_sparse_rows}, {FLAGS_sparse_rows}), gradients}});
  }
  kv.barrier();
  int call = 0;
  const auto rate = [&](bool pushes, bool pulls) {
    return rate_of_steps(kv, [&] {
      const NDArray& ids = draws[static_cast<std::size_t>(++call % kDraws)];
      std::vector<RowPush> push;
      std::vector<RowPull> pull;
      if (pushes) push.push_back({"table", ids, gradients});
      if (pulls) pull.push_back({"table", ids, rows});
      kv.push_pull_rows(push, pull);
      if (pushes) gradients.engine().wait_unused(gradients.variable());
      if (pulls) rows.wait();
    });
  };
  const double push = rate(true, false), pull = rate(false, true), both = rate(true, true);
  const StoreReport report = kv.report();
  kv.barrier();
  kv.finish();
  const double gigabytes = 4e-9 * static_cast<double>(FLAGS_sparse_rows) * static_cast<double>(FLAGS_row_floats);
  return {{"push_gbps", push * gigabytes}, {"pull_gbps", pull * gigabytes},
          {"both_gbps", both * gigabytes}, {"rows_per_second", both * static_cast<double>(FLAGS_sparse_rows)},
          {"rows_held", report.rows_held}, {"table_megabytes", 1e-6 * static_cast<double>(report.row_bytes)}};
}

nlohmann::json measure(KVStore& kv) {
  if (FLAGS_sparse_rows > 0) return measure_rows(kv);
  kv.set_optimizer(Spec::parse(FLAGS_optimizer));
  const std::int64_t elements = std::max<std::int64_t>(1, FLAGS_key_bytes / 4);
  constexpr std::int64_t kSmall = 16;  // 64 bytes
  std::vector<InitValue> initial{{"small", NDArray::zeros({kSmall})}};
  std::vector<PushItem> pushes;
  std::vector<PullItem> pulls;
  for (std::int64_t k = 0; k < FLAGS_keys; ++k) {
    const std::string name = "key" + std::to_string(k);
    // The store may use the memory of the values for its weights, as with Trainer. In one process it may not, because a
    // pull into that memory would do nothing there.
    initial.push_back({.key = name, .value = NDArray::zeros({elements}), .shared = !one_process()});
    pushes.push_back({name, NDArray::full({elements}, 1e-6)});
    pulls.push_back({name, initial.back().value});
  }
  kv.init(initial);

  // A step that pushes and pulls waits only for the pulled values, which come after the pushes.
  const auto wait = [&](bool pushed, bool pulled) {
    for (const PushItem& item : pushes)
      if (pushed && !pulled) item.gradient.engine().wait_unused(item.gradient.variable());
    for (const PullItem& item : pulls)
      if (pulled) item.out.wait();
  };
  const std::vector<PushItem> no_pushes;
  const std::vector<PullItem> no_pulls;
  const auto exchange = [&](bool push, bool pull) {
    if (!FLAGS_call_per_key) {
      kv.push_pull(push ? std::as_const(pushes) : no_pushes, pull ? std::as_const(pulls) : no_pulls);
      return;
    }
    for (std::size_t k = 0; k < pushes.size(); ++k)
      kv.push_pull(push ? std::vector{pushes[k]} : no_pushes, pull ? std::vector{pulls[k]} : no_pulls);
  };
  const double gigabytes = 4e-9 * static_cast<double>(elements) * static_cast<double>(FLAGS_keys);
  const auto phase = [&](const std::function<void()>& step) { return rate_of_steps(kv, step); };
  nlohmann::json result;
  const auto step = [&](bool push, bool pull) {
    return [&, push, pull] {
      exchange(push, pull);
      wait(push, pull);
    };
  };
  if (FLAGS_pushes > 0) {
    result["keys_per_second"] = rate_of_pushes(kv, step(true, true));
  } else {
    result["push_gbps"] = phase(step(true, false)) * gigabytes;
    result["pull_gbps"] = phase(step(false, true)) * gigabytes;
    const double both = phase(step(true, true));
    result["both_gbps"] = both * gigabytes;
    result["keys_per_second"] = both * static_cast<double>(FLAGS_keys);
  }
  const NDArray gradient = NDArray::zeros({kSmall}), weight = NDArray::zeros({kSmall});
  std::vector<double> trips;
  const auto trip = [&] {
    const auto start = Clock::now();
    kv.push_pull({{"small", gradient}}, {{"small", weight}});
    weight.wait();
    trips.push_back(1e6 * seconds_since(start));
  };
  if (waits_for_others()) {
    phase(trip);
  } else {
    // All trips are one step. Messages that end a step would otherwise disturb the next trip.
    kv.barrier();
    rate_of(trip);
    kv.barrier();
  }
  std::sort(trips.begin(), trips.end());
  const auto quantile = [&](double q) {
    return trips[static_cast<std::size_t>(q * static_cast<double>(trips.size() - 1))];
  };
  kv.finish();
  result["rtt_us_p50"] = quantile(0.5);
  result["rtt_us_p99"] = quantile(0.99);
  return result;
}

ClusterConfig cluster(Role role, int task) {
  ClusterConfig config;
  config.role = role;
  config.servers = FLAGS_servers;
  config.workers = FLAGS_workers;
  config.task = task;
  config.transport = "inproc";
  config.scheduler_host = "kvbench";
  return config;
}

std::vector<nlohmann::json> run_threads() {
  std::vector<nlohmann::json> results(static_cast<std::size_t>(FLAGS_workers));
  std::vector<std::thread> threads;
  const auto start = [&](const std::string& who, const std::function<void()>& body) {
    threads.emplace_back([who, body] {
      try {
        body();
      } catch (const std::exception& error) {
        std::cerr << "kvbench: " << who << ": " << error.what() << '\n' << std::flush;
        std::_Exit(1);
      }
    });
  };
  start("scheduler", [] { serve(cluster(Role::kScheduler, 0)); });
  for (int s = 0; s < FLAGS_servers; ++s) start("server", [s] { serve(cluster(Role::kServer, s)); });
  for (int w = 0; w < FLAGS_workers; ++w)
    start("worker", [w, &results] {
      results[static_cast<std::size_t>(w)] = measure(*KVStore::join(cluster(Role::kWorker, w), FLAGS_mode));
    });
  for (std::thread& thread : threads) thread.join();
  return results;
}

// A child of this program in another role; its standard output comes back through the descriptor.
struct Child {
  pid_t process = -1;
  int output = -1;
  std::string who;
};

Child spawn(char** argv, const std::string& who, const std::vector<std::pair<std::string, std::string>>& environment,
            bool is_worker = false) {
  int ends[2];
  if (pipe(ends) != 0) throw IoError("kvbench cannot make a pipe");
  const pid_t parent = getpid(), process = fork();
  if (process < 0) throw IoError("kvbench cannot start a process");
  if (process == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing survives a kvbench that was killed
    if (getppid() != parent) _exit(127);
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    if (FLAGS_apart) tools::keep_half_of_processors(is_worker);
    // NOLINTNEXTLINE(concurrency-mt-unsafe): this process has one thread
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    execv("/proc/self/exe", argv);
    _exit(127);
  }
  close(ends[1]);
  return {process, ends[0], who};
}

std::string wait_for_port(const std::string& file, pid_t scheduler) {
  for (int i = 0; i < 1000; ++i) {
    std::ifstream in(file);
    std::string host, port;
    if (in >> host >> port) return port;
    if (waitpid(scheduler, nullptr, WNOHANG) == scheduler) throw Error("the scheduler failed, see above");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  throw Timeout("the scheduler did not say within 10 seconds where it listens");
}

// Writes a random key to a file, which lies in a folder that only this user can enter.
void write_key(const std::string& path) {
  umask(S_IRWXG | S_IRWXO);
  std::random_device random;
  std::ofstream file(path);
  for (int i = 0; i < 8; ++i) file << std::hex << std::setw(8) << std::setfill('0') << random();
  if (!file.flush()) throw IoError("kvbench cannot write " + path);
}

struct RemovedAtTheEnd {
  const char* folder;
  ~RemovedAtTheEnd() {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
};

std::vector<nlohmann::json> run_processes(char** argv) {
  char folder[] = "/tmp/kvbench-XXXXXX";
  if (!mkdtemp(folder)) throw IoError("kvbench cannot make a folder in /tmp");
  const RemovedAtTheEnd folder_of_the_port{folder};
  const std::string port_file = std::string(folder) + "/port", key_file = std::string(folder) + "/key";
  write_key(key_file);
  std::vector<std::pair<std::string, std::string>> environment{{"DMLC_PS_ROOT_URI", "127.0.0.1"},
                                                               {"DMLC_NODE_HOST", "127.0.0.1"},
                                                               {"DMLC_PS_ROOT_PORT", "0"},
                                                               {"DMLC_NUM_SERVER", std::to_string(FLAGS_servers)},
                                                               {"DMLC_NUM_WORKER", std::to_string(FLAGS_workers)},
                                                               {"PACELINE_JOB_ID", std::string(folder)},
                                                               {"PACELINE_KEY_FILE", key_file},
                                                               {"PACELINE_TRANSPORT", FLAGS_transport},
                                                               {"OMP_WAIT_POLICY", "PASSIVE"}};
  const auto with = [&environment](const char* role, int task) {
    auto all = environment;
    all.emplace_back("DMLC_ROLE", role);
    all.emplace_back("DMLC_TASK_ID", std::to_string(task));
    return all;
  };
  std::vector<Child> children;
  auto first = with("scheduler", 0);
  first.emplace_back("PACELINE_PORT_FILE", port_file);
  children.push_back(spawn(argv, "the scheduler", first));
  environment[2].second = wait_for_port(port_file, children.front().process);
  for (int s = 0; s < FLAGS_servers; ++s) children.push_back(spawn(argv, str("server ", s), with("server", s)));
  for (int w = 0; w < FLAGS_workers; ++w) {
    auto worker = with("worker", w);
    worker.emplace_back(kIsWorker, "1");
    children.push_back(spawn(argv, str("worker ", w), worker, true));
  }

  std::vector<nlohmann::json> results;
  std::string failed;
  for (auto child = children.rbegin(); child != children.rend(); ++child) {
    std::string text;
    char buffer[4096];
    for (ssize_t got; (got = read(child->output, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(got));
    close(child->output);
    int status = 0;
    waitpid(child->process, &status, 0);
    if (status != 0) failed = child->who;
    if (status == 0 && child->who.rfind("worker", 0) == 0) results.push_back(nlohmann::json::parse(text));
  }
  if (!failed.empty()) throw Error(failed + " failed, see above");
  return results;
}

nlohmann::json medians(const std::vector<nlohmann::json>& results) {
  nlohmann::json all{{"mode", FLAGS_mode},       {"transport", one_process() ? "none" : FLAGS_transport},
                     {"servers", FLAGS_servers}, {"workers", FLAGS_workers},
                     {"keys", FLAGS_keys},       {"key_bytes", FLAGS_key_bytes}};
  if (FLAGS_sparse_rows > 0)
    all.update(
        {{"sparse_rows", FLAGS_sparse_rows}, {"row_floats", FLAGS_row_floats}, {"table_rows", FLAGS_table_rows}});
  for (const auto& [name, value] : results.at(0).items()) {
    std::vector<double> values;
    for (const nlohmann::json& result : results) values.push_back(result.at(name));
    std::sort(values.begin(), values.end());
    all[name] = (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<char*> arguments(argv, argv + argc + 1);
  use_passive_waiting(argv);
  tools::parse_flags(kUsage, __FILE__, &argc, &argv);
  FLAGS_minloglevel = 1;
  keep_freed_memory();
  if (!FLAGS_compression.empty())
    FLAGS_mode += (FLAGS_mode.find(':') == std::string::npos ? ":compression=" : ",compression=") + FLAGS_compression;
  return tools::run_main("kvbench", [&] {
    KVStore::check(FLAGS_mode, FLAGS_sparse_rows > 0);
    const std::string mode = Spec::parse(FLAGS_mode).name;
    const bool without_servers = mode == "ring" || mode == "gossip";
    if (without_servers) FLAGS_servers = 0;
    require(FLAGS_keys >= 1 && FLAGS_key_bytes >= 4 && FLAGS_seconds > 0 && FLAGS_servers >= 0 && FLAGS_workers >= 1,
            "--keys, --workers are at least 1, --servers at least 0, --key_bytes at least 4, --seconds above 0");
    require(FLAGS_servers > 0 || without_servers || one_process(), "mode '", FLAGS_mode,
            "' needs servers: --servers is at least 1");
    require(FLAGS_pushes >= 0, "--pushes is at least 0");
    require(FLAGS_sparse_rows >= 0 && FLAGS_row_floats >= 1 && FLAGS_table_rows >= 1,
            "--sparse_rows is at least 0, --row_floats and --table_rows are at least 1");
    require(FLAGS_transport == "tcp" || FLAGS_transport == "shm" || FLAGS_transport == "inproc", "unknown transport '",
            FLAGS_transport, "'; known: tcp shm inproc");
    require(!FLAGS_apart || FLAGS_transport != "inproc", "--apart places processes, and inproc has one");
    make_optimizer(Spec::parse(FLAGS_optimizer));  // throws for a wrong --optimizer before a cluster starts
    if (getenv(kIsWorker) || getenv("DMLC_ROLE")) {
      std::cout << measure(*KVStore::create(FLAGS_mode)) << '\n' << std::flush;
      return 0;
    }
    std::vector<nlohmann::json> results;
    if (one_process())
      results.push_back(measure(*KVStore::create(FLAGS_mode)));
    else
      results = FLAGS_transport == "inproc" ? run_threads() : run_processes(const_cast<char**>(arguments.data()));
    std::cout << medians(results) << '\n' << std::flush;
    return 0;
  });
}

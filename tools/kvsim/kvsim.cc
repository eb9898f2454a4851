// How a job would run on machines that are not there: throughput and delays of the store's protocol, simulated.

#include <gflags/gflags.h>
#include <paceline/error.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "../flags.h"
#include "plot.h"
#include "simulation.h"

DEFINE_string(mode, "dist_async",
              "local, ring, gossip, dist_sync, dist_async or dist_local, with options, as for a job");
DEFINE_string(workers, "64", "workers; several, separated by commas, are a sweep");
DEFINE_int32(servers, 4, "servers");
DEFINE_string(compute, "constant:seconds=0.1",
              "law of a step's computing time: constant uniform exponential erlang lognormal empirical, with options");
DEFINE_double(bytes, 102.2e6, "bytes of the weights, as they travel");
DEFINE_string(layers, "", "instead: 'forward:backward:bytes,...', seconds at a draw of 1, front layer first");
DEFINE_double(slice_bytes, 0, "bytes of a slice; 0: one message for each server and layer");
DEFINE_bool(priority, true, "front layers travel first");
DEFINE_string(shares, "", "parts of the weights that the servers hold, separated by commas; equal where empty");
DEFINE_int32(slow_workers, 0, "workers that are slower than the others");
DEFINE_double(slow_factor, 2, "how many times slower they are");
DEFINE_double(worker_gbit, 25, "speed of a worker's link, each way; 0: no limit");
DEFINE_double(worker_gbit_in, -1, "speed into the worker, where it differs");
DEFINE_double(server_gbit, 25, "speed of a server's link, each way; 0: no limit");
DEFINE_double(server_gbit_in, -1, "speed into the server, where it differs");
DEFINE_double(message_us, 0, "time that a message occupies a link besides its bytes");
DEFINE_double(latency_us, 50, "time between machines");
DEFINE_int32(colocated, 0, "so many servers run on workers' machines and share their links");
DEFINE_string(worker_push, "", "processor time of sending a gradient's message: us=N,ns_per_byte=N");
DEFINE_string(worker_pull, "", "processor time of taking weights, as --worker_push");
DEFINE_double(acknowledgement_us, 0, "mean time that a worker takes over an acknowledgement, between 0 and twice that");
DEFINE_string(server_push, "us=20,ns_per_byte=0.25",
              "processor time of taking a gradient (and applying it, in dist_async), as --worker_push");
DEFINE_string(server_pull, "us=10", "processor time of sending weights, as --worker_push");
DEFINE_string(server_apply, "", "processor time of applying a round, as --worker_push");
DEFINE_int32(server_threads, 1, "threads of a server that do this");
DEFINE_int32(shared_cores, 0, "cores that all processes of the job share; 0: every process has its own");
DEFINE_string(kvbench, "",
              "file whose last line is kvbench's JSON: sets latency and costs per byte that are not given");
DEFINE_bool(one_line, false, "acknowledgements, pulls and ends of steps wait for the bytes ahead of them on the link");
DEFINE_bool(pull_after_call, false, "pulls wait until all pushes of their layer are acknowledged");
DEFINE_bool(cancel_late, false, "who is late for its round stops computing; no mode of the store does that yet");
DEFINE_int64(iterations, 100, "steps of each worker, on average");
DEFINE_int64(seed, 1, "of all random times");
DEFINE_string(plot, "", "PNG of throughput and delay against workers");
DEFINE_bool(delays, false, "print the histogram of delays, too");

namespace {

using namespace paceline;
using namespace paceline::sim;

constexpr char kUsage[] =
    "kvsim [flags]\n\n"
    "Simulates a job over the store: its workers, links and servers, message by message. The same flags and seed give\n"
    "the same figures. The last line is a JSON object: steps per second of all workers, the delays of the gradients\n"
    "(in updates), the share of the time that workers wait, and how busy the busiest server is. A sweep prints one\n"
    "object for each number of workers and then all in one, as `runs`. tools/kvsim/README.md describes the model.";

std::vector<double> numbers(const std::string& text, const char* flag, char separator = ',') {
  std::vector<double> values;
  std::stringstream in(text);
  for (std::string part; std::getline(in, part, separator);) {
    std::size_t used = 0;
    double value = 0;
    try {
      value = std::stod(part, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    require(used > 0 && used == part.size() && value >= 0, "--", flag, ": '", part, "' is no number of at least 0");
    values.push_back(value);
  }
  return values;
}

Cost cost(const std::string& text, const char* flag) {
  const Options options = Options::parse(text);
  const Cost cost{options.get<double>("us", 0) * 1e-6, options.get<double>("ns_per_byte", 0) * 1e-9};
  options.reject_unknown(std::string("--") + flag);
  require(cost.fixed_seconds >= 0 && cost.seconds_per_byte >= 0, "--", flag, "=", text, " is negative");
  return cost;
}

// Keys of the product's modes that change no times here, and what compression does to the bytes.
Spec simulated_mode(const std::string& text, double* byte_factor) {
  Spec mode = Spec::parse(text);
  for (const char* key : {"staleness", "transport", "seed"}) mode.options.erase(key);
  const std::string compression = mode.options.get("compression", "");
  mode.options.erase("compression");
  require(compression.empty() || compression == "bf16" || compression == "fp16",
          "kvsim knows the size of bf16 and fp16, not of '", compression, "'; give the bytes that travel with --bytes");
  *byte_factor = compression.empty() ? 1 : 0.5;
  return mode;
}

void take_measured(Model* model) {
  std::ifstream in(FLAGS_kvbench);
  if (!in) throw IoError("cannot read '" + FLAGS_kvbench + "'");
  std::string last;
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) last = line;
  const auto measured = nlohmann::json::parse(last, nullptr, false);
  if (!measured.is_object() || !measured.contains("push_gbps") || !measured.contains("pull_gbps") ||
      !measured.contains("rtt_us_p50"))
    throw Corrupt("the last line of '" + FLAGS_kvbench + "' is not what kvbench prints");
  const auto given = [](const char* flag) { return !gflags::GetCommandLineFlagInfoOrDie(flag).is_default; };
  if (!given("latency_us")) model->latency_seconds = measured["rtt_us_p50"].get<double>() * 1e-6 / 2;
  if (!given("server_push")) model->server_push = {0, 1e-9 / measured["push_gbps"].get<double>()};
  if (!given("server_pull")) model->server_pull = {0, 1e-9 / measured["pull_gbps"].get<double>()};
}

Model model_of_flags() {
  Model model;
  double factor = 1;
  model.mode = simulated_mode(FLAGS_mode, &factor);
  model.servers = FLAGS_servers;
  model.layers = {{0, 1, FLAGS_bytes * factor}};
  if (!FLAGS_layers.empty()) {
    model.layers.clear();
    std::stringstream in(FLAGS_layers);
    for (std::string part; std::getline(in, part, ',');) {
      const std::vector<double> layer = numbers(part, "layers", ':');
      require(layer.size() == 3, "--layers: '", part, "' is not forward:backward:bytes");
      model.layers.push_back({layer[0], layer[1], layer[2] * factor});
    }
  }
  model.slice_bytes = FLAGS_slice_bytes;
  model.shares = numbers(FLAGS_shares, "shares");
  model.by_priority = FLAGS_priority;
  model.compute = TimeLaw::parse(FLAGS_compute);
  model.slow_workers = FLAGS_slow_workers;
  model.slow_factor = FLAGS_slow_factor;
  const auto link = [](double out, double in) {
    constexpr double kGigabit = 1e9 / 8;
    return Link{out * kGigabit, (in < 0 ? out : in) * kGigabit, FLAGS_message_us * 1e-6};
  };
  model.worker_link = link(FLAGS_worker_gbit, FLAGS_worker_gbit_in);
  model.server_link = link(FLAGS_server_gbit, FLAGS_server_gbit_in);
  model.latency_seconds = FLAGS_latency_us * 1e-6;
  model.colocated = FLAGS_colocated;
  model.worker_push = cost(FLAGS_worker_push, "worker_push");
  model.worker_pull = cost(FLAGS_worker_pull, "worker_pull");
  model.server_push = cost(FLAGS_server_push, "server_push");
  model.server_pull = cost(FLAGS_server_pull, "server_pull");
  model.server_apply = cost(FLAGS_server_apply, "server_apply");
  if (!FLAGS_kvbench.empty()) take_measured(&model);
  require(FLAGS_acknowledgement_us >= 0, "--acknowledgement_us=", FLAGS_acknowledgement_us, " is negative");
  model.acknowledgement_seconds = FLAGS_acknowledgement_us * 1e-6;
  model.server_threads = FLAGS_server_threads;
  model.shared_cores = FLAGS_shared_cores;
  model.one_line = FLAGS_one_line;
  model.pull_after_call = FLAGS_pull_after_call;
  model.cancel_late = FLAGS_cancel_late;
  model.iterations = FLAGS_iterations;
  model.seed = static_cast<std::uint64_t>(FLAGS_seed);
  return model;
}

nlohmann::json describe(const Model& model, const Result& result) {
  nlohmann::json all{{"mode", FLAGS_mode},
                     {"workers", model.workers},
                     {"servers", model.servers},
                     {"steps_per_second", result.steps_per_second},
                     {"step_ms_mean", 1e3 * result.step_seconds_mean},
                     {"step_ms_p50", 1e3 * result.step_seconds_p50},
                     {"step_ms_p99", 1e3 * result.step_seconds_p99},
                     {"gbytes_per_second", 1e-9 * result.bytes_per_second},
                     {"pushes_per_second", result.pushes_per_second},
                     {"refused_share", result.refused_share},
                     {"waiting_share", result.waiting_share},
                     {"delay_mean", result.delays.mean()},
                     {"delay_deviation", result.delay_deviation},
                     {"delay_p50", result.delays.quantile(0.5)},
                     {"delay_p95", result.delays.quantile(0.95)},
                     {"delay_p99", result.delays.quantile(0.99)},
                     {"busiest_server", result.busiest_server},
                     {"busiest_server_link", result.busiest_server_link},
                     {"events", result.events},
                     {"simulated_seconds", result.simulated_seconds},
                     {"seed", FLAGS_seed}};
  if (result.rounds_per_second > 0) all["rounds_per_second"] = result.rounds_per_second;
  if (FLAGS_delays)
    for (const auto& [delay, count] : result.delays.counts()) all["delays"][std::to_string(delay)] = count;
  return all;
}

nlohmann::json simulate(Model model, int workers) {
  model.workers = workers;
  const auto start = std::chrono::steady_clock::now();
  int told = 0;
  const Result result = Simulation(model).run([&](double part) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (seconds.count() < 10 * (told + 1)) return;
    ++told;
    std::fprintf(stderr, "kvsim: %d workers, %.0f %% after %.0f s\n", workers, 100 * part, seconds.count());
  });
  return describe(model, result);
}

void plot(const std::vector<nlohmann::json>& runs) {
  Panel throughput{"STEPS PER SECOND", true, {{FLAGS_mode, {}}, {"all computing at once", {}}}};
  Panel delay{"DELAY, UPDATES (ABOVE 0.1)", true, {{"mean", {}}, {"p50", {}}, {"p99", {}}}};
  const double step = model_of_flags().compute.mean();
  for (const nlohmann::json& run : runs) {
    const double workers = run["workers"];
    throughput.curves[0].points.emplace_back(workers, run["steps_per_second"]);
    throughput.curves[1].points.emplace_back(workers, workers / step);
    const char* fields[] = {"delay_mean", "delay_p50", "delay_p99"};
    for (std::size_t i = 0; i < std::size(fields); ++i)
      if (const double value = run[fields[i]]; value >= 0.1) delay.curves[i].points.emplace_back(workers, value);
  }
  if (!FLAGS_layers.empty()) throughput.curves.pop_back();
  write_plot(FLAGS_plot, "WORKERS", {throughput, delay});
}

}  // namespace

int main(int argc, char** argv) {
  tools::parse_flags(kUsage, __FILE__, &argc, &argv);
  return tools::run_main("kvsim", [] {
    const Model model = model_of_flags();
    std::vector<nlohmann::json> runs;
    const std::vector<double> sweep = numbers(FLAGS_workers, "workers");
    require(!sweep.empty(), "--workers names no number of workers");
    for (const double workers : sweep) {
      require(workers >= 1 && workers <= 1 << 20 && workers == std::floor(workers), "--workers: ", workers,
              " is no whole number between 1 and 1048576");
      runs.push_back(simulate(model, static_cast<int>(workers)));
      if (sweep.size() > 1) std::cout << runs.back() << '\n' << std::flush;
    }
    std::cout << (runs.size() == 1 ? runs.front() : nlohmann::json{{"runs", runs}}) << '\n' << std::flush;
    if (!FLAGS_plot.empty()) plot(runs);
    return 0;
  });
}

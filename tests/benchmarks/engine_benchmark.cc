// How many empty tasks per second go through the engine: task i writes its own variable and reads those of a few
// earlier tasks, chosen at random. And how long the calling thread takes to issue a small operation on arrays.

#include <paceline/engine.h>
#include <paceline/error.h>
#include <paceline/kernel.h>
#include <paceline/ops.h>

#include <gflags/gflags.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iostream>
#include <thread>
#include <vector>

#include "../../tools/flags.h"
#include "task_graph.h"

DEFINE_int64(tasks, 1000000, "tasks per round");
DEFINE_int32(predecessors, 3, "earlier tasks whose variable a task reads");
DEFINE_int32(threads, 2, "threads that run tasks; one more pushes them");
DEFINE_int32(rounds, 5, "measured rounds; the median counts");
DEFINE_int64(queue_limit, 4096, "unfinished tasks before the pushing thread is held back");
DEFINE_uint64(seed, 1, "of the graph");
DEFINE_int64(issues, 0, "instead: calls of one operation on 16 elements, issued in runs of 500");

namespace {

constexpr char kUsage[] =
    "engine_benchmark [flags]\n\n"
    "Measures empty tasks per second over a random dependency graph, or with --issues what issuing costs.\n"
    "The last line is a JSON object.";

using namespace paceline;

struct Cost {
  double seconds;
  double cpu_seconds;  // of all threads: what is left to compare on a machine with other work
};

// Pushes and runs all tasks.
Cost run_round(Engine& engine, const std::vector<std::uint32_t>& graph) {
  const auto predecessors = static_cast<std::size_t>(FLAGS_predecessors);
  std::vector<Variable> variables;
  for (std::int64_t task = 0; task < FLAGS_tasks; ++task) variables.push_back(engine.new_variable());
  std::vector<Variable> reads;
  reads.reserve(graph.size());
  for (const std::uint32_t predecessor : graph) reads.push_back(variables[predecessor]);

  const std::clock_t cpu_start = std::clock();
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t task = 0; task < variables.size(); ++task)
    engine.push({"empty"}, std::span(reads).subspan(task * predecessors, task == 0 ? 0 : predecessors),
                std::span(variables).subspan(task, 1), [](TaskContext&) {});
  engine.wait_all();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return {seconds.count(), static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC};
}

// The median over runs, in nanoseconds of the calling thread for each call.
template <class Operation>
double issue_cost(Engine& engine, const Operation& operation) {
  constexpr int kRun = 500;
  std::vector<double> costs;
  for (std::int64_t done = -kRun; done < FLAGS_issues; done += kRun) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kRun; ++i) operation();
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
    engine.wait_all();
    if (done >= 0) costs.push_back(taken.count() / kRun);
  }
  std::nth_element(costs.begin(), costs.begin() + static_cast<std::ptrdiff_t>(costs.size() / 2), costs.end());
  return costs[costs.size() / 2];
}

void measure_issues() {
  const auto engine = make_threaded_engine();
  const NDArray x = NDArray::zeros({16}, DType::kFloat32, {}, *engine), y = x.clone();
  const Variable reads[] = {x.variable(), y.variable()}, writes[] = {x.variable()};
  std::cout << nlohmann::json{{"benchmark", "issue"},
                              {"task_ns",
                               issue_cost(*engine,
                                          [&] { engine->push({"empty"}, reads, writes, [](TaskContext&) {}); })},
                              {"kernel_add_ns", issue_cost(*engine, [&] { kernels::add(x, y, x); })},
                              {"kernel_axpy_ns", issue_cost(*engine, [&] { kernels::axpy(0.5, y, x); })},
                              {"operator_add_ns", issue_cost(*engine, [&] { add(x, y); })}}
                   .dump()
            << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  tools::parse_flags(kUsage, __FILE__, &argc, &argv);
  return tools::run_main("engine_benchmark", [] {
    require(FLAGS_tasks > 0 && FLAGS_predecessors >= 0 && FLAGS_rounds > 0,
            "--tasks and --rounds are at least 1, --predecessors at least 0");
    if (FLAGS_issues > 0) {
      measure_issues();
      return 0;
    }
    const auto engine = make_threaded_engine({.cpu_lanes = FLAGS_threads, .queue_limit = FLAGS_queue_limit});
    const std::vector<std::uint32_t> graph = benchmarks::draw_graph(FLAGS_tasks, FLAGS_predecessors, FLAGS_seed);
    run_round(*engine, graph);
    const double tasks = static_cast<double>(FLAGS_tasks);
    std::vector<Cost> costs;
    for (int round = 0; round < FLAGS_rounds; ++round) {
      costs.push_back(run_round(*engine, graph));
      std::cout << "round " << round + 1 << ": " << tasks / costs.back().seconds / 1e6 << " million tasks per second, "
                << costs.back().cpu_seconds / tasks * 1e9 << " ns of CPU each\n";
    }
    std::sort(costs.begin(), costs.end(), [](const Cost& a, const Cost& b) { return a.seconds < b.seconds; });
    const Cost& median = costs[costs.size() / 2];
    std::cout << nlohmann::json{{"benchmark", "engine"},
                                {"tasks", FLAGS_tasks},
                                {"predecessors", FLAGS_predecessors},
                                {"threads", FLAGS_threads},
                                {"tasks_per_second", tasks / median.seconds},
                                {"best_tasks_per_second", tasks / costs.front().seconds},
                                {"cpu_ns_per_task", median.cpu_seconds / tasks * 1e9}}
                     .dump()
              << std::endl;
    return 0;
  });
}

// The peer of engine_benchmark: Taskflow runs the same graph of empty tasks. tools/bench.sh compiles it where
// Taskflow's headers are; no build of ours needs them.
//
//   taskflow_benchmark TASKS PREDECESSORS THREADS ROUNDS

#include <chrono>
#include <ctime>
#include <iostream>
#include <string>
#include <taskflow/taskflow.hpp>
#include <vector>

#include "task_graph.h"

namespace {

struct Cost {
  double seconds;
  double cpu_seconds;  // of all threads
};

// Pushes and runs all tasks. Tasks of a round are kept, as engine_benchmark keeps its variables.
Cost run_round(tf::Executor& executor, const std::vector<std::uint32_t>& graph, std::size_t count,
               std::size_t predecessors) {
  std::vector<tf::AsyncTask> tasks;
  tasks.reserve(count);
  std::vector<tf::AsyncTask> before;
  const std::clock_t cpu_start = std::clock();
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t task = 0; task < count; ++task) {
    before.clear();
    for (std::size_t i = 0; task > 0 && i < predecessors; ++i) before.push_back(tasks[graph[task * predecessors + i]]);
    tasks.push_back(executor.silent_dependent_async([] {}, before.begin(), before.end()));
  }
  executor.wait_for_all();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return {seconds.count(), static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "taskflow_benchmark TASKS PREDECESSORS THREADS ROUNDS\n";
    return 2;
  }
  const std::size_t tasks = std::stoul(argv[1]), predecessors = std::stoul(argv[2]);
  tf::Executor executor(std::stoul(argv[3]));
  const std::vector<std::uint32_t> graph =
      paceline::benchmarks::draw_graph(static_cast<std::int64_t>(tasks), static_cast<std::int64_t>(predecessors), 1);
  run_round(executor, graph, tasks, predecessors);
  std::vector<Cost> costs;
  for (unsigned long round = 0; round < std::stoul(argv[4]); ++round)
    costs.push_back(run_round(executor, graph, tasks, predecessors));
  std::sort(costs.begin(), costs.end(), [](const Cost& a, const Cost& b) { return a.seconds < b.seconds; });
  const Cost& median = costs[costs.size() / 2];
  const double count = static_cast<double>(tasks);
  std::cout << "{\"tasks_per_second\": " << count / median.seconds
            << ", \"cpu_ns_per_task\": " << median.cpu_seconds / count * 1e9 << ", \"version\": \"" << tf::version()
            << "\"}\n";
}

// The graph of empty tasks that engine_benchmark and taskflow_benchmark run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace paceline::benchmarks {

// The predecessors of all tasks, one task after the other; each is an earlier task, drawn at random.
inline std::vector<std::uint32_t> draw_graph(std::int64_t tasks, std::int64_t predecessors, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint32_t> graph;
  graph.reserve(static_cast<std::size_t>(tasks * predecessors));
  for (std::int64_t task = 0; task < tasks; ++task)
    for (std::int64_t i = 0; i < predecessors; ++i)
      graph.push_back(
          static_cast<std::uint32_t>(random() % static_cast<std::uint64_t>(std::max<std::int64_t>(task, 1))));
  return graph;
}

}  // namespace paceline::benchmarks

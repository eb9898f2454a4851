#pragma once
// Where a benchmark's processes run, so that two programs' figures do not differ by where the system puts them.

#include <sched.h>

#include <vector>

namespace paceline::tools {

// From now on the calling process, which has one thread, has the first half of its processors, or the others. One that
// has a single processor keeps it.
inline void keep_half_of_processors(bool first) {
  cpu_set_t all;
  CPU_ZERO(&all);
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  std::vector<int> processors;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &all)) processors.push_back(i);
  if (processors.size() < 2) return;
  cpu_set_t half;
  CPU_ZERO(&half);
  for (std::size_t i = 0; i < processors.size(); ++i)
    if ((i < processors.size() / 2) == first) CPU_SET(processors[i], &half);
  sched_setaffinity(0, sizeof half, &half);
}

}  // namespace paceline::tools

// Tasks say what they read and what they write; the engine finds out what may run at once and what must wait.
// Here four tasks square a part each, side by side, a fifth adds up what they wrote, and a sixth fails.

#include <paceline/engine.h>
#include <paceline/error.h>

#include <iostream>
#include <numeric>
#include <vector>

using namespace paceline;

int main() {
  constexpr int kParts = 4;
  constexpr int kNumbers = 1000;
  const auto engine = make_threaded_engine({.cpu_lanes = 2});

  std::vector<long> sums(kParts);
  std::vector<Variable> parts(kParts);
  for (int part = 0; part < kParts; ++part) {
    parts[part] = engine->new_variable();
    engine->push({"square"}, {}, {{parts[part]}}, [&sums, part](TaskContext&) {
      for (long n = part; n < kNumbers; n += kParts) sums[part] += n * n;
    });
  }

  long total = 0;
  const Variable result = engine->new_variable();
  engine->push({"add up"}, parts, {{result}},
               [&](TaskContext&) { total = std::accumulate(sums.begin(), sums.end(), 0L); });

  // A failure poisons what the task writes and comes out, with the task's name, where somebody waits.
  const Variable broken = engine->new_variable();
  engine->push({"divide"}, {{result}}, {{broken}}, [](TaskContext&) { throw InvalidArgument("by zero"); });

  engine->wait(result);
  std::cout << "sum of squares below " << kNumbers << ": " << total << '\n';
  try {
    engine->wait(broken);
  } catch (const InvalidArgument& error) {
    std::cout << "as expected: " << error.what() << '\n';
    return total == 332833500 ? 0 : 1;
  }
  return 1;
}

// The store: a parameter by name, gradients pushed, weights pulled. Runs alone, or as the workers of a job:
//   launch.py -n 2 -s 1 kvstore dist_sync
#include <paceline/exit_code.h>
#include <paceline/kernel.h>
#include <paceline/kvstore.h>
#include <paceline/log.h>

#include <cstdio>

using namespace paceline;

int main(int argc, char** argv) {
  start_logging(argv[0]);
  try {
    const auto kv = KVStore::create(argc > 1 ? argv[1] : "local");
    kv->set_optimizer(optim::SGD{.lr = 0.5});

    const NDArray weight = NDArray::full({3}, 10);
    kv->init({{"weight", weight}});
    for (int step = 0; step < 20; ++step) {
      // The gradient of (weight - 1)^2 / 2; push and pull are engine tasks, so nothing waits here.
      const NDArray gradient = NDArray::full({3}, -1);
      kernels::axpy(1, weight, gradient);
      kv->push_pull({{"weight", gradient}}, {{"weight", weight}});
      kv->step_end();
    }
    kv->barrier();
    if (kv->rank() == 0) std::printf("weight %.3f, expected 1.000\n", weight.to_vector<double>()[0]);
    kv->finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvstore: %s\n", error.what());
    return exit_code_of(error);
  }
}

// A staleness policy of one's own: here a gradient that is too old only gives its sign. It is an object without
// registration. The servers need it too, so they run this program:
//   launch.py -n 2 -s 2 --every-role custom_staleness
#include <paceline/exit_code.h>
#include <paceline/kvstore.h>
#include <paceline/log.h>

#include <cstdio>

using namespace paceline;

struct SignOfTheOld {
  double step;
  template <class T>
  T operator()(T gradient, const StaleElement<T>& at) const {
    if (at.context.delay < 2) return gradient;
    return gradient > 0 ? static_cast<T>(step) : static_cast<T>(-step);
  }
};

int main(int, char** argv) {
  start_logging(argv[0]);
  try {
    StoreOptions options;
    options.own.policies["sign_of_the_old"] = element_rule(SignOfTheOld{.step = 0.5}, /*needs_pulled=*/false);
    const auto kv = KVStore::create("dist_async:staleness=sign_of_the_old", options);
    const NDArray weight = NDArray::full({1}, 10), gradient = NDArray::full({1}, 3);
    kv->init({{"weight", weight}});
    kv->set_optimizer(optim::SGD{.lr = 1});

    // All gradients are of the first weights. Those of worker 0 have the delays 0 and 1, that of worker 1 has 2.
    for (int step = 0; kv->rank() == 0 && step < 2; ++step) kv->push("weight", gradient);
    kv->barrier();
    if (kv->rank() == 1) kv->push("weight", gradient);
    kv->barrier();
    kv->pull("weight", weight);
    if (kv->rank() == 0)
      std::printf("weight %.1f after gradients with a mean delay of %.1f\n", weight.to_vector<double>()[0],
                  kv->report().all_delays().mean());
    kv->finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "custom_staleness: %s\n", error.what());
    return exit_code_of(error);
  }
}

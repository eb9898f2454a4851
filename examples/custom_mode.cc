// A mode of one's own: asynchronous with a bound that widens. Early, when gradients are large, workers stay close to
// each other; later each may be further ahead. It is an object without registration. The servers need it too, so they
// run this program:
//   launch.py -n 2 -s 2 --every-role custom_mode
#include <paceline/exit_code.h>
#include <paceline/kernel.h>
#include <paceline/kvstore.h>
#include <paceline/log.h>
#include <paceline/mode.h>

#include <chrono>
#include <cstdio>
#include <thread>

using namespace paceline;

constexpr std::int64_t kSteps = 100, kSlower = 25;

class Widening final : public Mode {
 public:
  ModeTraits traits() const override { return {.applies = Applies::kAtOnce}; }
  bool may_pull(const Progress& progress) const override {
    return progress.mine - progress.slowest <= 1 + progress.mine / kSlower;
  }
};

int main(int, char** argv) {
  start_logging(argv[0]);
  try {
    StoreOptions options;
    options.own.modes["widening"] = std::make_shared<Widening>();
    const auto kv = KVStore::create("widening", options);
    const NDArray weight = NDArray::full({3}, 10);
    kv->init({{"weight", weight}});
    kv->set_optimizer(optim::SGD{.lr = 0.1});
    for (std::int64_t step = 0; step < kSteps; ++step) {
      // The gradient of (weight - 1)^2 / 2.
      const NDArray gradient = NDArray::full({3}, -1);
      kernels::axpy(1, weight, gradient);
      kv->push_pull({{"weight", gradient}}, {{"weight", weight}});
      kv->step_end();
      weight.wait();
      if (kv->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the others would run ahead
    }
    kv->barrier();
    kv->pull("weight", weight);
    const std::int64_t ahead = kv->report().furthest_ahead;
    if (kv->rank() == 0)
      std::printf("weight %.3f, nobody was more than %lld steps ahead: %s\n", weight.to_vector<double>()[0],
                  static_cast<long long>(1 + kSteps / kSlower), ahead <= 1 + kSteps / kSlower ? "true" : "false");
    kv->finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "custom_mode: %s\n", error.what());
    return exit_code_of(error);
  }
}

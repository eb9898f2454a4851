// A staleness policy of one's own: here a gradient that is too old only gives its sign. An object, no registration.
#include <paceline/kvstore.h>
#include <paceline/log.h>
#include <paceline/updater.h>

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
  const auto updater = make_updater();
  updater->set_rules(optim::SGD{.lr = 1}, "none", {});
  updater->set_staleness(element_rule(SignOfTheOld{.step = 0.5}, /*needs_pulled=*/false));

  // Three workers computed from version 0; the last one's push comes two updates late.
  const double start = 10, gradient = 3;
  const int slice = updater->add_slice({.name = "weight", .end = 1, .dtype = DType::kFloat64}, &start);
  for (int worker = 0; worker < 3; ++worker) {
    const Applied applied =
        updater->apply(slice, {.worker = worker, .version = 0, .examples = 1, .gradient = &gradient});
    std::printf("worker %d, delay %lld: weight %.1f\n", worker, static_cast<long long>(applied.delay),
                *reinterpret_cast<const double*>(updater->pull(slice, -1).data.get()));
  }
}

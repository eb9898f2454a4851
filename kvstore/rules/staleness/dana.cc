// DANA-Slim (Hakimi et al. 2019): the momentum is the worker's (rules/worker_rule/dana.cc), nothing is left to do here.
#include <paceline/staleness.h>

namespace paceline {

std::unique_ptr<Staleness> make_none_staleness(const Options&);

std::unique_ptr<Staleness> make_dana_staleness(const Options& options) { return make_none_staleness(options); }

}  // namespace paceline

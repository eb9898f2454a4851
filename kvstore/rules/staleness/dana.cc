// DANA-Slim (Hakimi et al. 2019). The worker keeps the momentum of dense keys (rules/worker_rule/dana.cc). The server
// corrects nothing.
#include <paceline/staleness.h>

namespace paceline {

std::unique_ptr<Staleness> make_none_staleness(const Options&);

std::unique_ptr<Staleness> make_dana_staleness(const Options& options) { return make_none_staleness(options); }

}  // namespace paceline

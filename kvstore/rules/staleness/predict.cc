// Weight prediction. The worker predicts (rules/worker_rule/predict.cc). The server corrects nothing.
#include <paceline/staleness.h>

#include "worker_rule/rules.h"

namespace paceline {

std::unique_ptr<Staleness> make_none_staleness(const Options&);

std::unique_ptr<Staleness> make_predict_staleness(const Options& options) {
  make_predict_rule(options);
  return make_none_staleness(options);
}

}  // namespace paceline

// Checks the text of mode ring.
#include <paceline/error.h>

#include "allreduce/ring.h"
#include "transport/transport_setting.h"

namespace paceline {

RingSetting check_ring(const Spec& mode, const ClusterConfig& config, const Extensions& own) {
  Options rest = mode.options;
  if (const std::string transport = rest.get("transport", ""); !transport.empty()) TransportSetting::parse(transport);
  rest.erase("transport");
  const Aggregate aggregate = parse_aggregate(rest, Aggregate::kMean);
  CompressionSetting compression = CompressionSetting::take(&rest, own);
  reject_unknown(rest, mode);
  compression.suit(false);
  require(!compression.measured, "mode ring measures no links: leave out bandwidth=");
  require(compression.rules.empty(), "mode ring has one codec for all keys: leave out rules=");
  if (const auto codec = compression.make(compression.push)) {
    require(!codec->takes_momentum(), "compression '", compression.push.text(),
            "' takes the momentum from the optimizer, all of which every worker of mode ring has; name another codec");
    require(!codec->votes(), "compression '", compression.push.text(),
            "' has the workers vote, and mode ring adds their gradients up; name another codec");
  }
  require(config.servers == 0, "mode ring has no servers, and this job has ", config.servers,
          "; start it with launch.py -s 0 (DMLC_NUM_SERVER=0)");
  return {aggregate, compression};
}

}  // namespace paceline

// Rounds: what the live workers push in one step is averaged, in rank order, and applied once.
#include <paceline/mode.h>

namespace paceline {
namespace {

class DistSync final : public Mode {
 public:
  bool synchronous() const override { return true; }
  bool round_complete(const Round& round) const override { return round.contributed >= round.expected; }
  std::string default_staleness(const std::string&) const override { return "none"; }
};

}  // namespace

std::unique_ptr<Mode> make_dist_sync_mode(const Options&) { return std::make_unique<DistSync>(); }

}  // namespace paceline

#pragma once
// Consistency modes, seen from a server: when is a push applied, when may a worker go on. A mode is two decisions over
// clocks; everything else is the server's. (`local`, `ring` and `gossip` are Exchanges at the worker instead.)

#include <paceline/catalog.h>
#include <paceline/options.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace paceline {

// Clocks of the live workers; a clock counts finished steps.
struct Progress {
  std::int64_t mine = 0;     // of the worker that asks
  std::int64_t slowest = 0;  // over live workers that still contribute
  // Seconds that the last step took of who asks and of the slowest, 0 where that is not known yet, and since when the
  // slowest has been at its present one.
  double my_step = 0;
  double slowest_step = 0;
  double slowest_since = 0;
};

// A round of a synchronous mode, at one partition.
struct Round {
  int contributed = 0;  // distinct workers that have pushed in it
  int expected = 0;     // live workers that still contribute
};

class Mode {
 public:
  virtual ~Mode() = default;
  // Names of the mode's own options; other keys of a mode's text are of staleness, compression or transport.
  virtual std::vector<std::string> keys() const { return {}; }
  // Throws InvalidArgument where the mode can do nothing with so few workers.
  virtual void check_workers(int /*at_start*/) const {}
  // True: pushes are kept and applied together, in rank order, when `round_complete`; false: each at once.
  virtual bool synchronous() const = 0;
  virtual bool round_complete(const Round&) const { return true; }
  // True: rounds may close without some workers. What they then push, made from older weights than the slice's, is
  // refused, and they go on from the weights that are there.
  virtual bool drops_late() const { return false; }
  // May the asking worker get weights (and so start its next step)? Only pulls are held back, never pushes.
  virtual bool may_pull(const Progress&) const { return true; }
  // The staleness policy where the user named none, for that optimizer.
  virtual std::string default_staleness(const std::string& optimizer) const = 0;
};

// Throws InvalidArgument listing the known modes or keys.
std::unique_ptr<Mode> make_mode(const Spec& spec);

// Every mode of the servers.
const Catalog<std::unique_ptr<Mode> (*)(const Options&)>& mode_catalog();

}  // namespace paceline

#pragma once
// Modes of consistency at a server. `local`, `device`, `ring` and `gossip` use no servers. They are Backends of the
// worker.

#include <paceline/aggregate.h>
#include <paceline/catalog.h>
#include <paceline/options.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace paceline {

// The clocks of live workers. A clock counts finished steps.
struct Progress {
  std::int64_t mine = 0;     // of the worker that asks
  std::int64_t slowest = 0;  // the lowest clock of the workers that still contribute
  double my_step = 0;        // seconds that the last step of the asking worker took; 0: not known yet
  double slowest_step = 0;   // seconds that the last step of the slowest took; 0: not known yet
  double slowest_since = 0;  // seconds that the slowest has spent in its present step
};

// A round of a synchronous mode, at one partition.
struct Round {
  int contributed = 0;  // distinct workers that have pushed in it
  int expected = 0;     // live workers that still contribute
};

// Decides from clocks when a push is applied, together with which others, and when a worker may go on. Constant, and so
// thread-safe.
class Mode {
 public:
  virtual ~Mode() = default;
  // The names of the mode's own options. Other keys of a mode's text belong to staleness, compression or transport.
  virtual std::vector<std::string> keys() const { return {}; }
  // Throws InvalidArgument if the mode needs more workers.
  virtual void check_workers(int /*at_start*/) const {}
  // True: pushes wait until their round is complete, and are then applied together in rank order. False: each push is
  // applied at once.
  virtual bool synchronous() const = 0;
  // May the round be applied?
  virtual bool round_complete(const Round&) const { return true; }
  // What the gradients of a round make together.
  virtual Aggregate aggregate() const { return Aggregate::kMean; }
  // True: rounds may close without some workers. Later pushes of these workers, from older weights than the slice has,
  // are refused. The workers go on from the present weights.
  virtual bool drops_late() const { return false; }
  // May the worker get weights, and so begin its next step? Only pulls are held back, never pushes.
  virtual bool may_pull(const Progress&) const { return true; }
  // The staleness policy for an optimizer if the user names none.
  virtual std::string default_staleness(const std::string& optimizer) const = 0;
};

// Makes the mode of a spec. Throws InvalidArgument listing the known modes or keys.
std::unique_ptr<Mode> make_mode(const Spec& spec);

// Every mode of the servers by name.
const Catalog<std::unique_ptr<Mode> (*)(const Options&)>& mode_catalog();

}  // namespace paceline

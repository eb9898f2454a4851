#pragma once
// Modes of consistency, as a server sees them. `local`, `device`, `ring` and `gossip` are Backends at the worker
// instead. Users may pass a mode of their own (extensions.h).

#include <paceline/aggregate.h>
#include <paceline/catalog.h>
#include <paceline/extensions.h>
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

// How servers apply what workers push.
enum class Applies : std::uint8_t {
  kAtOnce,       // each push when it comes
  kInRounds,     // round r holds what the workers push in their step r; they are applied as one update, in rank order
  kWithBackups,  // the same in rounds that close without some workers; what these push from older weights is refused,
                 // and they go on from the present weights
};

// What a mode can do. Workers and servers ask no mode for its name.
struct ModeTraits {
  Applies applies = Applies::kAtOnce;  // the way in which servers apply pushes
  bool holds_tables = true;            // row-sparse ones; kWithBackups cannot
  bool lockstep = false;               // kInRounds, and each round waits for all workers: a codec may take two rounds
  bool holds_pulls = true;             // kAtOnce: may_pull() may be false; if never, pulls travel with the pushes
  // Do servers keep pushes until their round is complete?
  bool in_rounds() const { return applies != Applies::kAtOnce; }
  // May a pull wait at the server for other workers?
  bool pulls_wait() const { return in_rounds() || holds_pulls; }
};

struct AveragingOptions;

// Decides from clocks when a push is applied, together with which others, and when a worker may go on. Constant, and so
// thread-safe.
class Mode {
 public:
  virtual ~Mode() = default;
  // Always the same.
  virtual ModeTraits traits() const = 0;
  // The names of the mode's own options. Other keys of a mode's text belong to staleness, compression or transport.
  virtual std::vector<std::string> keys() const { return {}; }
  // Throws InvalidArgument if the mode needs more workers.
  virtual void check_workers(int /*at_start*/) const {}
  // May the round be applied? Asked of modes with rounds, whenever a push or a worker's clock may have completed one.
  virtual bool round_complete(const Round&) const { return true; }
  // What the gradients of a round make together.
  virtual Aggregate aggregate() const { return Aggregate::kMean; }
  // May the asking worker get weights, and so begin its next step? Asked of modes without rounds. Only pulls are held
  // back, never pushes. Must be true for the slowest worker.
  virtual bool may_pull(const Progress&) const { return true; }
  // The staleness policy for an optimizer if the user names none.
  virtual std::string default_staleness(const std::string& /*optimizer*/) const { return "none"; }
  // Not null: workers train alone, and servers average their weights. For modes of the library.
  virtual const AveragingOptions* averaging() const { return nullptr; }
};

// The mode of a spec, which may be one of `own`. Throws InvalidArgument listing the known modes or keys.
std::shared_ptr<const Mode> make_mode(const Spec& spec, const Extensions& own = {});

// Every mode of the servers by name.
const Catalog<std::unique_ptr<Mode> (*)(const Options&)>& mode_catalog();

}  // namespace paceline

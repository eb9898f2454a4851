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
  std::int64_t mine = 0;     // clock of the worker that asks
  std::int64_t slowest = 0;  // lowest clock of the workers that rounds and bounds wait for
  double my_step = 0;        // seconds that the last step of the asking worker took; 0: not known yet
  double slowest_step = 0;   // seconds that the last step of the slowest worker took; 0: not known yet
  double slowest_since = 0;  // seconds that the slowest worker has spent in its present step
};

// A round of a synchronous mode, for one slice or for one partition of a table.
struct Round {
  int contributed = 0;  // number of workers that have pushed in the round
  int expected = 0;     // `contributed`, plus the workers that the round still waits for
};

// How servers apply pushes.
enum class Applies : std::uint8_t {
  kAtOnce,       // each push when it arrives
  kInRounds,     // round r holds the pushes of the workers' step r; they are applied as one update, in rank order
  kWithBackups,  // in rounds that close without some workers; pushes from older weights are refused, and their workers
                 // go on from the present weights
};

// What a mode can do. Workers and servers decide by these members, not by the name of the mode.
struct ModeTraits {
  Applies applies = Applies::kAtOnce;  // the way in which servers apply pushes
  bool holds_tables = true;            // the mode can hold row-sparse tables; must be false for kWithBackups
  bool lockstep = false;               // kInRounds only: each round waits for all workers, as Codec::two_rounds() needs
  bool holds_pulls = true;             // kAtOnce only; false: may_pull() is always true, so pulls travel with pushes
  // Do servers keep pushes until their round is complete?
  bool in_rounds() const { return applies != Applies::kAtOnce; }
  // May a pull wait at the server for other workers?
  bool pulls_wait() const { return in_rounds() || holds_pulls; }
};

struct AveragingOptions;

// Decides from the clocks when pushes are applied, which pushes are applied together, and when a worker may go on. A
// mode never changes, so it is thread-safe.
class Mode {
 public:
  virtual ~Mode() = default;
  // Returns the same traits at every call.
  virtual ModeTraits traits() const = 0;
  // The names of the mode's own options. Other options of a mode's text belong to staleness, compression or transport.
  virtual std::vector<std::string> keys() const { return {}; }
  // Throws InvalidArgument if the mode needs more workers than the job has at its start.
  virtual void check_workers(int /*at_start*/) const {}
  // May the round be applied? Called in modes with rounds, whenever a push or a worker's clock may have completed a
  // round. With kWithBackups, the number of workers that a round may lack must not become smaller when workers leave or
  // enter a barrier. Otherwise workers that are late at different servers may wait for each other for ever.
  virtual bool round_complete(const Round&) const { return true; }
  // How the gradients of a round are combined.
  virtual Aggregate aggregate() const { return Aggregate::kMean; }
  // May the asking worker get weights, and so begin its next step? Called in modes without rounds. Only pulls are held
  // back, never pushes. Must be true for the slowest worker.
  virtual bool may_pull(const Progress&) const { return true; }
  // The staleness policy for an optimizer if the user names none.
  virtual std::string default_staleness(const std::string& /*optimizer*/) const { return "none"; }
  // Not null: workers train alone, and servers average their weights. Only for modes of the library.
  virtual const AveragingOptions* averaging() const { return nullptr; }
};

// Makes the mode of a spec, or returns one of `own`. Throws InvalidArgument listing the known modes or options.
std::shared_ptr<const Mode> make_mode(const Spec& spec, const Extensions& own = {});

// Every mode with servers, by name.
const Catalog<std::unique_ptr<Mode> (*)(const Options&)>& mode_catalog();

}  // namespace paceline

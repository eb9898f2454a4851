#pragma once
// A fault plan says what is to go wrong in a job, where and when. docs/faults.md describes its text.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "message.h"
#include "node.h"

namespace paceline {

// A moment in the life of a process: `value` seconds after its start or, if `in_steps`, when the process learns that
// training has reached step `value`.
struct FaultTime {
  bool in_steps = false;
  double value = 0;
};

struct Fault {
  enum class Kind { kDrop, kDuplicate, kReorder, kDelay, kThrottle, kCut, kSlowConnect, kFreeze, kKill };
  // The event at which a kill or a freeze strikes. kNone: it strikes as soon as `begin` is reached.
  enum class Point { kNone, kBeforeSending, kAfterSending, kOnReceiving };

  Kind kind = Kind::kDrop;
  double amount = 0;              // a probability, seconds, or bytes per second
  std::string from = "*";         // the sender, or the process that is frozen, killed or slow to connect; see matches()
  std::string to = "*";           // the process that receives
  bool both_ways = false;         // also concerns messages from `to` to `from`
  std::optional<MessageKind> of;  // only messages of this kind; with a point, the kind that triggers the fault
  Point point = Point::kNone;
  FaultTime begin;
  std::optional<FaultTime> end;
  std::optional<double> seconds;  // the fault ends this long after its beginning
  std::string text;               // the statement as it was written

  // Is this fault about what `sender` sends to `receiver`?
  bool concerns(const std::string& sender, const std::string& receiver) const;
};

struct FaultPlan {
  std::uint64_t seed = 0;
  std::vector<Fault> faults;

  // Reads a plan. A newline or ';' ends a statement, '#' begins a comment. Throws InvalidArgument that quotes the
  // statement and says what was expected.
  static FaultPlan parse(const std::string& text);

  // Throws InvalidArgument if a fault names a worker or server that a job with so many workers and servers does not
  // have.
  void check_ranks(int workers, int servers) const;
};

// The name of a process in plans, such as "worker3" or "scheduler".
std::string name_in_plan(const PeerId& peer);

// True if `pattern` is `name`, or if it is a prefix of `name` followed by "*".
bool matches(const std::string& pattern, const std::string& name);

// Returns a number in [0, 1) that looks random and follows from the arguments alone. `fault` is the place of the fault
// in the plan. `packet` counts the packets from `sender` to `receiver`. With another `draw`, the same packet gets
// another number.
double fate(std::uint64_t seed, std::size_t fault, const std::string& sender, const std::string& receiver,
            std::uint64_t packet, int draw = 0);

}  // namespace paceline

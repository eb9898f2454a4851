#pragma once
// A fault plan says what is to go wrong in a job, where and when. docs/faults.md describes its text.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "message.h"
#include "node.h"

namespace paceline {

// A moment in the life of a process: so many seconds after its start, or when the process knows of a step.
struct FaultTime {
  bool in_steps = false;
  double value = 0;
};

struct Fault {
  enum class Kind { kDrop, kDuplicate, kReorder, kDelay, kThrottle, kCut, kSlowConnect, kFreeze, kKill };
  // Where a kill or a freeze strikes. kNone: as soon as its time has come.
  enum class Point { kNone, kBeforeSending, kAfterSending, kOnReceiving };

  Kind kind = Kind::kDrop;
  double amount = 0;              // a probability, seconds, or bytes per second
  std::string from = "*";         // the process that sends, or that is frozen or killed: a name, "worker*" or "*"
  std::string to = "*";           // the process that receives
  bool both_ways = false;         // on the way back too
  std::optional<MessageKind> of;  // only messages of this kind; for a point, the kind that is meant
  Point point = Point::kNone;
  FaultTime begin;
  std::optional<FaultTime> end;
  std::optional<double> seconds;  // ends so long after it began
  std::string text;               // as it was written

  // Is this fault about what `sender` sends to `receiver`?
  bool concerns(const std::string& sender, const std::string& receiver) const;
};

struct FaultPlan {
  std::uint64_t seed = 0;
  std::vector<Fault> faults;

  // Reads a plan. A newline or ';' ends a statement, '#' begins a comment. Throws InvalidArgument that quotes the
  // statement and says what was expected.
  static FaultPlan parse(const std::string& text);
};

// A process as plans name it: "worker3", "scheduler".
std::string name_in_plan(const PeerId& peer);

// Is the process `name` meant by `pattern`?
bool matches(const std::string& pattern, const std::string& name);

// A number from 0 to 1 (not 1) that follows from the plan's seed, the fault's place in the plan, the link and the
// packet's number on it. `draw` tells several numbers for one packet apart.
double fate(std::uint64_t seed, std::size_t fault, const std::string& sender, const std::string& receiver,
            std::uint64_t packet, int draw = 0);

}  // namespace paceline

#include "faults/fault_plan.h"

#include <paceline/cluster.h>
#include <paceline/detail/split_mix.h>
#include <paceline/error.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>
#include <utility>

namespace paceline {
namespace {

constexpr std::pair<const char*, Fault::Kind> kKinds[] = {
    {"drop", Fault::Kind::kDrop},     {"duplicate", Fault::Kind::kDuplicate},      {"reorder", Fault::Kind::kReorder},
    {"delay", Fault::Kind::kDelay},   {"throttle", Fault::Kind::kThrottle},        {"cut", Fault::Kind::kCut},
    {"freeze", Fault::Kind::kFreeze}, {"slow_connect", Fault::Kind::kSlowConnect}, {"kill", Fault::Kind::kKill}};

constexpr std::pair<const char*, double> kTimes[] = {{"ms", 1e-3}, {"s", 1}, {"min", 60}};
constexpr std::pair<const char*, double> kRates[] = {{"kB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}, {"B/s", 1}};

// Reads one statement of a plan word by word.
class Statement {
 public:
  explicit Statement(const std::string& text) : text_(text) {
    std::istringstream stream(text);
    for (std::string word; stream >> word;) words_.push_back(word);
  }

  bool at_end() const { return next_ == words_.size(); }
  std::string take(const char* expected) {
    if (at_end()) fail(str("it ends where ", expected, " is expected"));
    return words_[next_++];
  }
  bool take_if(const std::string& word) {
    if (at_end() || words_[next_] != word) return false;
    ++next_;
    return true;
  }
  // Takes the next word if it can be a process or a link. Otherwise returns "*" and takes no word.
  std::string take_place() {
    static constexpr const char* kAfterPlace[] = {"from", "to", "at", "for", "of", "before", "after", "on"};
    const bool is_place = !at_end() && std::ranges::find(kAfterPlace, words_[next_]) == std::end(kAfterPlace);
    return is_place ? words_[next_++] : "*";
  }

  double probability() {
    const std::string word = take("a probability");
    const double value = number(word, "");
    if (!(value >= 0 && value <= 1)) fail("'" + word + "' is no probability from 0 to 1");
    return value;
  }
  template <std::size_t n>
  double quantity(const std::pair<const char*, double> (&units)[n], const char* expected) {
    const std::string word = take(expected);
    for (const auto& [unit, factor] : units) {
      const double value = number(word, unit);
      if (value >= 0) return value * factor;
    }
    fail(str("'", word, "' is not ", expected));
  }
  double seconds() { return quantity(kTimes, "a time such as 20ms or 5s"); }
  double rate() {
    const double value = quantity(kRates, "a rate such as 2MB/s");
    if (value == 0) fail("a rate of 0 lets nothing pass; write `cut`");
    return value;
  }
  FaultTime time() {
    if (!take_if("step")) return {false, seconds()};
    const std::string word = take("the number of a step");
    std::uint64_t step = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), step);
    if (error != std::errc() || end != word.data() + word.size()) fail("'" + word + "' is not the number of a step");
    return {true, static_cast<double>(step)};
  }
  MessageKind kind() {
    const std::string word = take("a kind of message");
    for (int kind = 0; kind < 256; ++kind)
      if (word == name_of(static_cast<MessageKind>(kind)) && word != name_of(static_cast<MessageKind>(255)))
        return static_cast<MessageKind>(kind);
    fail("'" + word + "' is no kind of message; kinds are for example push_pull, reply, barrier, heartbeat");
  }
  std::string process(const std::string& pattern) const {
    const auto is_number = [](const std::string& text) {
      return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    };
    bool known = pattern == "*" || pattern == name_of(Role::kScheduler);
    for (const std::string role : {name_of(Role::kServer), name_of(Role::kWorker)})
      if (pattern.starts_with(role)) known = pattern == role + "*" || is_number(pattern.substr(role.size()));
    if (!known) fail("'" + pattern + "' is no process; processes are scheduler, server0, worker0, server*, worker*, *");
    return pattern;
  }
  // Reads a link, or a single process, which stands for all that it sends. If neither follows, every link is meant.
  void link(Fault& fault) {
    const std::string word = take_place();
    const std::size_t arrow = word.find("->"), comma = word.find(',');
    if (arrow != std::string::npos) {
      fault.from = process(word.substr(0, arrow));
      fault.to = process(word.substr(arrow + 2));
    } else if (comma != std::string::npos) {
      fault.from = process(word.substr(0, comma));
      fault.to = process(word.substr(comma + 1));
      fault.both_ways = true;
    } else {
      fault.from = process(word);
    }
  }

  [[noreturn]] void fail(const std::string& why) const { throw InvalidArgument("[faults] '" + text_ + "': " + why); }

 private:
  // Returns the number in a word "<number><unit>". Returns -1 if the word has another form, or if its number is
  // negative or infinite.
  static double number(const std::string& word, const std::string& unit) {
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    const bool good =
        error == std::errc() && std::isfinite(value) && std::string(end, word.data() + word.size()) == unit;
    return good && value >= 0 ? value : -1;
  }

  std::string text_;
  std::vector<std::string> words_;
  std::size_t next_ = 0;
};

void read_amount(Statement& statement, Fault& fault) {
  switch (fault.kind) {
    case Fault::Kind::kDrop:
    case Fault::Kind::kDuplicate:
    case Fault::Kind::kReorder: fault.amount = statement.probability(); break;
    case Fault::Kind::kDelay:
    case Fault::Kind::kSlowConnect: fault.amount = statement.seconds(); break;
    case Fault::Kind::kThrottle: fault.amount = statement.rate(); break;
    case Fault::Kind::kCut:
    case Fault::Kind::kFreeze:
    case Fault::Kind::kKill: break;
  }
}

bool strikes_process(const Fault& fault) {
  return fault.kind == Fault::Kind::kFreeze || fault.kind == Fault::Kind::kKill;
}

// Reads a point, such as `before sending`. False if none follows, or if the fault already has one.
bool read_point(Statement& statement, Fault& fault) {
  struct Words {
    const char *first, *second;
    Fault::Point point;
  };
  constexpr Words kPoints[] = {{"before", "sending", Fault::Point::kBeforeSending},
                               {"after", "sending", Fault::Point::kAfterSending},
                               {"on", "receiving", Fault::Point::kOnReceiving}};
  if (fault.point != Fault::Point::kNone) return false;
  for (const auto& [first, second, point] : kPoints) {
    if (!statement.take_if(first)) continue;
    if (!statement.take_if(second)) statement.fail(str("after '", first, "' it wants '", second, " KIND'"));
    fault.point = point;
    return true;
  }
  return false;
}

Fault read_fault(Statement& statement, Fault::Kind kind, const std::string& text) {
  Fault fault;
  fault.kind = kind;
  fault.text = text;
  read_amount(statement, fault);
  if (strikes_process(fault))
    fault.from = statement.process(statement.take("a process"));
  else
    statement.link(fault);
  while (!statement.at_end()) {
    if (statement.take_if("from") || statement.take_if("at")) {
      fault.begin = statement.time();
    } else if (statement.take_if("to")) {
      fault.end = statement.time();
    } else if (statement.take_if("for")) {
      fault.seconds = statement.seconds();
    } else if (strikes_process(fault) ? read_point(statement, fault) : statement.take_if("of")) {
      fault.of = statement.kind();
    } else {
      statement.fail("'" + statement.take("") + "' is not understood here");
    }
  }
  if (kind == Fault::Kind::kFreeze && !fault.seconds) statement.fail("say how long, for example `for 3s`");
  if (fault.end && (fault.seconds || strikes_process(fault))) statement.fail("'to' does not fit here");
  if (kind == Fault::Kind::kSlowConnect && (fault.to != "*" || fault.of))
    statement.fail("it takes a process, and neither a link nor a kind of message");
  if (kind == Fault::Kind::kKill && fault.seconds) statement.fail("a kill has no duration");
  if (fault.end && fault.end->in_steps == fault.begin.in_steps && fault.end->value <= fault.begin.value)
    statement.fail("it ends before it begins");
  return fault;
}

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

}  // namespace

FaultPlan FaultPlan::parse(const std::string& text) {
  FaultPlan plan;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream statements(line.substr(0, line.find('#')));
    for (std::string part; std::getline(statements, part, ';');) {
      part = trimmed(part);
      if (part.empty()) continue;
      Statement statement(part);
      const std::string verb = statement.take("a fault");
      if (verb == "seed") {
        const std::string word = statement.take("a number");
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), plan.seed);
        if (error != std::errc() || end != word.data() + word.size() || !statement.at_end())
          statement.fail("a seed is one whole number");
        continue;
      }
      const auto* kind = std::ranges::find_if(kKinds, [&](const auto& known) { return verb == known.first; });
      if (kind == std::end(kKinds)) {
        std::string known = "seed";
        for (const auto& [name, unused] : kKinds) known += str(" ", name);
        statement.fail("no fault is called '" + verb + "'; known: " + known);
      }
      plan.faults.push_back(read_fault(statement, kind->second, part));
    }
  }
  return plan;
}

void FaultPlan::check_ranks(int workers, int servers) const {
  const auto check = [](const Fault& fault, const std::string& pattern, Role role, int count) {
    const std::string name = name_of(role);
    if (!pattern.starts_with(name) || pattern.ends_with('*')) return;
    const std::string rank = pattern.substr(name.size());
    int number = count;
    std::from_chars(rank.data(), rank.data() + rank.size(), number);
    const std::string there = count == 0   ? str("no ", name, "s")
                              : count == 1 ? str("one ", name, ", ", name, "0")
                                           : str(count, " ", name, "s, ", name, "0 to ", name, count - 1);
    require(number < count && std::to_string(number) == rank, "[faults] '", fault.text, "': there is no ", pattern,
            "; the job has ", there);
  };
  for (const Fault& fault : faults)
    for (const std::string& pattern : {fault.from, fault.to}) {
      check(fault, pattern, Role::kWorker, workers);
      check(fault, pattern, Role::kServer, servers);
    }
}

std::string name_in_plan(const PeerId& peer) {
  if (peer.role == Role::kScheduler) return name_of(peer.role);
  return name_of(peer.role) + std::to_string(peer.rank);
}

bool matches(const std::string& pattern, const std::string& name) {
  return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1)) : name == pattern;
}

bool Fault::concerns(const std::string& sender, const std::string& receiver) const {
  return (matches(from, sender) && matches(to, receiver)) ||
         (both_ways && matches(to, sender) && matches(from, receiver));
}

double fate(std::uint64_t seed, std::size_t fault, const std::string& sender, const std::string& receiver,
            std::uint64_t packet, int draw) {
  std::uint64_t state = detail::split_mix(seed);
  for (const char c : sender + ">" + receiver) state = detail::split_mix(state ^ static_cast<unsigned char>(c));
  state = detail::split_mix(state ^ detail::split_mix(fault));
  state = detail::split_mix(state ^ packet);
  state = detail::split_mix(state ^ static_cast<std::uint64_t>(draw));
  return static_cast<double>(state >> 11) * 0x1p-53;
}

}  // namespace paceline

#pragma once
// What a backend asks of the scheduler, whatever its mode: barriers, facts, the book of positions, agreements.

#include <paceline/backend.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "barrier_number.h"
#include "node.h"

namespace google::protobuf {
class MessageLite;
}

namespace paceline {

class SchedulerClient {
 public:
  explicit SchedulerClient(Node& node) : node_(node) {}

  // Functions below block and throw as Node::ask_and_wait() does.

  Message ask(MessageKind kind, const google::protobuf::MessageLite& body);
  // The last barrier that everybody passed, and whether this worker came after the job's start: it then counts on from
  // there.
  std::pair<std::uint64_t, bool> standing();
  // Numbers this worker's next barrier, see barrier_number.h.
  std::uint64_t next_barrier() { return ++barriers_; }
  // Has this worker asked for a part of an epoch?
  bool in_epoch() const { return !is_plain_barrier(barriers_); }
  // That barrier over all live workers; returns the largest clock of those that met. A backend may count its barriers
  // itself, from 1: they are taken as those of the epoch. `joining`: without weights yet, so that it does not lead.
  std::uint64_t meet(std::uint64_t number, std::uint64_t clock, bool joining = false) {
    return gather(number, clock, joining, {}, {}).first;
  }
  // The same, with what all_gather() of that name gives.
  std::pair<std::uint64_t, GatheredValues> gather(std::uint64_t number, std::uint64_t clock, bool joining,
                                                  const std::string& name, const std::string& value);
  // As Backend::leads() says. Does not block.
  int leader() const;
  // Throws InvalidArgument where another worker's `rules` of that call differ.
  void agree_on_rules(std::uint32_t call, const std::string& rules);

  // As Backend says.
  void put_fact(const std::string& name, const std::string& value);
  Facts facts(const std::string& prefix);
  std::pair<int, int> data_part(std::int64_t epoch);
  void data_begin(std::int64_t epoch, const PositionRanges& mine, const PositionRanges& all);
  PositionRanges data_committed(std::int64_t epoch);
  std::vector<std::string> data_notes(std::int64_t epoch);
  PositionRanges data_take_over(std::int64_t epoch, bool wait);
  // The request that commits positions, for the backend to send in time.
  static Message commit_message(std::int64_t epoch, const PositionRanges& done, const std::string& note);

 private:
  Node& node_;
  std::uint64_t epoch_ = 0;  // all barriers before it
  std::uint64_t barriers_ = 0, take_overs_ = 0, puts_ = 0;
  std::atomic<int> leader_ = -1;  // of the last barrier
};

}  // namespace paceline

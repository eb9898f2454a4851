#pragma once
// Keeps the error of rounds that could not be applied, until every contributor has got the error and a later round has
// succeeded. Belongs to a shard's thread.

#include <cstdint>
#include <exception>
#include <map>
#include <utility>

#include "entry.h"

namespace paceline {

class FailedRounds {
 public:
  // A round has failed with `error`. Call add() for each worker that contributed to the round.
  void fail(std::exception_ptr error) {
    error_ = std::move(error);
    last_ = true;
  }
  void add(const WorkerIncarnation& contributor) { unheard_[contributor.worker] = contributor.incarnation; }
  // A later round was applied. From now on only contributors to the failed round get the error.
  void recover() { last_ = false; }

  // Returns the error to refuse a worker's call with; null: none. The first call of each contributor gets the error.
  // Every pull gets the error until a later round succeeds.
  std::exception_ptr hear(const WorkerIncarnation& from, bool pulls) {
    const auto found = unheard_.find(from.worker);
    const bool contributed = found != unheard_.end() && found->second == from.incarnation;
    if (found != unheard_.end() && found->second <= from.incarnation) unheard_.erase(found);
    return contributed || (pulls && last_) ? error_ : nullptr;
  }
  bool over() const { return !last_ && unheard_.empty(); }

 private:
  std::exception_ptr error_;
  bool last_ = false;                     // the latest round has failed
  std::map<int, std::uint64_t> unheard_;  // contributors that have not got the error: worker -> incarnation
};

}  // namespace paceline

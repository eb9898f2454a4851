#pragma once
// A round that could not be applied, until all workers that it concerns have heard of it. Belongs to a shard's thread.

#include <cstdint>
#include <exception>
#include <map>
#include <utility>

#include "entry.h"

namespace paceline {

class FailedRounds {
 public:
  // A round has failed. add() names each worker that contributed to it.
  void fail(std::exception_ptr error) {
    error_ = std::move(error);
    last_ = true;
  }
  void add(const WorkerIncarnation& contributor) { unheard_[contributor.worker] = contributor.incarnation; }
  // A later round was applied: only those that contributed to the failed one still have to hear of it.
  void recover() { last_ = false; }

  // The error to refuse a call of the worker with; null: none. A pull is refused after a failed round, whoever asks.
  std::exception_ptr hear(const WorkerIncarnation& from, bool pulls) {
    const auto found = unheard_.find(from.worker);
    const bool contributed = found != unheard_.end() && found->second == from.incarnation;
    if (found != unheard_.end() && found->second <= from.incarnation) unheard_.erase(found);
    return contributed || (pulls && last_) ? error_ : nullptr;
  }
  bool over() const { return !last_ && unheard_.empty(); }

 private:
  std::exception_ptr error_;
  bool last_ = false;                     // no later round was applied
  std::map<int, std::uint64_t> unheard_;  // worker -> incarnation
};

}  // namespace paceline

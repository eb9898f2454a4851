#pragma once
// The keys of one process, and of the processes that it admits. Public keys are the names by which links know their
// peers. All keys are CURVE's, written in Z85: 40 characters.

#include <paceline/mutex.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace paceline {

struct KeyPair {
  std::string open, secret;
};

// Thread-safe.
class Keyring {
 public:
  // Draws a key pair for this process. Throws NotAvailable where ZeroMQ was built without CURVE.
  Keyring(const std::string& job_secret, bool is_scheduler);

  // By which this process connects, and listens if it is not the scheduler.
  const KeyPair& own() const { return own_; }
  // By which it listens. The scheduler's follows from the job's secret, so that newcomers know it.
  const KeyPair& listening() const { return is_scheduler_ ? gate_ : own_; }
  const std::string& scheduler_key() const { return gate_.open; }

  // What a newcomer shows beside its key to be let into the job.
  std::string proof(const std::string& key) const;

  // The members now: their incarnations by key. Members that are no longer there are never admitted again.
  void set_members(std::unordered_map<std::string, std::uint64_t> members);
  // May a process with this key connect? The scheduler admits newcomers too.
  bool admits(const std::string& key) const;
  // Was it the key of a member that is no longer there?
  bool is_lost(const std::string& key) const;
  // admits(), but waits a moment for a member that this process has not heard of yet.
  bool admits_soon(const std::string& key) const;

  // For the scheduler: lets a newcomer in that proves that it belongs to the job. It speaks as `provisional`, also when
  // it is a member and does not know it yet. False if the proof is wrong, or if the key speaks for another newcomer.
  bool let_in(const std::string& key, const std::string& proof, std::uint64_t provisional);
  // Does this key speak for the process of that incarnation?
  bool speaks_for(const std::string& key, std::uint64_t incarnation) const;

 private:
  const bool is_scheduler_;
  const std::string join_key_;
  KeyPair own_, gate_;  // the secret of gate_ is the scheduler's only

  bool admits_now(const std::string& key) const PACELINE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::unordered_map<std::string, std::uint64_t> members_ PACELINE_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::uint64_t> newcomers_ PACELINE_GUARDED_BY(mutex_);
  std::unordered_set<std::string> lost_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline

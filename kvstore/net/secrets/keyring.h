#pragma once
// The keys of one process, and the public keys of the processes that it admits. A link identifies its peer by the
// peer's public key. Key pairs and public keys are CURVE keys, written in Z85 with 40 characters.

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

  // The pair with which this process connects. A process other than the scheduler also listens with it.
  const KeyPair& own() const { return own_; }
  // The pair with which this process listens. The scheduler's pair is derived from the job's secret, so newcomers know
  // its public key.
  const KeyPair& listening() const { return is_scheduler_ ? gate_ : own_; }
  const std::string& scheduler_key() const { return gate_.open; }

  // Returns a proof that the owner of the public key `key` knows the job's secret. A newcomer shows this proof to be
  // let into the job.
  std::string proof(const std::string& key) const;

  // Sets the present members: their incarnations by public key. An earlier member that is missing now counts as lost.
  void set_members(std::unordered_map<std::string, std::uint64_t> members);
  // May a process with this public key connect? Members may. The scheduler also admits unknown keys, but no key that is
  // lost.
  bool admits(const std::string& key) const;
  // Did an earlier set_members() name this key, and a later one not? A process that left the job stays a member.
  bool is_lost(const std::string& key) const;
  // Like admits(), but waits a few seconds for an unknown key: this process may not have heard of a new member yet.
  bool admits_soon(const std::string& key) const;

  // For the scheduler: lets a newcomer in if `proof` shows that it belongs to the job. The newcomer then sends with the
  // provisional incarnation `provisional`. It may do so even when it is a member already, because it may not know that
  // yet. False if the proof is wrong, the key is lost, or the key already has another provisional incarnation. Also
  // false if there are too many newcomers.
  bool let_in(const std::string& key, const std::string& proof, std::uint64_t provisional);
  // May the owner of this key send messages as the process of that incarnation?
  bool speaks_for(const std::string& key, std::uint64_t incarnation) const;

 private:
  const bool is_scheduler_;
  const std::string join_key_;  // 32 bytes, which authenticate proofs
  KeyPair own_, gate_;          // only the scheduler has the secret of gate_

  bool admits_now(const std::string& key) const PACELINE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::unordered_map<std::string, std::uint64_t> members_ PACELINE_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::uint64_t> newcomers_ PACELINE_GUARDED_BY(mutex_);
  std::unordered_set<std::string> lost_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline

#include "secrets/keyring.h"

#include <paceline/error.h>
#include <zmq.h>

#include <chrono>
#include <cstdint>
#include <utility>

#include "secrets/job_secret.h"

namespace paceline {
namespace {

constexpr std::size_t kKeyText = 40;
constexpr std::chrono::seconds kPatience{3};  // less than ZeroMQ allows for a handshake
constexpr std::size_t kMostNewcomers = 100000;

[[noreturn]] void no_curve() {
  throw NotAvailable(
      "[secrets] the ZeroMQ library of this host was built without CURVE, which encrypts; install one that has it (the "
      "packages of Debian and Ubuntu do), or go without encryption: --insecure, or PACELINE_INSECURE=1");
}

KeyPair new_pair() {
  char open[kKeyText + 1], secret[kKeyText + 1];
  if (zmq_has("curve") == 0 || zmq_curve_keypair(open, secret) != 0) no_curve();
  return {open, secret};
}

KeyPair pair_of(const std::string& seed) {
  char open[kKeyText + 1], secret[kKeyText + 1];
  if (!zmq_z85_encode(secret, reinterpret_cast<const std::uint8_t*>(seed.data()), seed.size()) ||
      zmq_curve_public(open, secret) != 0)
    no_curve();
  return {open, secret};
}

}  // namespace

Keyring::Keyring(const std::string& job_secret, bool is_scheduler)
    : is_scheduler_(is_scheduler),
      join_key_(derived_key(job_secret, "join")),
      own_(new_pair()),
      gate_(pair_of(derived_key(job_secret, "scheduler"))) {
  if (!is_scheduler) gate_.secret.clear();
}

std::string Keyring::proof(const std::string& key) const { return code_of(join_key_, key); }

void Keyring::set_members(std::unordered_map<std::string, std::uint64_t> members) {
  const Lock lock(mutex_);
  for (const auto& [key, incarnation] : members_)
    if (!members.contains(key)) {
      lost_.insert(key);
      newcomers_.erase(key);
    }
  members_ = std::move(members);
  changed_.notify_all();
}

bool Keyring::admits_now(const std::string& key) const {
  return is_scheduler_ ? !lost_.contains(key) : members_.contains(key);
}

bool Keyring::admits(const std::string& key) const {
  const Lock lock(mutex_);
  return admits_now(key);
}

bool Keyring::is_lost(const std::string& key) const {
  const Lock lock(mutex_);
  return lost_.contains(key);
}

bool Keyring::admits_soon(const std::string& key) const {
  const Lock lock(mutex_);
  changed_.wait_for(mutex_, kPatience,
                    [&]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return admits_now(key) || lost_.contains(key); });
  return admits_now(key);
}

bool Keyring::let_in(const std::string& key, const std::string& proof, std::uint64_t provisional) {
  if (key.empty() || !equal_in_constant_time(proof, this->proof(key))) return false;
  const Lock lock(mutex_);
  if (lost_.contains(key) || newcomers_.size() >= kMostNewcomers) return false;
  return newcomers_.emplace(key, provisional).first->second == provisional;
}

bool Keyring::speaks_for(const std::string& key, std::uint64_t incarnation) const {
  const Lock lock(mutex_);
  for (const auto* speakers : {&members_, &newcomers_})
    if (const auto found = speakers->find(key); found != speakers->end() && found->second == incarnation) return true;
  return false;
}

}  // namespace paceline

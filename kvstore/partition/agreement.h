#pragma once
// One round of a codec with two rounds of messages, for one slice at the server: the proposals of the workers, what
// they agree on, and their answers.

#include <paceline/compression.h>
#include <paceline/updater.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "digest.h"

namespace paceline {

class Agreement {
 public:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;
  struct Proposal {
    Contribution contribution;
    std::uint64_t incarnation = 0;  // of its worker
  };

  // Computes what the workers agree on. Does not keep the proposals. Their codec must outlive the round.
  Agreement(std::uint64_t round, const std::vector<Proposal>& proposals, std::int64_t count);

  std::uint64_t round() const { return round_; }
  const Bytes& agreed() const { return agreed_; }
  // The mean of the answers; null until the round is over.
  const Bytes& mean() const { return mean_; }

  // Takes a worker's answer. Throws Corrupt if its size is wrong, or if the worker has not proposed. A second answer of
  // the worker changes nothing.
  void answer(int worker, std::uint64_t incarnation, const std::byte* data, std::size_t bytes);
  // The worker will not answer. Changes nothing if it has answered.
  void abstain(int worker, std::uint64_t incarnation);
  // Calls visit(worker, incarnation) for each worker that has not answered.
  template <class Visitor>
  void for_each_missing(Visitor visit) const {
    for (const auto& [worker, member] : members_)
      if (member.encoded.empty()) visit(worker, member.incarnation);
  }
  // Computes the mean of the answers. Returns the gradients of the workers that have answered, in rank order, valid
  // until close().
  std::vector<Contribution> conclude();
  // The round is over: frees the answers.
  void close() { members_.clear(); }
  void add_to(Digest& digest) const;

 private:
  struct Member {
    std::uint64_t incarnation;
    Contribution contribution;
    std::vector<std::byte> encoded;  // what was agreed on and the answer
  };

  std::vector<Contribution> contributions() const;

  const std::uint64_t round_;
  const std::int64_t count_;
  const Codec& codec_;
  Bytes agreed_, mean_;
  std::map<int, Member> members_;
};

}  // namespace paceline

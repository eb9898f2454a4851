#pragma once
// The state of one round of one slice at the server, if the codec has two rounds of messages (two_rounds.h). It holds
// what the workers agree on, their answers, and the mean of the answers.

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
    std::uint64_t incarnation = 0;  // of the worker that proposes
  };

  // Computes what the workers agree on. The bytes of the proposals are not used afterwards. The codec of the proposals
  // must outlive this object.
  Agreement(std::uint64_t round, const std::vector<Proposal>& proposals, std::int64_t count);

  std::uint64_t round() const { return round_; }
  const Bytes& agreed() const { return agreed_; }
  // The mean of the answers; null until the round is over.
  const Bytes& mean() const { return mean_; }

  // Takes a worker's answer. Throws Corrupt if its size is wrong, or if the worker has not proposed. A second answer of
  // the worker changes nothing.
  void answer(int worker, std::uint64_t incarnation, const std::byte* data, std::size_t bytes);
  // Removes a worker that will not answer. Changes nothing if the worker has answered.
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
  // Frees the answers when the round is over.
  void close() { members_.clear(); }
  void add_to(Digest& digest) const;

 private:
  struct Member {
    std::uint64_t incarnation;
    Contribution contribution;
    std::vector<std::byte> encoded;  // the agreed bytes, then the answer; empty: no answer yet
  };

  std::vector<Contribution> contributions() const;

  const std::uint64_t round_;
  const std::int64_t count_;
  const Codec& codec_;
  Bytes agreed_, mean_;
  std::map<int, Member> members_;
};

}  // namespace paceline

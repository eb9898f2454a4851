#pragma once
// A round of a codec that takes two, at the server, for one slice: from the proposals of all to what they come to.

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

  // The proposals are not kept; their codec must outlive the round.
  Agreement(std::uint64_t round, const std::vector<Proposal>& proposals, std::int64_t count);

  std::uint64_t round() const { return round_; }
  const Bytes& agreed() const { return agreed_; }
  // The mean of the answers; null until the round is over.
  const Bytes& mean() const { return mean_; }

  // Throws Corrupt on an answer of another size, or from a worker that has not proposed. A second one changes nothing.
  void answer(int worker, std::uint64_t incarnation, const std::byte* data, std::size_t bytes);
  // The worker will not answer; changes nothing where it has.
  void abstain(int worker, std::uint64_t incarnation);
  // Calls visit(worker, incarnation) for those who have not answered.
  template <class Visitor>
  void for_each_missing(Visitor visit) const {
    for (const auto& [worker, member] : members_)
      if (member.encoded.empty()) visit(worker, member.incarnation);
  }
  // The gradients of those who have answered, in rank order, valid until close().
  std::vector<Contribution> contributions() const;
  // Makes the mean.
  void close();
  void add_to(Digest& digest) const;

 private:
  struct Member {
    std::uint64_t incarnation;
    Contribution contribution;
    std::vector<std::byte> encoded;  // what was agreed on and the answer
  };

  const std::uint64_t round_;
  const std::int64_t count_;
  const Codec& codec_;
  Bytes agreed_, mean_;
  std::map<int, Member> members_;
};

}  // namespace paceline

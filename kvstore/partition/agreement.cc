#include "agreement.h"

#include <paceline/error.h>

#include "two_rounds.h"

namespace paceline {
namespace {

std::vector<TwoRounds::Part> parts_of(const std::vector<Contribution>& contributions, std::size_t skipped) {
  std::int64_t examples = 0;
  for (const Contribution& contribution : contributions) examples += contribution.examples;
  std::vector<TwoRounds::Part> parts;
  for (const Contribution& contribution : contributions) {
    const float share = examples == 0 ? 1.0f / static_cast<float>(contributions.size())
                                      : static_cast<float>(contribution.examples) / static_cast<float>(examples);
    const auto* data = static_cast<const std::byte*>(contribution.gradient);
    parts.push_back({share, EncodedBytes(data, contribution.bytes).subspan(skipped)});
  }
  return parts;
}

}  // namespace

Agreement::Agreement(std::uint64_t round, const std::vector<Proposal>& proposals, std::int64_t count)
    : round_(round), count_(count), codec_(*proposals.front().contribution.codec) {
  std::vector<Contribution> contributions;
  for (const Proposal& proposal : proposals) {
    contributions.push_back(proposal.contribution);
    members_.emplace(proposal.contribution.worker, Member{proposal.incarnation, proposal.contribution, {}});
  }
  agreed_ = std::make_shared<std::vector<std::byte>>(codec_.two_rounds()->agree(parts_of(contributions, 0)));
}

void Agreement::answer(int worker, std::uint64_t incarnation, const std::byte* data, std::size_t bytes) {
  const auto member = members_.find(worker);
  if (member == members_.end() || member->second.incarnation != incarnation)
    throw Corrupt(str("worker ", worker, " has proposed nothing in round ", round_));
  if (bytes != codec_.two_rounds()->answer_bytes(*agreed_, count_))
    throw Corrupt(
        str("an answer of ", bytes, " bytes, expected ", codec_.two_rounds()->answer_bytes(*agreed_, count_)));
  std::vector<std::byte>& encoded = member->second.encoded;
  if (!encoded.empty()) return;
  encoded.reserve(agreed_->size() + bytes);
  encoded.assign(agreed_->begin(), agreed_->end());
  encoded.insert(encoded.end(), data, data + bytes);
}

void Agreement::abstain(int worker, std::uint64_t incarnation) {
  const auto member = members_.find(worker);
  if (member != members_.end() && member->second.incarnation == incarnation && member->second.encoded.empty())
    members_.erase(member);
}

std::vector<Contribution> Agreement::contributions() const {
  std::vector<Contribution> all;
  for (const auto& [worker, member] : members_) {
    if (member.encoded.empty()) continue;
    all.push_back(member.contribution);
    all.back().gradient = member.encoded.data();
    all.back().bytes = member.encoded.size();
    all.back().codec = agreed_->empty() ? nullptr : &codec_;
  }
  return all;
}

void Agreement::add_to(Digest& digest) const {
  digest.add(round_);
  digest.add(agreed_->data(), agreed_->size());
  if (mean_) digest.add(mean_->data(), mean_->size());
  for (const auto& [worker, member] : members_) {
    digest.add(worker);
    digest.add(member.incarnation);
    digest.add(member.encoded.data(), member.encoded.size());
  }
}

std::vector<Contribution> Agreement::conclude() {
  std::vector<Contribution> all = contributions();
  const std::vector<TwoRounds::Part> answers = parts_of(all, agreed_->size());
  mean_ = std::make_shared<std::vector<std::byte>>(answers.empty() ? std::vector<std::byte>()
                                                                   : codec_.two_rounds()->mean(*agreed_, answers));
  return all;
}

}  // namespace paceline

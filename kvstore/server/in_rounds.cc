// Rounds of slices. Round r holds the pushes of the workers' step r. It closes when the mode says so, and does not wait
// for a worker inside a barrier. The clocks show which rounds have passed without contributions. The next push, or a
// SkipEntry, tells the partition about these rounds.
#include <paceline/error.h>

#include <algorithm>
#include <optional>

#include "payload.h"
#include "replies.h"
#include "rounds.h"

namespace paceline {
namespace {

bool proposes(const Contribution& contribution) { return contribution.codec && contribution.codec->two_rounds(); }

class InRounds final : public RoundSequencer {
 public:
  using RoundSequencer::RoundSequencer;
  void agree(const Request& request, const wire::AgreeRequest& message, ServedPartition& partition) override;

 private:
  bool agrees() const override { return true; }
  PushEntry::InRound place(const Pushed& pushed, std::size_t number) override;
  void advance(ServedPartition& partition, std::uint32_t slice) override;
  bool waits_for(const Waiting& waiting, std::uint32_t slice) const override;
  void answer_asking(ServedPartition& partition, std::uint32_t slice) override;

  // Returns the first round of the slice that is not over. `round`: a round near it (round_number.h). A round without
  // contributions is over when the clock of every running worker is above the round's number.
  std::uint64_t next_round(const DensePartition& state, std::uint32_t slice, std::uint64_t round) const;
  enum class Begun { kDone, kNeedless, kFailed };
  // Turns the complete proposals of the oldest round into an agreement (two_rounds.h). Returns kNeedless if the
  // gradients need no agreement. If the agreement fails, the round ends without an update.
  static Begun begin_agreement(ServedPartition& partition, std::uint32_t slice);
  bool answers_are_missing(const Agreement& agreement) const;
};

std::uint64_t InRounds::next_round(const DensePartition& state, std::uint32_t slice, std::uint64_t round) const {
  const DensePartition::SliceRounds* const rounds = state.find_rounds(slice);
  if (rounds && !rounds->empty()) return rounds->next_round;
  const std::optional<std::uint64_t> slowest = shard_.clocks.slowest();
  const std::uint64_t next = state.next_round(slice, round, slowest.value_or(round));
  return std::max(next, slowest.value_or(next));
}

PushEntry::InRound InRounds::place(const Pushed& pushed, std::size_t number) {
  const auto& [slice, contribution] = pushed.entry.gradients[number];
  const DensePartition& state = pushed.partition.state;
  const auto place = static_cast<std::uint32_t>(slice);
  const std::uint64_t round = pushed.entry.step;
  const std::uint64_t next = next_round(state, place, round);
  const DensePartition::SliceRounds* const rounds = state.find_rounds(place);
  if (round < next || (rounds && rounds->agrees_on(round))) return {Verdict::kLate, round, next};
  const auto* const others = rounds ? rounds->find(round) : nullptr;
  if (others && proposes(others->begin()->second.contribution) != proposes(contribution))
    throw InvalidArgument(
        str("worker ", pushed.entry.from.worker, " encodes key '", state.key_of(place), "' otherwise than the others"));
  return {Verdict::kKept, round, next};
}

void InRounds::advance(ServedPartition& partition, std::uint32_t slice) {
  DensePartition& state = partition.state;
  for (const DensePartition::SliceRounds* rounds; (rounds = state.find_rounds(slice)) && !rounds->empty();) {
    const std::uint64_t round = rounds->oldest();
    if (rounds->next_round < round) {
      SkipEntry skip{{}, slice, std::min(shard_.clocks.slowest().value_or(round), round)};
      if (skip.next_round > rounds->next_round) state.apply(skip);
      if (rounds->next_round < round) return;
    }
    if (!rounds->agrees_on(round)) {
      const auto misses = [round](int, std::uint64_t clock) { return clock <= round; };
      if (!mode_->round_complete(state_of(*rounds, misses))) return;
      const Begun begun = begin_agreement(partition, slice);
      if (begun == Begun::kNeedless) close(partition, slice);
      if (begun == Begun::kFailed) answer_asking(partition, slice);
      if (begun != Begun::kDone) continue;
    }
    if (answers_are_missing(*rounds->agreement)) return;
    close(partition, slice);
    answer_asking(partition, slice);  // now, because the next agreement replaces this one
  }
}

bool InRounds::waits_for(const Waiting& waiting, std::uint32_t slice) const {
  // While no worker is running (worker_clocks.h), no pull waits, because the missing rounds may never complete.
  if (!shard_.clocks.slowest()) return false;
  const std::uint64_t need = request_of(waiting).need();
  return next_round(partition_of(waiting).state, slice, need) < need;
}

InRounds::Begun InRounds::begin_agreement(ServedPartition& partition, std::uint32_t slice) {
  DensePartition& state = partition.state;
  const DensePartition::SliceRounds& rounds = *state.find_rounds(slice);
  if (!proposes(rounds.contributions().begin()->second.contribution)) return Begun::kNeedless;
  AgreeEntry entry{{}, slice, rounds.oldest()};
  try {
    state.apply(entry);
    return Begun::kDone;
  } catch (const std::exception& error) {
    std::vector<WorkerIncarnation> contributors;
    for (const auto& [worker, kept] : rounds.contributions()) contributors.push_back({worker, kept.incarnation});
    note_failure(partition, slice, entry.round, contributors, error);
    for (const WorkerIncarnation& contributor : contributors) {
      AbstainEntry abstain{{}, contributor, slice, entry.round};
      state.apply(abstain);
    }
    SkipEntry skip{{}, slice, entry.round + 1};
    state.apply(skip);
    return Begun::kFailed;
  }
}

bool InRounds::answers_are_missing(const Agreement& agreement) const {
  bool missing = false;
  agreement.for_each_missing(
      [&](int worker, std::uint64_t incarnation) { missing |= shard_.clocks.is_live(worker, incarnation); });
  return missing;
}

void InRounds::agree(const Request& request, const wire::AgreeRequest& message, ServedPartition& partition) {
  DensePartition& state = partition.state;
  const std::uint64_t round = message.round();
  const std::uint32_t slice = message.slice();
  const WorkerIncarnation from{request.from().rank, request.incarnation()};
  if (message.abstains()) {
    AbstainEntry entry{{}, from, slice, round};
    state.apply(entry);
    request.reply({});
    advance(partition, slice);
    return answer_waiting(partition, slice);
  }
  const bool answers = message.bytes() > 0;
  if (answers && round >= next_round(state, slice, round)) {
    const DensePartition::SliceRounds* const rounds = state.find_rounds(slice);
    if (!rounds || !rounds->agrees_on(round))
      throw Corrupt(
          str("an answer to what round ", round, " of key '", state.key_of(slice), "' has not agreed on yet"));
    PayloadReader payload(request.message().payload);
    const std::byte* const data = payload.next(message.bytes());
    AnswerEntry entry{{}, from, slice, round, {data, message.bytes()}};
    state.apply(entry);
  }
  partition.watches[slice].asking.push_back({request, round, answers});
  advance(partition, slice);
  answer_waiting(partition, slice);
}

void InRounds::answer_asking(ServedPartition& partition, std::uint32_t slice) {
  const auto watch = partition.watches.find(slice);
  if (watch == partition.watches.end()) return;
  const DensePartition::SliceRounds* const rounds = partition.state.find_rounds(slice);
  std::erase_if(watch->second.asking, [&](const Watch::Asking& asking) {
    const Agreement* const agreement = rounds && rounds->agrees_on(asking.round) ? rounds->agreement.get() : nullptr;
    wire::AgreeReply body;
    Agreement::Bytes bytes;
    if (asking.round < next_round(partition.state, slice, asking.round)) {
      // `answered` keeps only each worker's last round. This is enough, because a worker asks about its last round
      // only.
      const auto answered =
          rounds ? rounds->answered.find(asking.request.from().rank) : decltype(rounds->answered.end()){};
      const bool applied = rounds && answered != rounds->answered.end() && answered->second == asking.round + 1;
      body.set_over(!asking.answers || !applied);
      body.set_gone(!body.over() && !agreement);
      if (agreement && !body.over()) bytes = agreement->mean();
    } else if (agreement && !asking.answers) {
      bytes = agreement->agreed();
    } else {
      return false;
    }
    PayloadWriter payload;
    if (bytes) {
      body.set_bytes(bytes->size());
      payload.add(bytes->data(), bytes->size(), bytes);
    }
    reply(asking.request, body, payload.finish());
    return true;
  });
}

}  // namespace

std::unique_ptr<Sequencer> make_in_rounds(std::shared_ptr<const Mode> mode, const Sequencer::Context& shard) {
  return std::make_unique<InRounds>(std::move(mode), shard);
}

}  // namespace paceline

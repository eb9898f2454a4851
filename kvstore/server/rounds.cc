// A push in a mode with rounds. RoundSequencer is common to all such modes. InRounds, the Sequencer of
// Applies::kInRounds, says what a round is: round r holds the pushes of the workers' step r. It closes when the mode
// says so, and does not wait for a worker inside a barrier. The clocks show which rounds have passed without
// contributions. The next push, or a SkipEntry, tells the partition about these rounds.
#include "rounds.h"

#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <optional>
#include <set>

#include "payload.h"
#include "replies.h"
#include "scratch.h"

namespace paceline {

// ---- RoundSequencer ----

namespace {

// Returns a slice that the push names twice, or none.
std::optional<int> named_twice(std::span<const SliceContribution> gradients) {
  const auto ascends = [](const SliceContribution& a, const SliceContribution& b) { return a.slice >= b.slice; };
  if (std::adjacent_find(gradients.begin(), gradients.end(), ascends) == gradients.end()) return {};
  std::set<int> seen;
  for (const SliceContribution& gradient : gradients)
    if (!seen.insert(gradient.slice).second) return gradient.slice;
  return {};
}

}  // namespace

void RoundSequencer::push(Pushed& pushed) {
  try {
    place_all(pushed);
  } catch (const std::exception&) {
    // The push has no effect, but its number counts as taken, because the worker does not use the number again.
    pushed.entry.gradients = {};
    pushed.partition.state.apply(pushed.entry);
    throw;
  }
  pushed.entry.rounds = places_;
  pushed.partition.state.apply(pushed.entry);
  // The push counts, even if its call is refused because an earlier round failed.
  if (!pushed.partition.failures.empty())
    for (const SliceContribution& gradient : pushed.entry.gradients)
      fails(pushed.call, pushed.partition, static_cast<std::uint32_t>(gradient.slice), false);

  std::vector<std::uint32_t> kept;
  kept.reserve(places_.size());
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].verdict == Verdict::kKept) {
      kept.push_back(static_cast<std::uint32_t>(pushed.entry.gradients[i].slice));
    } else {
      ++shard_.late;
      ++pushed.call->refused;
    }
  }
  end_scratch(places_);
  // Advance all rounds before answering. Otherwise a pull of many slices would be checked while it must still wait.
  for (const std::uint32_t slice : kept) advance(pushed.partition, slice);
  for (const std::uint32_t slice : kept) answer_waiting(pushed.partition, slice);
}

void RoundSequencer::place_all(const Pushed& pushed) {
  const DensePartition& state = pushed.partition.state;
  const PushEntry& entry = pushed.entry;
  std::optional<int> twice = named_twice(entry.gradients);
  for (const SliceContribution& gradient : entry.gradients) {
    const auto slice = static_cast<std::size_t>(gradient.slice);
    if (!twice && entry.step < state.contributed(entry.from, slice, entry.step)) twice = gradient.slice;
  }
  if (twice)
    throw InvalidArgument(str("worker ", entry.from.worker, " pushed key '",
                              state.key_of(static_cast<std::size_t>(*twice)), "' twice in step ", entry.step,
                              "; call step_end() between steps"));
  begin_scratch(places_, entry.gradients.size());
  for (std::size_t i = 0; i < entry.gradients.size(); ++i) places_.push_back(place(pushed, i));
}

void RoundSequencer::close(ServedPartition& partition, std::uint32_t slice) {
  const DensePartition::SliceRounds& rounds = *partition.state.find_rounds(slice);
  CloseEntry entry{{}, slice, rounds.oldest(), mode_->aggregate()};
  contributors_.clear();
  for (const auto& [worker, kept] : rounds.contributions()) contributors_.push_back({worker, kept.incarnation});
  try {
    partition.state.apply(entry);
  } catch (const std::exception& error) {
    return note_failure(partition, slice, entry.round, contributors_, error);
  }
  const auto failed = partition.failures.find(slice);
  if (failed == partition.failures.end()) return;
  failed->second.recover();
  if (failed->second.over()) partition.failures.erase(failed);
}

void RoundSequencer::note_failure(ServedPartition& partition, std::uint32_t slice, std::uint64_t round,
                                  const std::vector<WorkerIncarnation>& contributors, const std::exception& error) {
  LOG(ERROR) << "round " << round << " of key '" << partition.state.key_of(slice)
             << "' could not be applied: " << error.what();
  FailedRounds& failed = partition.failures[slice];
  failed.fail(std::current_exception());
  for (const WorkerIncarnation& contributor : contributors) failed.add(contributor);
}

void RoundSequencer::pull(Waiting waiting) {
  const wire::Part& request = request_of(waiting);
  for (const std::uint32_t slice : request.pull()) {
    if (!waits_for(waiting, slice)) continue;
    shard_.gate.hold(waiting, request.need());
    partition_of(waiting).watches[slice].pulls.push_back(std::move(waiting));
    return;
  }
  if (!fails(waiting)) return answer(waiting);
  shard_.gate.finish(waiting, request.need());
}

bool RoundSequencer::fails(const std::shared_ptr<PushPullCall>& call, ServedPartition& partition, std::uint32_t slice,
                           bool pulls) {
  const auto failed = partition.failures.find(slice);
  if (failed == partition.failures.end()) return false;
  const std::exception_ptr error = failed->second.hear(call->from(), pulls);
  if (failed->second.over()) partition.failures.erase(failed);
  if (error) call->fail(error);
  return error != nullptr;
}

bool RoundSequencer::fails(const Waiting& waiting) {
  ServedPartition& partition = partition_of(waiting);
  if (partition.failures.empty()) return false;
  bool any = false;
  for (const std::uint32_t slice : request_of(waiting).pull()) any |= fails(waiting.call, partition, slice, true);
  return any;
}

void RoundSequencer::answer_waiting(ServedPartition& partition, std::uint32_t slice) {
  if (partition.watches.empty()) return;
  answer_asking(partition, slice);
  const auto found = partition.watches.find(slice);
  if (found == partition.watches.end()) return;
  Watch& watch = found->second;
  std::vector<Waiting> waiting;
  waiting.swap(watch.pulls);
  for (Waiting& entry : waiting) pull(std::move(entry));  // pull() may add watches
  if (watch.empty()) partition.watches.erase(slice);
  constexpr std::size_t kFew = 128;
  if (partition.watches.empty() && partition.watches.bucket_count() > kFew) partition.watches.rehash(0);
}

void RoundSequencer::reconsider(const Partitions& partitions) {
  for (ServedPartition* const partition : partitions) {
    std::vector<std::uint32_t> slices = partition->state.open_slices();
    for (auto& [slice, watch] : partition->watches) {
      slices.push_back(slice);
      std::erase_if(watch.pulls, [this](const Waiting& waiting) { return is_gone(waiting); });
      std::erase_if(watch.asking, [this](const Watch::Asking& asking) {
        return !shard_.clocks.is_live(asking.request.from().rank, asking.request.incarnation());
      });
    }
    std::sort(slices.begin(), slices.end());
    slices.erase(std::unique(slices.begin(), slices.end()), slices.end());
    for (const std::uint32_t slice : slices) advance(*partition, slice);
    for (const std::uint32_t slice : slices) answer_waiting(*partition, slice);
  }
}

// ---- InRounds ----

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

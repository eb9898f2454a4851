#include "rounds.h"

#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <set>

#include "scratch.h"

namespace paceline {
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

}  // namespace paceline

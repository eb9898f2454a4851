#include "dense_partition.h"

#include <paceline/error.h>

#include <algorithm>
#include <optional>

#include "digest.h"
#include "own_objects.h"
#include "round_number.h"
#include "scratch.h"

namespace paceline {
namespace {

constexpr std::size_t padded(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

}  // namespace

DensePartition::DensePartition(std::uint32_t id, std::span<const std::pair<SliceInfo, const void*>> slices,
                               Extensions own)
    : id_(id), own_(shared(std::move(own))) {
  slices_.reserve(slices.size());
  for (const auto& [info, initial] : slices) {
    const std::size_t bytes = static_cast<std::size_t>(info.end - info.begin) * size_of(info.dtype);
    require(bytes <= Slice::kMostBytes, "a slice of key '", info.name, "' has ", bytes, " bytes, expected at most ",
            Slice::kMostBytes);
    const bool average = info.kind == SliceInfo::Kind::kAverage;
    slices_.push_back({static_cast<std::uint32_t>(bytes), average, info.dtype == DType::kFloat32 && !average});
  }
  updater_->add_slices(slices);
}

template <class Entry>
void DensePartition::log(Entry& entry) {
  entry.place.partition = id_;
  entry.place.lsn = ++lsn_;
  if (observer_) observer_->on(entry);
}

DensePartition::Worker& DensePartition::worker_of(const WorkerIncarnation& from) {
  Worker& worker = workers_[from.worker];
  if (worker.taken.renew(from.incarnation) || worker.answered.empty()) {
    worker.answered.assign(slices_.size(), {});
    worker.codecs.clear();
    worker.contributed.clear();
  }
  return worker;
}

bool DensePartition::is_taken(const WorkerIncarnation& from, std::uint64_t sequence) const {
  const auto known = workers_.find(from.worker);
  return known == workers_.end() ? TakenPushes().holds(from.worker, from.incarnation, sequence)
                                 : known->second.taken.holds(from.worker, from.incarnation, sequence);
}

std::uint64_t DensePartition::contributed(const WorkerIncarnation& from, std::size_t slice,
                                          std::uint64_t reference) const {
  const auto known = workers_.find(from.worker);
  if (known == workers_.end() || known->second.contributed.empty()) return 0;
  if (known->second.taken.incarnation < from.incarnation) return 0;
  return round_near(reference, known->second.contributed[slice], 0);
}

const DensePartition::SliceRounds* DensePartition::find_rounds(std::size_t slice) const {
  if (open_.empty()) return nullptr;
  const auto found = open_.find(static_cast<std::uint32_t>(slice));
  return found == open_.end() ? nullptr : &found->second;
}

std::uint64_t DensePartition::next_round(std::size_t slice, std::uint64_t reference, std::uint64_t far) const {
  if (const SliceRounds* const rounds = find_rounds(slice)) return rounds->next_round;
  return next_round_.empty() ? 0 : round_near(reference, next_round_[slice], far);
}

std::vector<std::uint32_t> DensePartition::open_slices() const {
  std::vector<std::uint32_t> slices;
  slices.reserve(open_.size());
  for (const auto& [slice, rounds] : open_) slices.push_back(slice);
  return slices;
}

DensePartition::SliceRounds& DensePartition::open(std::size_t slice, std::uint64_t next_round) {
  SliceRounds& rounds = open_[static_cast<std::uint32_t>(slice)];
  rounds.skip_to(next_round);
  return rounds;
}

DensePartition::SliceRounds& DensePartition::rounds_of(std::size_t slice, std::uint64_t round) {
  const auto found = open_.find(static_cast<std::uint32_t>(slice));
  require(found != open_.end() && !found->second.empty() && found->second.oldest() == round, "round ", round,
          " of slice ", slice, " in partition ", id_, " is not its oldest open round");
  return found->second;
}

void DensePartition::set_next_round(std::size_t slice, std::uint64_t round) {
  if (next_round_.empty()) next_round_.resize(slices_.size(), long_before(round));
  next_round_[slice] = static_cast<std::uint32_t>(round);
}

void DensePartition::rest(std::size_t slice) {
  const auto found = open_.find(static_cast<std::uint32_t>(slice));
  if (found == open_.end() || !found->second.empty() || found->second.agreement) return;
  set_next_round(slice, found->second.next_round);
  open_.erase(found);
  constexpr std::size_t kFew = 128;
  if (open_.empty() && open_.bucket_count() > kFew) open_.rehash(0);
}

void DensePartition::apply(PushEntry& entry) {
  for (const SliceContribution& pushed : entry.gradients)
    require(static_cast<std::size_t>(pushed.slice) < slices_.size(), "partition ", id_, " has no slice ", pushed.slice);
  Worker& worker = worker_of(entry.from);
  require(worker.taken.incarnation == entry.from.incarnation, "worker ", entry.from.worker,
          " has returned since this push was sent");
  worker.taken.window.take(entry.sequence);
  std::exception_ptr failure;
  if (!entry.rounds.empty()) {
    for (std::size_t i = 0; i < entry.gradients.size(); ++i) keep(entry, i, worker);
  } else {
    try {
      entry.refused = static_cast<std::uint64_t>(updater_->apply_all(entry.gradients));
    } catch (...) {
      failure = std::current_exception();
    }
  }
  log(entry);
  if (failure) std::rethrow_exception(failure);
}

void DensePartition::keep(const PushEntry& entry, std::size_t number, Worker& worker) {
  const auto& [slice, contribution] = entry.gradients[number];
  const PushEntry::InRound& in = entry.rounds[number];
  const auto place = static_cast<std::size_t>(slice);
  worker.contributed.resize(slices_.size(), long_before(entry.step));
  worker.contributed[place] = static_cast<std::uint32_t>(entry.step + 1);
  if (in.verdict == Verdict::kLate) return;
  SliceRounds& rounds = open(place, in.next_round);
  // Replaces the contribution of a lost incarnation of the worker.
  rounds.rounds[in.round].insert_or_assign(entry.from.worker, Kept{entry.from.incarnation, contribution, entry.owner});
}

void DensePartition::apply(SkipEntry& entry) {
  require(entry.slice < slices_.size(), "partition ", id_, " has no slice ", entry.slice);
  const auto found = open_.find(entry.slice);
  if (found != open_.end())
    found->second.skip_to(entry.next_round);
  else
    set_next_round(entry.slice, entry.next_round);
  log(entry);
}

void DensePartition::apply(CloseEntry& entry) {
  SliceRounds& rounds = rounds_of(entry.slice, entry.round);
  const bool agreed = rounds.agrees_on(entry.round);
  std::exception_ptr failure;
  try {
    std::vector<Contribution> contributions;
    if (agreed)
      contributions = rounds.agreement->conclude();
    else
      for (const auto& [worker, kept] : rounds.contributions()) {
        contributions.push_back(kept.contribution);
        // As a contribution of nobody, it counts only while no other worker has running statistics.
        if (slices_[entry.slice].average && kept.incarnation <= workers_.at(worker).lost)
          contributions.back().worker = -1;
      }
    if (!contributions.empty())
      entry.scalars =
          updater_->apply_round(static_cast<int>(entry.slice), contributions, {}, entry.scalars, entry.aggregate)
              .scalars;
    if (agreed)
      for (const Contribution& contribution : contributions) rounds.answered[contribution.worker] = entry.round + 1;
  } catch (...) {
    failure = std::current_exception();
  }
  if (agreed) rounds.agreement->close();
  rounds.close();
  rest(entry.slice);
  log(entry);
  if (failure) std::rethrow_exception(failure);
}

void DensePartition::apply(AgreeEntry& entry) {
  SliceRounds& rounds = rounds_of(entry.slice, entry.round);
  std::vector<Agreement::Proposal> proposals;
  for (const auto& [worker, kept] : rounds.contributions()) proposals.push_back({kept.contribution, kept.incarnation});
  rounds.agreement = std::make_unique<Agreement>(entry.round, proposals,
                                                 static_cast<std::int64_t>(slices_[entry.slice].bytes / sizeof(float)));
  log(entry);
}

void DensePartition::apply(AnswerEntry& entry) {
  SliceRounds& rounds = rounds_of(entry.slice, entry.round);
  require(rounds.agrees_on(entry.round), "round ", entry.round, " of key '", key_of(entry.slice),
          "' has not agreed on anything yet");
  rounds.agreement->answer(entry.from.worker, entry.from.incarnation, entry.bytes.data(), entry.bytes.size());
  log(entry);
}

void DensePartition::apply(AbstainEntry& entry) {
  const auto open = open_.find(entry.slice);
  if (open == open_.end()) return;
  SliceRounds& rounds = open->second;
  if (rounds.agrees_on(entry.round)) {
    rounds.agreement->abstain(entry.from.worker, entry.from.incarnation);
  } else if (const auto round = rounds.rounds.find(entry.round); round != rounds.rounds.end()) {
    const auto kept = round->second.find(entry.from.worker);
    if (kept == round->second.end() || kept->second.incarnation != entry.from.incarnation) return;
    round->second.erase(kept);
    if (round->second.empty()) rounds.rounds.erase(round);
    rest(entry.slice);
  } else {
    return;
  }
  log(entry);
}

void DensePartition::apply(ReadEntry& entry, WeightSink* sink) {
  for (const ReadEntry::Slice& read : entry.slices)
    require(read.slice < slices_.size(), "partition ", id_, " has no slice ", read.slice);
  Worker& worker = worker_of(entry.from);
  const bool lost = entry.from.incarnation < worker.taken.incarnation;
  if (sink) {
    std::size_t copied = 0;
    for (const ReadEntry::Slice& read : entry.slices)
      if (slices_[read.slice].bytes < kSharedBytes) copied += padded(slices_[read.slice].bytes);
    sink->reserve(copied);
  }
  begin_scratch(reads_, entry.slices.size());
  begin_scratch(read_places_, entry.slices.size());
  for (std::size_t i = 0; i < entry.slices.size(); ++i) {
    ReadEntry::Slice& read = entry.slices[i];
    const int slice = static_cast<int>(read.slice);
    const std::size_t bytes = slices_[read.slice].bytes;
    Answered& answered = worker.answered[read.slice];
    const bool overtaken = lost || answered.after(entry.request);
    const int reader = overtaken ? -1 : entry.from.worker;
    Snapshot snapshot;
    // A worker may use either answer to a repeated request. If the policy needs pulled weights, both answers must have
    // the same weights.
    if (answered.is_of(entry.request) && !lost) snapshot = updater_->pulled(slice, reader);
    if (snapshot.data && !answered.has_version(snapshot.version)) snapshot = {};
    if (!snapshot.data && !read.codec && bytes < kSharedBytes && sink) {
      reads_.push_back({slice, reader, sink->room(bytes)});
      read_places_.push_back(i);
      continue;
    }
    if (!snapshot.data) snapshot = updater_->pull(slice, reader, read.codec);
    read.version = snapshot.version;
    if (!overtaken) {
      answered.set(entry.request, snapshot.version);
      worker.set_codec(read.slice, snapshot.codec);
    }
    if (sink) sink->add(snapshot);
  }
  updater_->read_all(reads_);
  for (std::size_t i = 0; i < reads_.size(); ++i) {
    ReadEntry::Slice& read = entry.slices[read_places_[i]];
    read.version = reads_[i].version;
    if (reads_[i].worker < 0) continue;
    worker.answered[read.slice].set(entry.request, reads_[i].version);
    worker.set_codec(read.slice, nullptr);
  }
  end_scratch(reads_);
  end_scratch(read_places_);
  log(entry);
}

void DensePartition::apply(RulesEntry& entry) {
  updater_->set_rules(entry.optimizer, entry.staleness, entry.staleness_options, own_ ? *own_ : Extensions());
  remember_pulled();
  log(entry);
}

void DensePartition::remember_pulled() {
  for (auto& [rank, worker] : workers_)
    for (std::size_t i = 0; i < worker.answered.size(); ++i)
      if (worker.answered[i].request > 0 && worker.answered[i].has_version(version(i)))
        updater_->pull(static_cast<int>(i), rank, worker.codecs.empty() ? nullptr : worker.codecs[i]);
}

void DensePartition::apply(RateEntry& entry) {
  updater_->set_learning_rate(entry.learning_rate);
  log(entry);
}

void DensePartition::apply(WorkersEntry& entry) {
  updater_->set_workers(entry.live);
  log(entry);
}

void DensePartition::apply(LostEntry& entry) {
  for (std::size_t i = 0; i < slices_.size(); ++i) updater_->drop_worker(static_cast<int>(i), entry.worker);
  const auto known = workers_.find(entry.worker);
  if (known != workers_.end()) known->second.lost = known->second.taken.incarnation;
  log(entry);
}

void DensePartition::apply(LoadEntry& entry) {
  require(entry.slice < slices_.size(), "partition ", id_, " has no slice ", entry.slice);
  updater_->load_slice(static_cast<int>(entry.slice), *entry.state, entry.counters);
  log(entry);
}

void DensePartition::Figures::add(const Figures& other) {
  if (delays.size() < other.delays.size()) delays.resize(other.delays.size());
  for (std::size_t i = 0; i < other.delays.size(); ++i) delays[i].merge(other.delays[i]);
  refused += other.refused;
  pulled_bytes += other.pulled_bytes;
}

DensePartition::Figures DensePartition::figures() const {
  return {updater_->delays(), updater_->refused(), updater_->pulled_bytes()};
}

std::uint64_t DensePartition::digest() const {
  Digest digest;
  std::vector<int> workers;
  for (const auto& [rank, worker] : workers_) {
    workers.push_back(rank);
    digest.add(rank);
    digest.add(worker.taken.incarnation);
    digest.add(worker.lost);
    worker.taken.window.add_to(digest);
    for (const Answered& answered : worker.answered) {
      digest.add(std::uint64_t{answered.request});
      digest.add(std::uint64_t{answered.version});
    }
    for (const std::uint32_t round : worker.contributed) digest.add(round);
  }
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    const int slice = static_cast<int>(i);
    SliceCounters counters;
    for (const auto& [name, array] : updater_->save_slice(slice, &counters)) {
      array.wait();
      digest.add(name.data(), name.size());
      digest.add(array.data(), array.bytes());
    }
    digest.add(counters.version);
    digest.add(counters.examples);
    digest.add(counters.optimizer_updates);
    digest.add(counters.policy_updates);
    for (const int worker : workers) {
      const Snapshot pulled = updater_->pulled(slice, worker);
      digest.add(pulled.version);
      if (pulled.data) digest.add(pulled.data.get(), pulled.bytes);
    }
    const SliceRounds* const rounds = find_rounds(i);
    digest.add(rounds ? rounds->next_round : next_round_.empty() ? 0 : next_round_[i]);
    if (!rounds) continue;
    for (const auto& [round, contributions] : rounds->rounds) {
      digest.add(round);
      for (const auto& [worker, kept] : contributions) {
        digest.add(worker);
        digest.add(kept.incarnation);
        const Contribution& gradient = kept.contribution;
        digest.add(gradient.examples);
        digest.add(gradient.gradient, gradient.codec ? gradient.bytes : slices_[i].bytes);
      }
    }
    for (const auto& [worker, round] : rounds->answered) {
      digest.add(worker);
      digest.add(round);
    }
    if (rounds->agreement) rounds->agreement->add_to(digest);
  }
  return digest.value();
}

}  // namespace paceline

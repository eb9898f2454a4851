#include "shard.h"

#include <paceline/cores.h>
#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace paceline {

namespace {

// Empties the list for `size` elements. The memory of many is not kept.
template <class T>
void begin(std::vector<T>& list, int size) {
  list.clear();
  list.reserve(static_cast<std::size_t>(size));
}
template <class T>
void end(std::vector<T>& list) {
  constexpr std::size_t kFew = 64;
  if (list.capacity() > kFew) std::vector<T>().swap(list);
}

}  // namespace

std::shared_ptr<const Codec> PushPullCall::codec(std::uint32_t number) const {
  if (number > codecs.size()) throw Corrupt(str("codec ", number, " of ", codecs.size()));
  return number == 0 ? nullptr : codecs[number - 1];
}

Message PushPullCall::answer() {
  wire::PushPullReply reply;
  reply.set_refused(refused);
  reply.set_waited_microseconds(static_cast<std::uint64_t>(waited_microseconds.load()));
  Message message;
  for (Part& part : parts) {
    reply.mutable_versions()->Add(part.versions.begin(), part.versions.end());
    reply.mutable_pull_bytes()->Add(part.encoded_bytes.begin(), part.encoded_bytes.end());
    for (Frame& frame : part.payload.finish()) message.payload.push_back(std::move(frame));
  }
  message.body = reply.SerializeAsString();
  return message;
}

DenseShard::DenseShard(Updater& updater, Waits& waits, int number) : updater_(updater), waits_(waits) {
  thread_ = std::thread([this, number] {
    name_thread(str("shard ", number).c_str());
    become_single_threaded();
    loop();
  });
}

DenseShard::~DenseShard() {
  {
    Lock lock(mutex_);
    stopping_ = true;
  }
  posted_.notify_one();
  thread_.join();
}

void DenseShard::post(Job job) {
  {
    Lock lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  posted_.notify_one();
}

void DenseShard::post_short(Job job) {
  {
    Lock lock(mutex_);
    if (running_ || !jobs_.empty()) {
      jobs_.push_back(std::move(job));  // whoever runs sees it
      return;
    }
    running_ = true;
  }
  run_job(job);
  bool more = false;
  {
    Lock lock(mutex_);
    running_ = false;
    more = !jobs_.empty() || stopping_;
  }
  if (more) posted_.notify_one();
}

void DenseShard::loop() {
  std::deque<Job> jobs;
  for (bool ran = false;; ran = true) {
    {
      Lock lock(mutex_);
      if (ran) running_ = false;
      posted_.wait(mutex_, [this]() PACELINE_REQUIRES(mutex_) { return !running_ && (stopping_ || !jobs_.empty()); });
      if (jobs_.empty()) return;
      running_ = true;
      jobs.swap(jobs_);
    }
    for (; !jobs.empty(); jobs.pop_front()) run_job(jobs.front());
  }
}

void DenseShard::run_job(Job& job) {
  try {
    job(*this);
  } catch (const std::exception& error) {
    LOG(ERROR) << "a request was dropped: " << error.what();
  }
}

void DenseShard::run(const std::shared_ptr<PushPullCall>& call, int part) {
  partitions_.insert(call->parts[static_cast<std::size_t>(part)].partition);
  try {
    push(call, part);
    pull({call, part});
  } catch (const Error&) {
    call->fail(std::current_exception());
    call->finish_part();
  }
}

ServedPartition::Worker& DenseShard::worker_of(ServedPartition& partition, const PushPullCall& call) {
  ServedPartition::Worker& worker = partition.workers[call.worker()];
  if (worker.taken.renew(call.request.incarnation()) || worker.answered.empty()) {
    worker.answered.assign(partition.slices.size(), {});
    worker.codecs.clear();
    worker.contributed.clear();
  }
  return worker;
}

void DenseShard::push(const std::shared_ptr<PushPullCall>& call, int number) {
  const wire::Part& request = call->body.parts(number);
  if (request.push_size() == 0) return;
  const PushPullCall::Part& part = call->parts[static_cast<std::size_t>(number)];
  TakenPushes& taken = worker_of(*part.partition, *call).taken;
  taken.expect(call->worker(), call->request.incarnation(), request.sequence());
  for (std::size_t i = 0; i < part.gradients.size(); ++i) {
    const PushedSlice& gradient = part.gradients[i];
    if (!gradient.codec) continue;
    const std::size_t count = part.partition->slices[request.push(static_cast<int>(i))].bytes / sizeof(float);
    gradient.codec->check({gradient.data, gradient.bytes}, static_cast<std::int64_t>(count));
    require(!gradient.codec->two_rounds() || in_lockstep(), "this mode's rounds do not wait for all workers: a codec ",
            "cannot take two of them");
  }
  if (!taken.window.take(request.sequence())) return;

  begin(contributions_, request.push_size());
  for (int i = 0; i < request.push_size(); ++i) {
    const PushedSlice& gradient = part.gradients[static_cast<std::size_t>(i)];
    contributions_.push_back(
        {part.partition->number(request.push(i)),
         {call->worker(), request.base(i), call->body.examples(), gradient.data, gradient.codec, gradient.bytes}});
  }
  if (!mode_ || !mode_->synchronous()) {
    call->refused += static_cast<std::uint64_t>(updater_.apply_all(contributions_));
    return end(contributions_);
  }
  for (int i = 0; i < request.push_size(); ++i)
    contribute(call, *part.partition, request.push(i), contributions_[static_cast<std::size_t>(i)].contribution);
  end(contributions_);
}

namespace {

bool proposes(const Contribution& contribution) { return contribution.codec && contribution.codec->two_rounds(); }

// Is a contribution of the same incarnation of the worker there?
bool has_kept(const std::map<int, SliceRounds::Kept>& round, const PushPullCall& call) {
  const auto kept = round.find(call.worker());
  return kept != round.end() && kept->second.call->request.incarnation() == call.request.incarnation();
}

}  // namespace

SliceRounds& DenseShard::rounds_of(ServedPartition& partition, std::size_t slice, std::uint64_t round) {
  const int number = partition.number(slice);
  if (SliceRounds* const known = find_rounds(number)) return *known;
  if (partition.next_round.empty()) partition.next_round.resize(partition.slices.size(), long_before(round));
  const std::optional<std::uint64_t> slowest = clocks_.slowest();
  std::uint64_t next = round_near(round, partition.next_round[slice], slowest.value_or(round));
  if (!mode_->drops_late()) next = std::max(next, slowest.value_or(next));
  return open_.try_emplace(number, partition, slice, next).first->second;
}

void DenseShard::put_to_rest(int number) {
  const auto found = open_.find(number);
  if (found == open_.end() || !found->second.rests()) return;
  const SliceRounds& slice = found->second;
  slice.partition.next_round[slice.slice] = static_cast<std::uint32_t>(slice.next_round);
  open_.erase(found);
  constexpr std::size_t kFew = 1024;
  if (open_.empty() && open_.bucket_count() > kFew) open_.rehash(0);
}

void DenseShard::contribute(const std::shared_ptr<PushPullCall>& call, ServedPartition& partition, std::size_t number,
                            const Contribution& contribution) {
  std::uint64_t round = call->body.round();
  std::vector<std::uint32_t>& contributed = partition.workers[call->worker()].contributed;
  contributed.resize(partition.slices.size(), long_before(round));
  if (round < round_near(round, contributed[number], 0))
    throw InvalidArgument(str("worker ", call->worker(), " pushed key '", updater_.info(partition.number(number)).name,
                              "' twice in step ", round, "; call step_end() between steps"));
  contributed[number] = static_cast<std::uint32_t>(round + 1);
  SliceRounds& slice = rounds_of(partition, number, round);
  if (mode_->drops_late()) round = slice.next_round;
  const auto open = slice.rounds.find(round);
  bool late = round < slice.next_round || (slice.agreement && slice.agreement->round() == round);
  if (mode_->drops_late()) {
    late = (!partition.slices[number].average && contribution.version != updater_.version(slice.number())) ||
           (open != slice.rounds.end() && has_kept(open->second, *call));
    if (!late && open == slice.rounds.end())
      clocks_.for_each_contributing(
          [&slice](int worker, std::uint64_t clock) { slice.clocks_at_opening[worker] = clock; });
  }
  if (late) {
    ++late_;
    ++call->refused;
    return put_to_rest(slice.number());
  }
  if (open != slice.rounds.end() && proposes(open->second.begin()->second.contribution) != proposes(contribution))
    throw InvalidArgument(str("worker ", call->worker(), " encodes key '", updater_.info(slice.number()).name,
                              "' otherwise than the others"));
  // What a lost incarnation of the worker said for the round gives way.
  slice.rounds[round].insert_or_assign(call->worker(), SliceRounds::Kept{call, contribution});
  advance(slice);
  answer_waiting(slice);
}

void DenseShard::close_round(SliceRounds& slice) {
  const auto& [round, kept] = *slice.rounds.begin();
  std::vector<Contribution> contributions;
  for (const auto& [worker, entry] : kept) contributions.push_back(entry.contribution);
  try {
    updater_.apply_round(slice.number(), contributions);
  } catch (const Error& error) {
    LOG(ERROR) << "round " << round << " of key '" << updater_.info(slice.number()).name
               << "' was dropped: " << error.what();
  }
  slice.next_round = round + 1;
  slice.rounds.erase(slice.rounds.begin());
}

void DenseShard::advance_open_round(SliceRounds& slice) {
  if (slice.rounds.empty()) return;
  const auto& kept = slice.rounds.begin()->second;
  int missing = 0;
  clocks_.for_each_contributing([&](int worker, std::uint64_t clock) {
    // Who has ended a step since without a push of this key does not contribute.
    missing += kept.count(worker) == 0 && clock <= std::max(slice.partition.contributed(worker, slice.slice, clock),
                                                            slice.clocks_at_opening[worker]);
  });
  const int contributed = static_cast<int>(kept.size());
  if (mode_->round_complete({contributed, contributed + missing})) close_round(slice);
}

SliceRounds* DenseShard::awaited(const PushPullCall& call, int part) {
  const wire::Part& request = call.body.parts(part);
  ServedPartition& partition = *call.parts[static_cast<std::size_t>(part)].partition;
  const std::uint64_t need = request.need();
  const std::optional<std::uint64_t> slowest = clocks_.slowest();
  // Whoever is past its last step (or lost) waits for the others no more than they for it.
  if (!slowest && !mode_->drops_late()) return nullptr;
  for (const std::uint32_t number : request.pull()) {
    SliceRounds* const slice = open_.empty() ? nullptr : find_rounds(partition.number(number));
    if (mode_->drops_late()) {
      if (slice && !slice->rounds.empty() && has_kept(slice->rounds.begin()->second, call)) return slice;
    } else if (slice) {
      if (slice->next_round < need) return slice;
    } else if (*slowest < need &&
               (partition.next_round.empty() || round_near(need, partition.next_round[number], 0) < need)) {
      return &rounds_of(partition, number, need);
    }
  }
  return nullptr;
}

void DenseShard::advance(SliceRounds& slice) {
  if (mode_->drops_late()) return advance_open_round(slice);
  const std::optional<std::uint64_t> slowest = clocks_.slowest();
  while (!slice.rounds.empty()) {
    const std::uint64_t round = slice.rounds.begin()->first;
    if (slice.next_round < round)  // rounds without a contribution are over when every worker is past them
      slice.next_round = std::max(slice.next_round, std::min(slowest.value_or(round), round));
    if (slice.next_round < round) return;

    const auto& kept = slice.rounds.begin()->second;
    if (!slice.agreement || slice.agreement->round() != round) {
      int missing = 0;
      clocks_.for_each_contributing(
          [&](int worker, std::uint64_t clock) { missing += clock <= round && kept.count(worker) == 0; });
      const int contributed = static_cast<int>(kept.size());
      if (!mode_->round_complete({contributed, contributed + missing})) return;
      if (!begin_agreement(slice)) {
        close_round(slice);
        continue;
      }
    }
    if (!close_agreement(slice)) return;
    answer_asking(slice);  // the next agreement takes the place of this one
  }
  slice.next_round = std::max(slice.next_round, slowest.value_or(slice.next_round));
}

void DenseShard::answer_waiting(SliceRounds& slice) {
  answer_asking(slice);
  std::vector<Waiting> waiting;
  waiting.swap(slice.waiting);
  const int number = slice.number();
  for (Waiting& entry : waiting) pull(std::move(entry));
  put_to_rest(number);
}

void DenseShard::pull(Waiting waiting) {
  PushPullCall& call = *waiting.call;
  PushPullCall::Part& part = call.parts[static_cast<std::size_t>(waiting.part)];
  const wire::Part& request = call.body.parts(waiting.part);
  if (mode_ && request.pull_size() > 0) {
    if (mode_->synchronous()) {
      if (SliceRounds* const slice = awaited(call, waiting.part)) {
        gate_.hold(waiting, request.need());
        slice->waiting.push_back(std::move(waiting));
        return;
      }
    } else if (!gate_.passes(waiting, request.need())) {
      waiting_for_clocks_.push_back(std::move(waiting));
      return;
    }
  }
  if (request.pull_size() > 0) read(call, request, part);
  gate_.finish(waiting, request.need());
}

void DenseShard::read(const PushPullCall& call, const wire::Part& request, PushPullCall::Part& part) {
  ServedPartition& partition = *part.partition;
  ServedPartition::Worker& worker = worker_of(partition, call);
  const std::uint64_t number = call.request.message().header.request;
  const bool lost = call.request.incarnation() < worker.taken.incarnation;
  std::size_t copied = 0;
  for (const std::uint32_t pulled : request.pull())
    if (partition.slices[pulled].bytes < kLargeRun) copied += padded(partition.slices[pulled].bytes);
  part.payload.reserve(copied);
  part.versions.resize(static_cast<std::size_t>(request.pull_size()));
  begin(reads_, request.pull_size());
  begin(read_places_, request.pull_size());
  for (int i = 0; i < request.pull_size(); ++i) {
    const std::size_t pulled = request.pull(i);
    const std::size_t bytes = partition.slices[pulled].bytes;
    const int slice = partition.number(pulled);
    ServedPartition::Answered& answered = worker.answered[pulled];
    const auto codec = call.codec(i < request.pull_codec_size() ? request.pull_codec(i) : 0);
    const bool overtaken = lost || answered.after(number);
    const int reader = overtaken ? -1 : call.worker();
    Snapshot snapshot;
    // The worker may have either answer to a repeated request: where it matters, both are of the same weights.
    if (answered.is_of(number) && !lost) snapshot = updater_.pulled(slice, reader);
    if (snapshot.data && !answered.has_version(snapshot.version)) snapshot = {};
    if (!snapshot.data && !codec && bytes < kLargeRun) {
      if (!overtaken) worker.answer(pulled, number, ServedPartition::Answered::kNotRead, nullptr);
      reads_.push_back({slice, reader, part.payload.room(bytes)});
      read_places_.push_back(i);
      continue;
    }
    if (!snapshot.data) snapshot = updater_.pull(slice, reader, codec);
    if (!overtaken) worker.answer(pulled, number, snapshot.version, snapshot.codec);
    part.versions[static_cast<std::size_t>(i)] = snapshot.version;
    if (snapshot.codec) part.encoded_bytes.push_back(snapshot.bytes);
    part.payload.add(snapshot.data.get(), snapshot.bytes, snapshot.data);
  }
  updater_.read_all(reads_);
  for (std::size_t i = 0; i < reads_.size(); ++i) {
    part.versions[static_cast<std::size_t>(read_places_[i])] = reads_[i].version;
    if (reads_[i].worker >= 0) worker.answered[request.pull(read_places_[i])].set_version(reads_[i].version);
  }
  end(reads_);
  end(read_places_);
}

WorkerClocks::Range DenseShard::step_end(int worker, std::uint64_t incarnation, const wire::StepEnd& message) {
  clocks_.step_end(worker, incarnation, message, std::chrono::steady_clock::now());
  reconsider();
  return clocks_.others(worker);
}

void DenseShard::set_roster(const Roster& roster) {
  clocks_.set_roster(roster);
  const auto gone = [this](const Waiting& waiting) {
    return !clocks_.is_live(waiting.call->worker(), waiting.call->request.incarnation());
  };
  std::erase_if(waiting_for_clocks_, gone);
  for (auto& [number, slice] : open_) {
    std::erase_if(slice.waiting, gone);
    std::erase_if(slice.asking, [this](const SliceRounds::Asking& asking) {
      return !clocks_.is_live(asking.request.from().rank, asking.request.incarnation());
    });
  }
  reconsider();
}

void DenseShard::drop_worker(int worker) {
  for (const ServedPartition* partition : partitions_)
    for (std::size_t i = 0; i < partition->slices.size(); ++i) updater_.drop_worker(partition->number(i), worker);
}

void DenseShard::remember_pulled() {
  for (ServedPartition* partition : partitions_) {
    for (auto& [rank, worker] : partition->workers) {
      for (std::size_t i = 0; i < worker.answered.size(); ++i) {
        const ServedPartition::Answered& answered = worker.answered[i];
        const int slice = partition->number(i);
        if (answered.request > 0 && answered.has_version(updater_.version(slice)))
          updater_.pull(slice, rank, worker.codecs.empty() ? nullptr : worker.codecs[i]);
      }
    }
  }
}

void DenseShard::reconsider() {
  if (!mode_) return;
  tables_.reconsider();
  std::vector<int> open;
  open.reserve(open_.size());
  for (const auto& [number, slice] : open_) open.push_back(number);
  for (const int number : open) {
    SliceRounds* const slice = find_rounds(number);
    if (!slice) continue;
    advance(*slice);
    answer_waiting(*slice);
  }
  std::vector<Waiting> waiting;
  waiting.swap(waiting_for_clocks_);
  for (Waiting& entry : waiting) pull(std::move(entry));
}

}  // namespace paceline

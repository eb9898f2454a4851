#include "shard.h"

#include <paceline/cores.h>
#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "payload.h"

namespace paceline {

void PushPullCall::fail(std::exception_ptr reason) {
  Lock lock(mutex);
  if (!error) error = std::move(reason);
}

std::shared_ptr<const Codec> PushPullCall::codec(std::uint32_t number) const {
  if (number > codecs.size()) throw Corrupt(str("codec ", number, " of ", codecs.size()));
  return number == 0 ? nullptr : codecs[number - 1];
}

void PushPullCall::finish_part() {
  if (parts_left.fetch_sub(1) != 1) return;
  std::exception_ptr reason;
  {
    Lock lock(mutex);
    reason = error;
  }
  if (reason) {
    try {
      std::rethrow_exception(reason);
    } catch (const std::exception& refusal) {
      request.refuse(refusal);
    }
    return;
  }
  wire::PushPullReply reply;
  reply.set_refused(refused);
  reply.set_waited_microseconds(static_cast<std::uint64_t>(waited_microseconds.load()));
  PayloadWriter payload;
  for (const auto& part : weights) {
    for (const Snapshot& snapshot : part) {
      reply.add_versions(snapshot.version);
      if (snapshot.codec) reply.add_pull_bytes(snapshot.bytes);
      payload.add(snapshot.data.get(), snapshot.bytes, snapshot.data);
    }
  }
  Message message;
  message.body = reply.SerializeAsString();
  message.payload = payload.finish();
  request.reply(std::move(message));
}

Shard::Shard(Updater& updater, Waits& waits, int number) : updater_(updater), waits_(waits) {
  thread_ = std::thread([this, number] {
    name_thread(str("shard ", number).c_str());
    become_single_threaded();
    loop();
  });
}

Shard::~Shard() {
  {
    Lock lock(mutex_);
    stopping_ = true;
  }
  posted_.notify_one();
  thread_.join();
}

void Shard::post(Job job) {
  {
    Lock lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  posted_.notify_one();
}

void Shard::post_short(Job job) {
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

void Shard::loop() {
  std::deque<Job> jobs;
  for (bool ran = false;; ran = true) {
    {
      Lock lock(mutex_);
      if (ran) running_ = false;
      posted_.wait(mutex_, [this]() REQUIRES(mutex_) { return !running_ && (stopping_ || !jobs_.empty()); });
      if (jobs_.empty()) return;
      running_ = true;
      jobs.swap(jobs_);
    }
    for (; !jobs.empty(); jobs.pop_front()) run_job(jobs.front());
  }
}

void Shard::run_job(Job& job) {
  try {
    job(*this);
  } catch (const std::exception& error) {
    LOG(ERROR) << "a request was dropped: " << error.what();
  }
}

void Shard::run(const std::shared_ptr<PushPullCall>& call, int part, ServedPartition& partition) {
  partitions_[partition.id] = &partition;
  try {
    push(call, part, partition);
    pull({call, part, std::chrono::steady_clock::now()}, partition);
  } catch (const Error&) {
    call->fail(std::current_exception());
    call->finish_part();
  }
}

void Shard::push(const std::shared_ptr<PushPullCall>& call, int part, ServedPartition& partition) {
  const wire::Part& request = call->body.parts(part);
  if (request.push_size() == 0) return;
  ServedPartition::Taken& taken = partition.taken[call->worker()];
  if (taken.incarnation < call->request.incarnation()) {
    taken = {call->request.incarnation(), {}};
    for (ServedSlice& slice : partition.slices) slice.contributed.erase(call->worker());
  }
  require(taken.incarnation == call->request.incarnation(), "worker ", call->worker(),
          " has returned since this push was sent");
  require(taken.window.plausible(request.sequence()), "push number ", request.sequence(), " of worker ", call->worker(),
          " is far ahead of those before it");
  const std::vector<PushedSlice>& gradients = call->gradients[static_cast<std::size_t>(part)];
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const std::size_t count = partition.slices[request.push(static_cast<int>(i))].bytes / sizeof(float);
    const Codec* const codec = gradients[i].codec;
    if (!codec) continue;
    codec->check({gradients[i].data, gradients[i].bytes}, static_cast<std::int64_t>(count));
    require(!codec->two_rounds() || in_lockstep(), "this mode's rounds do not wait for all workers: a codec cannot take ",
            "two of them");
  }
  if (!taken.window.take(request.sequence())) return;

  for (int i = 0; i < request.push_size(); ++i) {
    ServedSlice& slice = partition.slices[request.push(i)];
    Contribution contribution;
    contribution.worker = call->worker();
    contribution.version = request.base(i);
    contribution.examples = call->body.examples();
    const PushedSlice& gradient = gradients[static_cast<std::size_t>(i)];
    contribution.gradient = gradient.data;
    contribution.codec = gradient.codec;
    contribution.bytes = gradient.bytes;
    if (mode_ && mode_->synchronous())
      contribute(call, slice, contribution);
    else if (updater_.apply(slice.number, contribution).refused)
      ++call->refused;
  }
}

namespace {

// Is a contribution of the same incarnation of the worker there?
bool proposes(const Contribution& contribution) { return contribution.codec && contribution.codec->two_rounds(); }

bool has_kept(const std::map<int, ServedSlice::Kept>& round, const PushPullCall& call) {
  const auto kept = round.find(call.worker());
  return kept != round.end() && kept->second.call->request.incarnation() == call.request.incarnation();
}

}  // namespace

void Shard::contribute(const std::shared_ptr<PushPullCall>& call, ServedSlice& slice,
                       const Contribution& contribution) {
  std::uint64_t round = call->body.round();
  std::uint64_t& next = slice.contributed[call->worker()];
  require(round >= next, "worker ", call->worker(), " pushed key '", slice.name, "' twice in step ", round,
          "; call step_end() between steps");
  next = round + 1;
  advance(slice);
  if (mode_->drops_late()) round = slice.next_round;
  const auto open = slice.rounds.find(round);
  bool late = round < slice.next_round || (slice.agreement && slice.agreement->round() == round);
  if (mode_->drops_late()) {
    const bool average = updater_.info(slice.number).kind == SliceInfo::Kind::kAverage;
    late = (!average && contribution.version != updater_.version(slice.number)) ||
           (open != slice.rounds.end() && has_kept(open->second, *call));
    if (!late && open == slice.rounds.end()) clocks_.for_each_contributing([&slice](int worker, std::uint64_t clock) {
      slice.clocks_at_opening[worker] = clock;
    });
  }
  if (late) {
    ++late_;
    ++call->refused;
    return;
  }
  require(open == slice.rounds.end() || proposes(open->second.begin()->second.contribution) == proposes(contribution),
          "worker ", call->worker(), " encodes key '", slice.name, "' otherwise than the others");
  // What a lost incarnation of the worker said for the round gives way.
  slice.rounds[round].insert_or_assign(call->worker(), ServedSlice::Kept{call, contribution});
  active_.insert(&slice);
  advance(slice);
  answer_waiting(slice);
}

void Shard::close_round(ServedSlice& slice) {
  const auto& [round, kept] = *slice.rounds.begin();
  std::vector<Contribution> contributions;
  for (const auto& [worker, entry] : kept) contributions.push_back(entry.contribution);
  try {
    updater_.apply_round(slice.number, contributions);
  } catch (const Error& error) {
    LOG(ERROR) << "round " << round << " of key '" << slice.name << "' was dropped: " << error.what();
  }
  slice.next_round = round + 1;
  slice.rounds.erase(slice.rounds.begin());
}

void Shard::advance_open_round(ServedSlice& slice) {
  if (!slice.rounds.empty()) {
    const auto& kept = slice.rounds.begin()->second;
    int missing = 0;
    clocks_.for_each_contributing([&](int worker, std::uint64_t clock) {
      // Who has ended a step since without a push of this key does not contribute.
      missing += kept.count(worker) == 0 &&
                 clock <= std::max(slice.contributed[worker], slice.clocks_at_opening[worker]);
    });
    const int contributed = static_cast<int>(kept.size());
    if (!mode_->round_complete({contributed, contributed + missing})) return;
    close_round(slice);
  }
  if (slice.waiting.empty()) active_.erase(&slice);
}

bool Shard::waits_for_round(const ServedSlice& slice, const PushPullCall& call, std::uint64_t need) const {
  if (mode_->drops_late()) return !slice.rounds.empty() && has_kept(slice.rounds.begin()->second, call);
  // Whoever is past its last step (or lost) waits for the others no more than they for it.
  return slice.next_round < need && clocks_.slowest();
}

void Shard::advance(ServedSlice& slice) {
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
  }
  slice.next_round = std::max(slice.next_round, slowest.value_or(slice.next_round));
  if (slice.waiting.empty()) active_.erase(&slice);
}

void Shard::answer_waiting(ServedSlice& slice) {
  answer_asking(slice);
  std::vector<Waiting> waiting;
  waiting.swap(slice.waiting);
  for (Waiting& entry : waiting) {
    const int id = static_cast<int>(entry.call->body.parts(entry.part).partition());
    pull(std::move(entry), *partitions_.at(id));
  }
}

void Shard::pull(Waiting waiting, ServedPartition& partition) {
  PushPullCall& call = *waiting.call;
  const auto part = static_cast<std::size_t>(waiting.part);
  const wire::Part& request = call.body.parts(waiting.part);
  if (mode_ && request.pull_size() > 0) {
    if (mode_->synchronous()) {
      for (const std::uint32_t number : request.pull()) {
        ServedSlice& slice = partition.slices[number];
        advance(slice);
        if (!waits_for_round(slice, call, request.need())) continue;
        active_.insert(&slice);
        if (!std::exchange(waiting.held, true)) waits_.hold(call.worker(), request.need());
        slice.waiting.push_back(std::move(waiting));
        return;
      }
    } else {
      const Progress progress = clocks_.progress(call.worker(), request.need(), waiting.since);
      if (!mode_->may_pull(progress)) {
        if (!std::exchange(waiting.held, true)) waits_.hold(call.worker(), request.need());
        waiting_for_clocks_.push_back(std::move(waiting));
        return;
      }
      waits_.ahead(progress.mine - progress.slowest);
    }
  }
  for (int i = 0; i < request.pull_size(); ++i) {
    const auto codec = call.codec(i < request.pull_codec_size() ? request.pull_codec(i) : 0);
    call.weights[part].push_back(snapshot(partition.slices[request.pull(i)], call.request, codec));
  }
  const auto now = std::chrono::steady_clock::now();
  if (waiting.held) {
    waits_.release(call.worker(), waiting.since, now);
    clocks_.released(call.worker(), request.need(), waiting.since, now);
  }
  const auto waited = now - waiting.since;
  const std::int64_t microseconds = std::chrono::duration_cast<std::chrono::microseconds>(waited).count();
  std::int64_t longest = call.waited_microseconds;
  while (microseconds > longest && !call.waited_microseconds.compare_exchange_weak(longest, microseconds)) {
  }
  call.finish_part();
}

Snapshot Shard::snapshot(ServedSlice& slice, const Request& request, const std::shared_ptr<const Codec>& codec) {
  const std::uint64_t number = request.message().header.request;
  ServedSlice::Answered& answered = slice.answered[request.from().rank];
  if (answered.incarnation < request.incarnation()) {
    answered = ServedSlice::Answered();
    answered.incarnation = request.incarnation();
  }
  if (answered.request == number) {
    // The worker may have either answer: both must be of the same weights.
    if (auto data = answered.data.lock()) return {answered.version, std::move(data), answered.bytes, answered.codec};
  }
  const bool overtaken = request.incarnation() < answered.incarnation || number < answered.request;
  Snapshot snapshot = updater_.pull(slice.number, overtaken ? -1 : request.from().rank, codec);
  if (!overtaken)
    answered = {request.incarnation(), number, snapshot.version, snapshot.data, snapshot.bytes, snapshot.codec};
  return snapshot;
}

WorkerClocks::Range Shard::step_end(int worker, std::uint64_t incarnation, const wire::StepEnd& message) {
  clocks_.step_end(worker, incarnation, message, std::chrono::steady_clock::now());
  reconsider();
  return clocks_.others(worker);
}

void Shard::set_roster(const Roster& roster) {
  clocks_.set_roster(roster);
  const auto gone = [this](const Waiting& waiting) {
    return !clocks_.is_live(waiting.call->worker(), waiting.call->request.incarnation());
  };
  std::erase_if(waiting_for_clocks_, gone);
  for (ServedSlice* slice : active_) {
    std::erase_if(slice->waiting, gone);
    std::erase_if(slice->asking, [this](const ServedSlice::Asking& asking) {
      return !clocks_.is_live(asking.request.from().rank, asking.request.incarnation());
    });
  }
  reconsider();
}

void Shard::remember_pulled() {
  for (const auto& [id, partition] : partitions_) {
    for (ServedSlice& slice : partition->slices) {
      const std::uint64_t version = updater_.version(slice.number);
      for (auto& [worker, answered] : slice.answered)
        if (answered.version == version) answered.data = updater_.pull(slice.number, worker, answered.codec).data;
    }
  }
}

void Shard::reconsider() {
  if (!mode_) return;
  tables_.reconsider();
  const std::set<ServedSlice*> active = active_;
  for (ServedSlice* slice : active) {
    advance(*slice);
    answer_waiting(*slice);
  }
  std::vector<Waiting> waiting;
  waiting.swap(waiting_for_clocks_);
  for (Waiting& entry : waiting) {
    const int id = static_cast<int>(entry.call->body.parts(entry.part).partition());
    pull(std::move(entry), *partitions_.at(id));
  }
}

}  // namespace paceline

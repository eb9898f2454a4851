#include "table_shard.h"

#include <paceline/detail/host_memory.h>
#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "payload.h"

namespace paceline {

Message RowCall::answer() {
  wire::PushPullRowsReply reply;
  reply.set_refused(refused);
  reply.set_waited_microseconds(static_cast<std::uint64_t>(waited_microseconds.load()));
  PayloadWriter payload;
  for (const Part& part : parts) {
    payload.add(part.versions.get(), part.pulled.size() * sizeof(std::uint64_t), part.versions);
    payload.add(part.values.get(), part.pulled.size() * part.served->state.row_bytes(), part.values);
  }
  Message message;
  message.body = reply.SerializeAsString();
  message.payload = payload.finish();
  return message;
}

void TableShard::run(const std::shared_ptr<RowCall>& call, int part) {
  try {
    check(call->parts[static_cast<std::size_t>(part)]);
    Waiting waiting{call, part};
    push(waiting);
    pull(std::move(waiting));
  } catch (const std::exception&) {
    call->fail(std::current_exception());
    call->finish_part();
  }
}

void TableShard::check(const RowCall::Part& part) {
  const RowPartition& state = part.served->state;
  const std::int64_t rows = state.spec().rows;
  for (const auto& ids : {part.push.ids, part.pulled}) {
    std::int64_t last = -1, block = -1;
    for (const std::int64_t id : ids) {
      const bool same_block = id >> state.layout().block_bits() == block;
      if (id <= last || id >= rows ||
          (!same_block && state.layout().partition_of(id) != static_cast<int>(state.number())))
        throw Corrupt(str("a message about table '", state.spec().name, "' names row ", id, " after row ", last,
                          " in partition ", state.number()));
      last = id;
      block = id >> state.layout().block_bits();
    }
  }
  if (!part.push.places) return;
  for (const std::uint32_t place : std::span(part.push.places, part.push.ids.size()))
    if (place >= part.push.array + part.sums)
      throw Corrupt(str("a message about table '", state.spec().name, "' has a gradient at ", place, " of ",
                        part.push.array, " + ", part.sums));
}

void TableShard::push(Waiting& pull) {
  const std::shared_ptr<RowCall>& call = pull.call;
  const wire::RowPart& request = call->body.parts(pull.part);
  if (request.sequence() == 0) return;
  RowCall::Part& part = call->parts[static_cast<std::size_t>(pull.part)];
  ServedRows& served = *part.served;
  if (served.state.is_taken(call->from(), request.sequence())) return;
  RowPushEntry entry;
  entry.from = call->from();
  entry.sequence = request.sequence();
  entry.step = call->body.round();
  entry.call = call->body.call();
  entry.rows = part.push;
  entry.pieces = request.pieces();
  entry.owner = call;
  if (mode_ && mode_->synchronous()) return contribute(call, entry, served);
  std::optional<RowAnswer> answer;
  if (part.same && (!mode_ || gate_.passes(pull, request.need()))) answer = answer_to(*call, part);
  entry.reads = answer.has_value();
  served.state.apply(entry, answer ? &*answer : nullptr);
  call->refused += entry.refused;
}

RowAnswer TableShard::answer_to(RowCall& call, RowCall::Part& part) {
  part.versions = detail::allocate_host(part.pulled.size() * sizeof(std::uint64_t));
  part.values = detail::allocate_host(part.pulled.size() * part.served->state.row_bytes());
  return {call.worker(), call.body.call(), reinterpret_cast<std::uint64_t*>(part.versions.get()), part.values.get()};
}

void TableShard::contribute(const std::shared_ptr<RowCall>& call, RowPushEntry& entry, ServedRows& served) {
  try {
    served.state.expect_contribution(entry.from, entry.step, entry.call);
  } catch (const Error&) {
    // Nothing of it counts, but its number is taken: the worker does not use it again.
    entry.rows.ids = {};
    served.state.apply(entry);
    throw;
  }
  advance(served);
  entry.next_round = next_round(served.state);
  entry.verdict = entry.step < entry.next_round ? Verdict::kLate : Verdict::kKept;
  served.state.apply(entry);
  if (entry.verdict == Verdict::kLate) {
    late_ += static_cast<std::int64_t>(entry.rows.ids.size());
    call->refused += entry.rows.ids.size();
    return;
  }
  active_.insert(&served);
  advance(served);
  answer_waiting(served);
}

std::uint64_t TableShard::next_round(const RowPartition& state) const {
  const OpenRounds<RowPartition::Kept>& rounds = state.rounds();
  const std::uint64_t slowest = clocks_.slowest().value_or(rounds.empty() ? rounds.next_round : rounds.oldest());
  return std::max(rounds.next_round, rounds.empty() ? slowest : std::min(slowest, rounds.oldest()));
}

void TableShard::advance(ServedRows& served) {
  RowPartition& state = served.state;
  while (!state.rounds().empty()) {
    const OpenRounds<RowPartition::Kept>& rounds = state.rounds();
    RowCloseEntry entry{{}, rounds.oldest(), mode_->aggregate()};
    if (next_round(state) < entry.round) break;

    const auto& kept = rounds.contributions();
    Round round;
    for (const auto& [worker, pieces] : kept) round.contributed += pieces.complete();
    round.expected = round.contributed;
    clocks_.for_each_contributing([&](int worker, std::uint64_t clock) {
      const auto found = kept.find(worker);
      round.expected += clock <= entry.round && (found == kept.end() || !found->second.complete());
    });
    if (!mode_->round_complete(round)) break;
    try {
      state.apply(entry);
      served.failure = nullptr;
    } catch (const std::exception& error) {
      LOG(ERROR) << "round " << entry.round << " of table '" << state.spec().name
                 << "' could not be applied: " << error.what();
      served.failure = std::current_exception();
    }
  }
  // Keep rounds that have passed without contributions, because clocks may go back.
  if (RowSkipEntry skip{{}, next_round(state)}; skip.next_round > state.rounds().next_round) state.apply(skip);
  if (state.rounds().empty() && served.waiting.empty()) active_.erase(&served);
}

void TableShard::answer_waiting(ServedRows& served) {
  std::vector<Waiting> waiting;
  waiting.swap(served.waiting);
  for (Waiting& entry : waiting) pull(std::move(entry));
}

void TableShard::pull(Waiting waiting) {
  RowCall& call = *waiting.call;
  RowCall::Part& part = call.parts[static_cast<std::size_t>(waiting.part)];
  ServedRows& served = *part.served;
  const std::uint64_t need = call.body.parts(waiting.part).need();
  const bool reads = !part.pulled.empty() && !part.values;
  if (mode_ && reads) {
    if (mode_->synchronous()) {
      advance(served);
      // A worker that is past its last step, or lost, waits for the others no more than they for it.
      if (served.state.rounds().next_round < need && clocks_.slowest()) {
        active_.insert(&served);
        gate_.hold(waiting, need);
        served.waiting.push_back(std::move(waiting));
        return;
      }
      if (served.failure) {
        call.fail(served.failure);
        return call.finish_part();
      }
    } else if (!gate_.passes(waiting, need)) {
      waiting_for_clocks_.push_back(std::move(waiting));
      return;
    }
  }
  if (reads) {
    const RowAnswer answer = answer_to(call, part);
    RowReadEntry entry{{}, call.from(), answer.call, part.pulled};
    served.state.apply(entry, &answer);
  }
  gate_.finish(waiting, need);
}

void TableShard::reconsider() {
  if (!mode_) return;
  const auto gone = [this](const Waiting& waiting) {
    return !clocks_.is_live(waiting.call->worker(), waiting.call->request.incarnation());
  };
  const std::set<ServedRows*> active = active_;
  for (ServedRows* served : active) {
    std::erase_if(served->waiting, gone);
    advance(*served);
    answer_waiting(*served);
  }
  std::erase_if(waiting_for_clocks_, gone);
  std::vector<Waiting> waiting;
  waiting.swap(waiting_for_clocks_);
  for (Waiting& entry : waiting) pull(std::move(entry));
}

}  // namespace paceline

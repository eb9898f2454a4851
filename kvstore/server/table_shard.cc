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
    payload.add(part.values.get(), part.pulled.size() * part.served->table.row_bytes(), part.values);
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
  } catch (const Error&) {
    call->fail(std::current_exception());
    call->finish_part();
  }
}

void TableShard::check(const RowCall::Part& part) {
  const ServedRows& served = *part.served;
  const std::int64_t rows = served.table.spec().rows;
  for (const auto& ids : {part.push.ids, part.pulled}) {
    std::int64_t last = -1, block = -1;
    for (const std::int64_t id : ids) {
      const bool same_block = id >> served.layout.block_bits() == block;
      if (id <= last || id >= rows || (!same_block && served.layout.partition_of(id) != served.partition))
        throw Corrupt(str("a message about table '", served.table.spec().name, "' names row ", id, " after row ", last,
                          " in partition ", served.partition));
      last = id;
      block = id >> served.layout.block_bits();
    }
  }
  if (!part.push.places) return;
  for (const std::uint32_t place : std::span(part.push.places, part.push.ids.size()))
    if (place >= part.push.array + part.sums)
      throw Corrupt(str("a message about table '", served.table.spec().name, "' has a gradient at ", place, " of ",
                        part.push.array, " + ", part.sums));
}

void TableShard::push(Waiting& pull) {
  const std::shared_ptr<RowCall>& call = pull.call;
  const wire::RowPart& request = call->body.parts(pull.part);
  if (request.sequence() == 0) return;
  RowCall::Part& part = call->parts[static_cast<std::size_t>(pull.part)];
  ServedRows& served = *part.served;
  TakenPushes& taken = served.taken[call->worker()];
  if (taken.renew(call->request.incarnation())) served.contributed.erase(call->worker());
  taken.expect(call->worker(), call->request.incarnation(), request.sequence());
  if (!taken.window.take(request.sequence())) return;
  if (mode_ && mode_->synchronous()) return contribute(call, pull.part);
  std::optional<RowAnswer> answer;
  if (part.same && (!mode_ || gate_.passes(pull, request.need()))) answer = answer_to(*call, part);
  call->refused += served.table.apply(part.push, answer ? &*answer : nullptr);
}

RowAnswer TableShard::answer_to(RowCall& call, RowCall::Part& part) {
  part.versions = detail::allocate_host(part.pulled.size() * sizeof(std::uint64_t));
  part.values = detail::allocate_host(part.pulled.size() * part.served->table.row_bytes());
  return {call.worker(), call.body.call(), reinterpret_cast<std::uint64_t*>(part.versions.get()), part.values.get()};
}

void TableShard::contribute(const std::shared_ptr<RowCall>& call, int part) {
  const RowCall::Part& rows = call->parts[static_cast<std::size_t>(part)];
  ServedRows& served = *rows.served;
  const std::uint64_t round = call->body.round();
  ServedRows::Contributed& before = served.contributed[call->worker()];
  require(round >= before.rounds || (round + 1 == before.rounds && call->body.call() == before.call), "worker ",
          call->worker(), " pushed rows of table '", served.table.spec().name, "' twice in step ", round,
          "; call step_end() between steps");
  before = {round + 1, call->body.call()};
  advance(served);
  if (round < served.next_round) {
    late_ += static_cast<std::int64_t>(rows.push.ids.size());
    call->refused += rows.push.ids.size();
    return;
  }
  ServedRows::Kept& kept = served.rounds[round][call->worker()];
  // What a lost incarnation of the worker said for the round gives way.
  if (!kept.pieces.empty() && kept.pieces.front().first->request.incarnation() != call->request.incarnation())
    kept.pieces.clear();
  kept.pieces.emplace_back(call, part);
  kept.expected = call->body.parts(part).pieces();
  active_.insert(&served);
  advance(served);
  answer_waiting(served);
}

void TableShard::advance(ServedRows& served) {
  const std::optional<std::uint64_t> slowest = clocks_.slowest();
  while (!served.rounds.empty()) {
    const std::uint64_t round = served.rounds.begin()->first;
    if (served.next_round < round)  // rounds without a contribution are over when every worker is past them
      served.next_round = std::max(served.next_round, std::min(slowest.value_or(round), round));
    if (served.next_round < round) return;

    const auto& kept = served.rounds.begin()->second;
    Round state;
    for (const auto& [worker, pieces] : kept) state.contributed += pieces.complete();
    state.expected = state.contributed;
    clocks_.for_each_contributing([&](int worker, std::uint64_t clock) {
      const auto found = kept.find(worker);
      state.expected += clock <= round && (found == kept.end() || !found->second.complete());
    });
    if (!mode_->round_complete(state)) return;
    apply(served, kept);
    served.rounds.erase(served.rounds.begin());
    served.next_round = round + 1;
  }
  served.next_round = std::max(served.next_round, slowest.value_or(served.next_round));
  if (served.waiting.empty()) active_.erase(&served);
}

void TableShard::apply(ServedRows& served, const std::map<int, ServedRows::Kept>& kept) {
  std::vector<RowGradients> contributions;
  for (const auto& [worker, contribution] : kept)
    for (const auto& [call, part] : contribution.pieces)
      contributions.push_back(call->parts[static_cast<std::size_t>(part)].push);
  try {
    served.table.apply_round(contributions);
  } catch (const Error& error) {
    LOG(ERROR) << "a round of table '" << served.table.spec().name << "' was dropped: " << error.what();
  }
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
      // Whoever is past its last step (or lost) waits for the others no more than they for it.
      if (served.next_round < need && clocks_.slowest()) {
        active_.insert(&served);
        gate_.hold(waiting, need);
        served.waiting.push_back(std::move(waiting));
        return;
      }
    } else if (!gate_.passes(waiting, need)) {
      waiting_for_clocks_.push_back(std::move(waiting));
      return;
    }
  }
  if (reads) served.table.read(part.pulled, answer_to(call, part));
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

#include "row_sequencer.h"

#include <paceline/detail/host_memory.h>

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

void RowSequencer::run(const std::shared_ptr<RowCall>& call, int part) {
  Waiting waiting{call, part};
  take(waiting);
  pull(std::move(waiting));
}

void RowSequencer::take(Waiting& pull) {
  const std::shared_ptr<RowCall>& call = pull.call;
  const wire::RowPart& request = call->body.parts(pull.part);
  if (request.sequence() == 0) return;
  const RowCall::Part& part = part_of(pull);
  if (part.served->state.is_taken(call->from(), request.sequence())) return;
  RowPushEntry entry;
  entry.from = call->from();
  entry.sequence = request.sequence();
  entry.step = call->body.round();
  entry.call = call->body.call();
  entry.rows = part.push;
  entry.pieces = request.pieces();
  entry.owner = call;
  push(pull, entry);
}

RowAnswer RowSequencer::answer_to(const Waiting& waiting) {
  RowCall::Part& part = part_of(waiting);
  part.versions = detail::allocate_host(part.pulled.size() * sizeof(std::uint64_t));
  part.values = detail::allocate_host(part.pulled.size() * part.served->state.row_bytes());
  return {waiting.call->worker(), waiting.call->body.call(), reinterpret_cast<std::uint64_t*>(part.versions.get()),
          part.values.get()};
}

void RowSequencer::answer(const Waiting& waiting) {
  try {
    if (reads(waiting)) {
      const RowAnswer answer = answer_to(waiting);
      RowReadEntry entry{{}, waiting.call->from(), answer.call, part_of(waiting).pulled};
      part_of(waiting).served->state.apply(entry, &answer);
    }
  } catch (const std::exception&) {
    waiting.call->fail(std::current_exception());
  }
  shard_.gate.finish(waiting, need_of(waiting));
}

std::unique_ptr<RowSequencer> make_row_sequencer(std::shared_ptr<const Mode> mode, const RowSequencer::Context& shard) {
  return mode->traits().in_rounds() ? make_rows_in_rounds(std::move(mode), shard)
                                    : make_rows_at_once(std::move(mode), shard);
}

}  // namespace paceline

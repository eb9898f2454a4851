// Rounds of codecs that take two: what the shard asks of an Agreement and answers to workers.
#include <paceline/error.h>
#include <paceline/log.h>

#include "payload.h"
#include "shard.h"

namespace paceline {
namespace {

void reply(const Request& request, wire::AgreeReply body, const Agreement::Bytes& bytes) {
  PayloadWriter payload;
  if (bytes) {
    body.set_bytes(bytes->size());
    payload.add(bytes->data(), bytes->size(), bytes);
  }
  Message message;
  message.body = body.SerializeAsString();
  message.payload = payload.finish();
  request.reply(std::move(message));
}

}  // namespace

bool DenseShard::begin_agreement(SliceRounds& slice) {
  const auto& [round, kept] = *slice.rounds.begin();
  const Codec* const codec = kept.begin()->second.contribution.codec;
  if (!codec || !codec->two_rounds()) return false;
  std::vector<Agreement::Proposal> proposals;
  for (const auto& [worker, entry] : kept) proposals.push_back({entry.contribution, entry.call->request.incarnation()});
  slice.agreement =
      std::make_unique<Agreement>(round, proposals, static_cast<std::int64_t>(slice.bytes() / sizeof(float)));
  return true;
}

bool DenseShard::close_agreement(SliceRounds& slice) {
  Agreement& agreement = *slice.agreement;
  bool missing = false;
  agreement.for_each_missing(
      [&](int worker, std::uint64_t incarnation) { missing |= clocks_.is_live(worker, incarnation); });
  if (missing) return false;
  const std::vector<Contribution> contributions = agreement.contributions();
  try {
    if (!contributions.empty()) updater_.apply_round(slice.number(), contributions);
  } catch (const Error& error) {
    LOG(ERROR) << "round " << agreement.round() << " of key '" << updater_.info(slice.number()).name
               << "' was dropped: " << error.what();
  }
  for (const Contribution& contribution : contributions) slice.answered[contribution.worker] = agreement.round() + 1;
  agreement.close();
  slice.next_round = agreement.round() + 1;
  slice.rounds.erase(slice.rounds.begin());
  return true;
}

void DenseShard::agree(const Request& request, const wire::AgreeRequest& message, ServedPartition& partition) {
  require(in_lockstep(), "this mode's rounds do not wait for all workers: they agree on nothing");
  partitions_.insert(&partition);
  const std::uint64_t round = message.round();
  SliceRounds& slice = rounds_of(partition, message.slice(), round);
  if (message.abstains()) {
    abstain(request, slice, round);
    request.reply({});
    advance(slice);
    return answer_waiting(slice);
  }
  const bool answers = message.bytes() > 0;
  if (answers && round >= slice.next_round) {
    if (!slice.agreement || slice.agreement->round() != round) {
      const int number = slice.number();
      put_to_rest(number);
      throw Corrupt(
          str("an answer to what round ", round, " of key '", updater_.info(number).name, "' has not agreed on yet"));
    }
    PayloadReader payload(request.message().payload);
    const std::byte* const data = payload.next(message.bytes());
    slice.agreement->answer(request.from().rank, request.incarnation(), data, message.bytes());
  }
  slice.asking.push_back({request, round, answers});
  advance(slice);
  answer_waiting(slice);
}

void DenseShard::abstain(const Request& request, SliceRounds& slice, std::uint64_t round) {
  const int worker = request.from().rank;
  if (slice.agreement && slice.agreement->round() == round)
    return slice.agreement->abstain(worker, request.incarnation());
  const auto open = slice.rounds.find(round);
  if (open == slice.rounds.end()) return;
  const auto kept = open->second.find(worker);
  if (kept == open->second.end() || kept->second.call->request.incarnation() != request.incarnation()) return;
  open->second.erase(kept);
  if (open->second.empty()) slice.rounds.erase(open);
}

void DenseShard::answer_asking(SliceRounds& slice) {
  std::erase_if(slice.asking, [&](const SliceRounds::Asking& asking) {
    const Agreement* const agreement =
        slice.agreement && slice.agreement->round() == asking.round ? slice.agreement.get() : nullptr;
    const int worker = asking.request.from().rank;
    wire::AgreeReply body;
    if (asking.round < slice.next_round) {
      // A worker asks about one round at a time: its last.
      body.set_over(!asking.answers || slice.answered[worker] != asking.round + 1);
      body.set_gone(!body.over() && !agreement);
      reply(asking.request, body, agreement && !body.over() ? agreement->mean() : nullptr);
      return true;
    }
    if (!agreement || asking.answers) return false;
    reply(asking.request, body, agreement->agreed());
    return true;
  });
}

}  // namespace paceline

#include "send/two_round_push.h"

#include <paceline/error.h>
#include <paceline/log.h>

#include <array>
#include <optional>

#include "parse_body.h"
#include "payload.h"
#include "store.pb.h"

namespace paceline {
namespace {

// A task that waits for several answers.
struct Asking {
  explicit Asking(Completion done) : completion(std::move(done)) {}

  Completion completion;
  Answers answers;

  void count(const std::exception_ptr& error) {
    if (error) answers.note(error);
    if (!answers.count()) return;
    if (const std::exception_ptr first = answers.error())
      completion.fail(first);
    else
      completion.done();
  }
};

std::vector<std::byte> bytes_of(const Message& message, const wire::AgreeReply& body) {
  PayloadReader payload(message.payload);
  const std::byte* const data = payload.next(body.bytes());
  return {data, data + body.bytes()};
}

}  // namespace

TwoRoundPush::TwoRoundPush(Job job) : job_(std::move(job)) {
  const std::size_t slices = job_.key->slices.size();
  agreed_.resize(slices);
  answers_.resize(slices);
  means_.resize(slices);
  over_.resize(slices);
  gone_.resize(slices);
}

TwoRoundPush::~TwoRoundPush() {
  if (answered_) return;
  job_.held->fail(std::make_exception_ptr(Error("a gradient was not pushed: its second round has failed")));
  try {
    for (std::size_t s = 0; s < over_.size(); ++s) {
      if (over_[s]) continue;
      wire::AgreeRequest body = request_for(job_.key->slices[s]);
      body.set_abstains(true);
      submit(job_.key->slices[s], message_of(MessageKind::kAgree, body),
             [held = job_.held](const std::optional<Message>&, const std::exception_ptr&) {});
    }
  } catch (const std::exception& error) {
    LOG(ERROR) << "the others may wait for key '" << job_.key->info.name
               << "' until this worker ends: " << error.what();
  }
}

wire::AgreeRequest TwoRoundPush::request_for(const RemoteSlice& slice) const {
  wire::AgreeRequest body;
  body.set_partition(slice.partition->id);
  body.set_slice(slice.number);
  body.set_round(job_.round);
  return body;
}

void TwoRoundPush::submit(const RemoteSlice& slice, Message message, Node::ReplyHandler on_reply) const {
  // The request waits for other workers, and they may wait for later requests of this worker. So the request takes no
  // room in the window.
  const int server = job_.placement->server_of(kDenseKeys, static_cast<int>(slice.partition->id));
  (*job_.outboxes)[static_cast<std::size_t>(server)]->submit(job_.priority, 0, std::move(message), std::move(on_reply));
}

void TwoRoundPush::start(Engine& engine, Job job) {
  const std::shared_ptr<TwoRoundPush> push(new TwoRoundPush(std::move(job)));
  const int priority = push->job_.priority;
  const std::array talks{push->job_.key->order, push->job_.state.front().variable()};
  std::vector<Variable> changes;
  for (const NDArray& array : push->job_.state) changes.push_back(array.variable());
  engine.push_async(
      {"store.agree", {}, Lane::kCommunication, priority}, talks, talks,
      [push](TaskContext&, Completion completion) { push->ask(std::move(completion), nullptr, &push->agreed_); });
  engine.push({"store.encode", {}, Lane::kCompute, priority}, changes, changes,
              [push](TaskContext&) { push->answer(); });
  engine.push_async({"store.answer", {}, Lane::kCommunication, priority}, talks, talks,
                    [push](TaskContext&, Completion completion) {
                      push->ask(std::move(completion), &push->answers_, &push->means_);
                    });
  engine.push({"store.encode", {}, Lane::kCompute, priority}, changes, changes,
              [push](TaskContext&) { push->finish(); });
}

void TwoRoundPush::ask(Completion completion, const std::vector<std::vector<std::byte>>* answers,
                       std::vector<std::vector<std::byte>>* results) {
  const std::vector<RemoteSlice>& slices = job_.key->slices;
  const auto asking = std::make_shared<Asking>(std::move(completion));
  asking->answers.expect(static_cast<int>(slices.size()) + 1);
  for (std::size_t s = 0; s < slices.size(); ++s) {
    if (over_[s]) {
      asking->count(nullptr);
      continue;
    }
    wire::AgreeRequest body = request_for(slices[s]);
    PayloadWriter payload;
    if (answers) {
      const std::vector<std::byte>& bytes = (*answers)[s];
      body.set_bytes(bytes.size());
      payload.add(bytes.data(), bytes.size(), shared_from_this());
    }
    submit(slices[s], message_of(MessageKind::kAgree, body, payload.finish()),
           [self = shared_from_this(), asking, s, results](std::optional<Message> answer, std::exception_ptr error) {
             try {
               if (error) std::rethrow_exception(error);
               const auto reply = parse_body<wire::AgreeReply>(*answer);
               self->over_[s] = reply.over();
               self->gone_[s] = reply.gone();
               (*results)[s] = bytes_of(*answer, reply);
             } catch (...) {
               error = std::current_exception();
               self->job_.held->fail(error);
             }
             asking->count(error);
           });
  }
  asking->count(nullptr);
}

std::vector<float*> TwoRoundPush::state_of(const RemoteSlice& slice) const {
  std::vector<float*> pointers;
  for (const NDArray& array : job_.state) pointers.push_back(static_cast<float*>(array.data()) + slice.begin);
  return pointers;
}

void TwoRoundPush::answer() {
  const std::vector<RemoteSlice>& slices = job_.key->slices;
  const TwoRounds& codec = *job_.codec->codec->two_rounds();
  for (std::size_t s = 0; s < slices.size(); ++s)
    if (!over_[s]) answers_[s] = codec.answer(agreed_[s], slices[s].end - slices[s].begin, state_of(slices[s]));
}

void TwoRoundPush::finish() {
  answered_ = true;
  const std::shared_ptr<Delivery> held = std::move(job_.held);  // the key lives as long as this is held
  const std::vector<RemoteSlice>& slices = job_.key->slices;
  const TwoRounds& codec = *job_.codec->codec->two_rounds();
  // If a round closed without this worker, the worker keeps its gradient for the next one.
  for (std::size_t s = 0; s < slices.size(); ++s) {
    if (over_[s]) continue;
    const EncodedBytes mean = means_[s];
    codec.finish(agreed_[s], answers_[s], gone_[s] ? nullptr : &mean, slices[s].end - slices[s].begin,
                 state_of(slices[s]));
  }
}

}  // namespace paceline

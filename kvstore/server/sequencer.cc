#include "sequencer.h"

#include <paceline/error.h>

#include "scratch.h"

namespace paceline {
namespace {

static_assert(DensePartition::kSharedBytes == kLargeRun);

// Writes weights into the answer of a part.
class AnswerSink final : public WeightSink {
 public:
  explicit AnswerSink(PushPullCall::Part& part) : part_(part) {}
  void reserve(std::size_t bytes) override { part_.payload.reserve(bytes); }
  std::byte* room(std::size_t bytes) override { return part_.payload.room(bytes); }
  void add(const Snapshot& weights) override {
    if (weights.codec) part_.encoded_bytes.push_back(weights.bytes);
    part_.payload.add(weights.data.get(), weights.bytes, weights.data);
  }

 private:
  PushPullCall::Part& part_;
};

}  // namespace

void Sequencer::run(const std::shared_ptr<PushPullCall>& call, int part) {
  try {
    take(call, part);
    pull({call, part});
  } catch (const std::exception&) {
    call->fail(std::current_exception());
    call->finish_part();
  }
}

void Sequencer::take(const std::shared_ptr<PushPullCall>& call, int number) {
  const wire::Part& request = call->body.parts(number);
  if (request.push_size() == 0) return;
  const PushPullCall::Part& part = call->parts[static_cast<std::size_t>(number)];
  const DensePartition& state = part.partition->state;
  const bool taken = state.is_taken(call->from(), request.sequence());
  for (std::size_t i = 0; i < part.gradients.size(); ++i) {
    const PushedSlice& gradient = part.gradients[i];
    if (!gradient.codec) continue;
    const std::size_t count = state.slices()[request.push(static_cast<int>(i))].bytes / sizeof(float);
    gradient.codec->check({gradient.data, gradient.bytes}, static_cast<std::int64_t>(count));
    require(!gradient.codec->two_rounds() || agrees(), "this mode's rounds do not wait for all workers: a codec ",
            "cannot take two of them");
  }
  if (taken) return;

  begin_scratch(gradients_, static_cast<std::size_t>(request.push_size()));
  for (int i = 0; i < request.push_size(); ++i) {
    const PushedSlice& gradient = part.gradients[static_cast<std::size_t>(i)];
    gradients_.push_back(
        {static_cast<int>(request.push(i)),
         {call->worker(), request.base(i), call->body.examples(), gradient.data, gradient.codec, gradient.bytes}});
  }
  Pushed pushed{call, *part.partition, {}};
  pushed.entry.from = call->from();
  pushed.entry.sequence = request.sequence();
  pushed.entry.step = call->body.round();
  pushed.entry.gradients = gradients_;
  pushed.entry.owner = call;
  push(pushed);
  end_scratch(gradients_);
}

void Sequencer::answer(const Waiting& waiting) {
  const wire::Part& request = request_of(waiting);
  try {
    if (request.pull_size() > 0) read(*waiting.call, request, waiting.part);
  } catch (const std::exception&) {
    waiting.call->fail(std::current_exception());
  }
  shard_.gate.finish(waiting, request.need());
}

void Sequencer::read(PushPullCall& call, const wire::Part& request, int number) {
  PushPullCall::Part& part = call.parts[static_cast<std::size_t>(number)];
  begin_scratch(reads_, static_cast<std::size_t>(request.pull_size()));
  for (int i = 0; i < request.pull_size(); ++i)
    reads_.push_back({request.pull(i), call.codec(i < request.pull_codec_size() ? request.pull_codec(i) : 0)});
  ReadEntry entry{{}, call.from(), call.request.message().header.request, reads_};
  AnswerSink sink(part);
  part.partition->state.apply(entry, &sink);
  part.versions.resize(reads_.size());
  for (std::size_t i = 0; i < reads_.size(); ++i) part.versions[i] = reads_[i].version;
  end_scratch(reads_);
}

void Sequencer::agree(const Request&, const wire::AgreeRequest&, ServedPartition&) {
  throw InvalidArgument("this mode's rounds do not wait for all workers: they agree on nothing");
}

std::unique_ptr<Sequencer> make_sequencer(std::shared_ptr<const Mode> mode, const Sequencer::Context& shard) {
  switch (mode->traits().applies) {
    case Applies::kInRounds: return make_in_rounds(std::move(mode), shard);
    case Applies::kWithBackups: return make_in_rounds_with_backups(std::move(mode), shard);
    case Applies::kAtOnce: break;
  }
  return make_at_once(std::move(mode), shard);
}

}  // namespace paceline

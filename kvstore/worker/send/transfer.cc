#include "send/transfer.h"

#include <paceline/detail/array_builder.h>
#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <cstring>

#include "parse_body.h"
#include "payload.h"
#include "store.pb.h"
#include "stream_copy.h"

namespace paceline {

// The pulled slices that an answer fills.
struct Transfer::Batch {
  struct Pulled {
    RemoteSlice* slice;
    std::byte* out;
    std::size_t bytes;
    std::shared_ptr<const Codec> codec;  // set_optimizer() may replace the store's codecs before the answer comes
  };
  std::vector<Pulled> pulled;
};

struct Transfer::Outgoing {
  int server = 0;
  wire::PushPullRequest body;
  PartWriter parts{body};
  PayloadWriter payload;
  bool pushes = false;
  std::size_t pushed_bytes = 0, pulled_bytes = 0;
  Batch batch;
  std::unique_ptr<Outgoing> pulls = nullptr;  // sent when this message, which only pushes, is answered

  // Returns the number of this codec in the message, from 1. Adds the codec to the message if it is new.
  std::uint32_t number_of(const WireCodec& codec) {
    for (int i = 0; i < body.codecs_size(); ++i)
      if (body.codecs(i) == codec.text) return static_cast<std::uint32_t>(i) + 1;
    body.add_codecs(codec.text);
    return static_cast<std::uint32_t>(body.codecs_size());
  }
};

Transfer::Bytes Transfer::Bytes::of(const NDArray& array) {
  return {ArrayBuilder::storage(array), &array.variable(), static_cast<std::byte*>(ArrayBuilder::data(array)),
          array.bytes()};
}

Transfer::Transfer(Route route, std::vector<Item> items, std::shared_ptr<Step> step, std::int64_t examples,
                   int priority)
    : StoreCall(std::move(route), std::move(step), examples, priority), items_(std::move(items)) {}

std::vector<Variable> Transfer::reads() const {
  std::vector<Variable> variables;
  variables.reserve(items_.size());
  for (const Item& item : items_) {
    if (item.gradient)
      variables.push_back(*item.gradient.variable);
    else
      item.add_orders(&variables);  // so that the pull fails if an earlier push has failed
  }
  return variables;
}

std::vector<Variable> Transfer::writes() const {
  std::vector<Variable> variables;
  variables.reserve(2 * items_.size());
  for (const Item& item : items_) {
    item.add_orders(&variables);
    if (item.out) variables.push_back(*item.out.variable);
  }
  return variables;
}

void Transfer::start(Completion completion) {
  completion_.emplace(std::move(completion));
  const bool pushes = std::any_of(items_.begin(), items_.end(), [](const Item& i) { return bool(i.gradient); });
  const bool pulls = std::any_of(items_.begin(), items_.end(), [](const Item& i) { return bool(i.out); });
  pulls_left_ = pushes && pulls && route_.pulls_wait;
  small_ = is_small(pushes, pulls && !pulls_left_);
  pulls_left_ &= small_;
  send(pushes, pulls && !pulls_left_);
}

void Transfer::send_messages(bool pushes, bool pulls) {
  if (std::exchange(small_, false)) return send_small(pushes, pulls);
  pushing_ = 1;
  try {
    send_large(pushes, pulls);
  } catch (...) {
    fail(std::current_exception());
  }
  finish_push();
}

bool Transfer::is_small(bool pushes, bool pulls) const {
  if (pulls && route_.pulls_wait) return false;
  std::size_t bytes = 0;
  for (const Item& item : items_) {
    const bool push = pushes && item.gradient, pull = pulls && item.out;
    if ((push && item.encoded) || (pull && item.pull_codec)) return false;
    bytes += (push ? item.gradient.size : 0) + (pull ? item.out.size : 0);
    if (bytes > Coalescer::kSmall) return false;
  }
  return true;
}

void Transfer::send_small(bool pushes, bool pulls) {
  std::vector<std::pair<int, SmallRequest>> requests;  // one per server
  for (const Item& item : items_) {
    const bool push = pushes && item.gradient, pull = pulls && item.out;
    if (!push && !pull) continue;
    const std::size_t width = size_of(item.key->info.dtype);
    for (RemoteSlice& slice : item.slices()) {
      const int server = route_.placement->server_of(kDenseKeys, static_cast<int>(slice.partition->id));
      auto request = std::find_if(requests.begin(), requests.end(), [&](const auto& r) { return r.first == server; });
      if (request == requests.end()) {
        request = requests.insert(request, {server, {priority_, examples_, round(), {}, shared_from_this()}});
      }
      const std::size_t offset = item.offset(slice);
      const std::size_t bytes = static_cast<std::size_t>(slice.end - slice.begin) * width;
      request->second.runs.push_back({&slice, push, pull, push ? item.gradient.data + offset : nullptr,
                                      pull ? item.out.data + offset : nullptr, bytes, item.need});
    }
  }
  for (auto& entry : requests)
    expecting(1, [&] { (*route_.coalescers)[static_cast<std::size_t>(entry.first)]->submit(std::move(entry.second)); });
}

struct Transfer::Run {
  RemoteSlice* slice;
  const Item* item;
  int server;
  bool push, pull;
  std::size_t offset, bytes;      // in the item's arrays
  EncodedGradient::Slice pushed;  // place in the sent array, which may be encoded
  std::size_t pulled_bytes;       // the most bytes that the server sends back
};

Transfer::Run Transfer::run_of(const Item& item, RemoteSlice& slice, bool push, bool pull) const {
  const std::int64_t count = slice.end - slice.begin;
  const std::size_t width = size_of(item.key->info.dtype);
  const int server = route_.placement->server_of(kDenseKeys, static_cast<int>(slice.partition->id));
  Run run{&slice, &item, server, push, pull, item.offset(slice), static_cast<std::size_t>(count) * width, {}, 0};
  if (push && item.encoded)
    run.pushed = item.encoded->slices[static_cast<std::size_t>(&slice - item.key->slices.data())];
  else if (push)
    run.pushed = {run.offset, run.bytes};
  if (pull) run.pulled_bytes = item.pull_codec ? item.pull_codec->codec->max_bytes(count) : run.bytes;
  return run;
}

void Transfer::send_large(bool pushes, bool pulls) {
  std::vector<Run> runs;
  runs.reserve(items_.size());
  std::size_t pulled_bytes = 0;
  for (const Item& item : items_) {
    const bool push = pushes && item.gradient, pull = pulls && item.out;
    if (!push && !pull) continue;
    for (RemoteSlice& slice : item.slices()) runs.push_back(run_of(item, slice, push, pull));
    if (pull) pulled_bytes += item.out.size;
  }
  streams_ = pulled_bytes >= kFillsCaches;
  const auto before = [](const Run& a, const Run& b) {
    if (a.server != b.server) return a.server < b.server;
    return a.slice->partition->id != b.slice->partition->id ? a.slice->partition->id < b.slice->partition->id
                                                            : a.item->need < b.item->need;
  };
  if (!std::is_sorted(runs.begin(), runs.end(), before)) std::stable_sort(runs.begin(), runs.end(), before);

  for (std::span<const Run> rest = runs; !rest.empty();) {
    const int server = rest.front().server;
    const std::size_t limit = (*route_.outboxes)[static_cast<std::size_t>(server)]->message_bytes();
    std::size_t count = 0, pushed = 0, pulled = 0;
    for (; count < rest.size() && rest[count].server == server; ++count) {
      pushed += rest[count].pushed.bytes;
      pulled += rest[count].pulled_bytes;
      if (count > 0 && std::max(pushed, pulled) > limit) break;
    }
    std::unique_ptr<Outgoing> message = make_message(rest.first(count), pushes && pulls && route_.pulls_wait);
    rest = rest.subspan(count);
    const int messages = message->pulls ? 2 : 1, pushing = message->pushes ? 1 : 0;
    pushing_ += pushing;
    try {
      expecting(messages, [&] { submit(std::move(message)); });
    } catch (...) {
      pushing_ -= pushing;
      throw;
    }
  }
}

std::unique_ptr<Transfer::Outgoing> Transfer::make_message(std::span<const Run> runs, bool pulls_apart) {
  const auto open = [&] {
    auto message = std::make_unique<Outgoing>();
    message->server = runs.front().server;
    message->body.set_examples(examples_);
    message->body.set_round(round());
    return message;
  };
  std::unique_ptr<Outgoing> message = open();
  if (pulls_apart) message->pulls = open();
  Outgoing& answered = pulls_apart ? *message->pulls : *message;
  const auto is_shared = [this](const Run& run) { return run.pushed.bytes >= kLargeRun && !route_.copies; };
  std::size_t copied = 0;
  for (const Run& run : runs)
    if (run.push && !is_shared(run)) copied += padded(run.pushed.bytes);
  message->payload.reserve(copied);

  for (const Run& run : runs) {
    const Item& item = *run.item;
    if (run.push) {
      message->pushes = true;
      wire::Part* const part = &message->parts.part_of(*run.slice, item.need);
      PartWriter::push(*part, *run.slice);
      if (item.encoded) {
        part->mutable_push_codec()->Resize(part->push_size() - 1, 0);
        part->add_push_codec(message->number_of(*item.encoded->codec));
        part->add_push_bytes(run.pushed.bytes);
      }
      message->payload.add(item.gradient.data + run.pushed.offset, run.pushed.bytes,
                           is_shared(run) ? item.gradient.owner : nullptr);
      message->pushed_bytes += run.pushed.bytes;
    }
    if (run.pull) {
      wire::Part* const part = &answered.parts.part_of(*run.slice, item.need);
      part->add_pull(run.slice->number);
      if (item.pull_codec) {
        part->mutable_pull_codec()->Resize(part->pull_size() - 1, 0);
        part->add_pull_codec(answered.number_of(*item.pull_codec));
      }
      answered.batch.pulled.push_back(
          {run.slice, item.out.data + run.offset, run.bytes, item.pull_codec ? item.pull_codec->codec : nullptr});
      answered.pulled_bytes += run.pulled_bytes;
    }
  }
  if (message->pulls && message->pulls->batch.pulled.empty()) message->pulls.reset();
  if (!message->pushes && message->pulls) return std::move(message->pulls);
  return message;
}

void Transfer::submit(std::shared_ptr<Outgoing> sent) {
  const auto server = static_cast<std::size_t>(sent->server);
  Message message = message_of(MessageKind::kPushPull, sent->body, sent->payload.finish());
  // If pulls may wait for other workers, these may wait for later requests of this worker. So such pulls take no room
  // in the window.
  const std::size_t bytes = route_.pulls_wait ? sent->pushed_bytes : std::max(sent->pushed_bytes, sent->pulled_bytes);
  auto on_answer = [self = shared_from_this(), sent = std::move(sent)](std::optional<Message> answer,
                                                                       const std::exception_ptr& error) {
    int ended = sent->pulls ? 2 : 1;
    try {
      if (error) std::rethrow_exception(error);
      self->receive(sent->batch, *answer);
      if (sent->pushes) self->finish_push();
      sent->pushes = false;
      if (sent->pulls) self->submit(std::move(sent->pulls));
      ended = 1;
    } catch (...) {
      sent->pushes ? self->fail(std::current_exception()) : self->answers_.note(std::current_exception());
    }
    if (sent->pushes) self->finish_push();
    for (; ended > 0; --ended) self->finish_message();
  };
  (*route_.outboxes)[server]->submit(priority_, bytes, std::move(message), std::move(on_answer));
}

void Transfer::receive(const Batch& batch, const Message& answer) {
  wire::PushPullReply reply;
  if (!reply.ParseFromString(answer.body) || reply.versions_size() != static_cast<int>(batch.pulled.size()))
    throw Corrupt("a server's answer cannot be parsed");
  PayloadReader payload(answer.payload);
  int encoded = 0;
  for (std::size_t i = 0; i < batch.pulled.size(); ++i) {
    const Batch::Pulled& pulled = batch.pulled[i];
    if (pulled.codec) {
      if (encoded == reply.pull_bytes_size()) throw Corrupt("a server's answer has raw weights for encoded ones");
      const std::size_t bytes = reply.pull_bytes(encoded++), count = pulled.bytes / sizeof(float);
      const EncodedBytes data(payload.next(bytes), bytes);
      pulled.codec->check(data, static_cast<std::int64_t>(count));
      pulled.codec->decode(data, static_cast<std::int64_t>(count), 0, {reinterpret_cast<float*>(pulled.out), count});
    } else if (const std::byte* data = payload.next(pulled.bytes)) {
      if (streams_)
        stream_copy(data, pulled.out, pulled.bytes);
      else
        std::memcpy(pulled.out, data, pulled.bytes);
    }
    pulled.slice->base = reply.versions(static_cast<int>(i));
  }
  stream_end();
  payload.expect_end();
  note_wait(reply.waited_microseconds());
}

void Transfer::on_answered(std::uint64_t waited_microseconds, const std::exception_ptr& error) {
  note_wait(waited_microseconds);
  if (error) fail(error);
  finish_message();
}

void Transfer::finish_push() {
  // The step may end while the pulls wait.
  if (pushing_.fetch_sub(1) == 1) step_.reset();
}

}  // namespace paceline

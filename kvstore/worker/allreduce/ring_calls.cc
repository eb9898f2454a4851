// Keys of a RingPeer, and the calls that push and pull them.
#include <paceline/error.h>

#include <algorithm>

#include "allreduce/ring_peer.h"
#include "payload.h"
#include "workers.pb.h"

namespace paceline {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{512} << 10;
constexpr std::size_t kGroupBytes = std::size_t{256} << 10;  // smaller neighbouring pieces share an owner and a message

}  // namespace

// ---- keys

int RingPeer::add_keys(const Layout& layout, const std::vector<RingKey*>& keys, const std::vector<NDArray>& values) {
  return on_thread([&, this] {
    const int first = static_cast<int>(pieces_.size());
    std::size_t grouped = kGroupBytes;
    for (const KeyPartition& partition : layout.partitions) {
      for (const SliceRange& slice : partition.slices) {
        RingKey& key = *keys[static_cast<std::size_t>(slice.key)];
        const std::size_t width = size_of(key.info.dtype);
        std::int64_t longest = static_cast<std::int64_t>(kPieceBytes / width);
        if (key.info.row > 0) longest = std::max(key.info.row, longest / key.info.row * key.info.row);
        std::int64_t begin = slice.begin;
        do {
          Piece piece;
          piece.key = &key;
          piece.begin = begin;
          piece.end = std::min(begin + longest, slice.end);
          piece.bytes = static_cast<std::size_t>(piece.end - piece.begin) * width;
          if (grouped >= kGroupBytes) {
            ++groups_;
            grouped = 0;
          }
          grouped += piece.bytes;
          piece.group = groups_;
          const auto kind = key.info.average ? SliceInfo::Kind::kAverage : SliceInfo::Kind::kGradient;
          const SliceInfo info{key.info.name, piece.begin, piece.end, key.info.dtype, kind};
          const auto* data = values[static_cast<std::size_t>(slice.key)].data_as<const std::byte>();
          piece.slice = updater_->add_slice(info, data + static_cast<std::size_t>(begin) * width);
          key.parts.push_back({static_cast<int>(pieces_.size()), piece.begin, piece.end});
          pieces_.push_back(std::move(piece));
          begin += longest;
        } while (begin < slice.end);
      }
    }
    take_places();
    return first;
  });
}

void RingPeer::keep_values() {
  on_thread([this] {
    for (Piece& piece : pieces_) piece.valid = true;
    take_held(early_fetches_);
  });
}

void RingPeer::forget_values(int piece) {
  on_thread([&, this] {
    for (auto i = static_cast<std::size_t>(piece); i < pieces_.size(); ++i) pieces_[i].valid = false;
  });
}

void RingPeer::set_rules(std::uint32_t call, const Spec& optimizer) {
  change_rules([&, this] {
    if (call <= optimizer_call_) return false;
    use_rules(call, optimizer);
    return true;
  });
}

void RingPeer::use_rules(std::uint32_t call, const Spec& optimizer) {
  updater_->set_rules(optimizer, "none", {});
  optimizer_call_ = call;
  optimizer_ = optimizer.text();
  used_rate_ = LearningRate::parse(optimizer.options).base();
  if (rate_of_ >= call) return;  // a worker that was faster has set a rate since its own call
  rate_ = used_rate_;
  rate_of_ = call;
}

std::uint32_t RingPeer::optimizer_call() {
  return on_thread([this] { return optimizer_call_; });
}

Spec RingPeer::optimizer() {
  return on_thread([this] { return Spec::parse(optimizer_); });
}

wire::RingRules RingPeer::rules() const {
  wire::RingRules rules;
  rules.set_optimizer_call(optimizer_call_);
  rules.set_optimizer(optimizer_);
  rules.set_rate_call(rate_calls_);
  rules.set_rate(rate_);
  rules.set_rate_of(rate_of_);
  return rules;
}

void RingPeer::take_rules(const wire::RingRules& others) {
  if (others.optimizer_call() > optimizer_call_) use_rules(others.optimizer_call(), Spec::parse(others.optimizer()));
  take_rate(others.rate_of(), others.rate_call(), others.rate());
}

void RingPeer::take_rate(std::uint32_t rate_of, std::uint64_t call, double rate) {
  const bool newer = std::pair(rate_of, call) > std::pair(rate_of_, rate_calls_);
  rate_calls_ = std::max(rate_calls_, call);
  if (!newer) return;
  rate_of_ = rate_of;
  rate_ = rate;
}

void RingPeer::set_learning_rate(double rate) {
  change_rules([&, this] {
    rate_ = rate;
    ++rate_calls_;
    return true;
  });
}

void RingPeer::change_rules(const std::function<bool()>& change) {
  const auto tells = on_thread([&, this] {
    std::vector<std::pair<int, Message>> messages;
    if (!change()) return messages;
    for (const auto& [rank, other] : others_) messages.emplace_back(rank, tell_message(0, true));
    return messages;
  });
  for (const auto& [rank, message] : tells) {
    try {
      node_->ask_and_wait({Role::kWorker, rank}, message);
    } catch (const NetworkError&) {
      if (const std::exception_ptr failure = node_->failure()) std::rethrow_exception(failure);
    }
  }
}

StoreReport RingPeer::report() {
  return on_thread([this] {
    StoreReport report;
    report.delays = updater_->delays();
    report.pushes = applied_;
    report.refused = refused_;
    report.wait_seconds = waited_seconds_;
    report.bytes_to_hosts = sent_to_hosts_;
    return report;
  });
}

// ---- calls

void RingPeer::start(std::shared_ptr<RingCall> call, Completion completion) {
  call->completion.emplace(std::move(completion));
  std::vector<std::pair<const std::byte*, const std::byte*>> outputs;  // begin and end
  for (RingCall::Item& item : call->items) {
    if (!item.gradient.is_none()) {
      item.owner = std::make_shared<NDArray>(item.gradient);
      item.source = item.gradient.data_as<const std::byte>();
    }
    if (item.out.is_none()) continue;
    item.target = static_cast<std::byte*>(item.out.data());
    outputs.emplace_back(item.target, item.target + item.out.bytes());
    const auto& shared = item.key->shared;
    item.shared = shared && item.out.shares_memory_with(*shared) && item.target == shared->data();
  }
  // Which gradients overlap an output? Each output gets the furthest end of those that begin before it.
  std::ranges::sort(outputs);
  for (std::size_t i = 1; i < outputs.size(); ++i)
    outputs[i].second = std::max(outputs[i].second, outputs[i - 1].second);
  for (RingCall::Item& item : call->items) {
    if (item.gradient.is_none()) continue;
    const std::byte* const end = item.source + item.gradient.bytes();
    const auto behind = std::ranges::lower_bound(outputs, end, {}, [](const auto& output) { return output.first; });
    item.overwritten = behind != outputs.begin() && std::prev(behind)->second > item.source;
  }
  post([this, call = std::move(call)] { run(call); });
}

void RingPeer::run(const std::shared_ptr<RingCall>& call) {
  if (failure_) return call->end(failure_);
  call->since = std::chrono::steady_clock::now();
  ++call->left;
  std::vector<int> pushed;
  for (const RingCall::Item& item : call->items) {
    const std::size_t width = size_of(item.key->info.dtype);
    for (std::size_t i = 0; i < item.key->parts.size(); ++i) {
      const RingKey::Part& part = item.key->parts[i];
      Piece& piece = pieces_[static_cast<std::size_t>(part.piece)];
      const std::size_t offset = static_cast<std::size_t>(part.begin) * width;
      if (!item.gradient.is_none()) {
        ++given_[call->round];
        if (call->round < piece.next_round) {
          ++refused_;
        } else {
          piece.mine = call;
          const EncodedGradient::Slice sent =
              item.encoded ? item.encoded->slices[i] : EncodedGradient::Slice{offset, 0};
          piece.given = {item.owner, item.source + sent.offset, call->examples, 1, sent.bytes};
          piece.given.overwritten = item.overwritten;
          ++call->left;
          pushed.push_back(part.piece);
        }
      }
      if (item.out.is_none()) continue;
      piece.readers.push_back({call, item.target + offset, item.need, item.shared});
      ++call->left;
    }
  }
  if (!recovering_) send(call, pushed);
  for (const RingCall::Item& item : call->items)
    if (!item.out.is_none())
      for (const RingKey::Part& part : item.key->parts) serve_readers(pieces_[static_cast<std::size_t>(part.piece)]);
  finish(call);
}

void RingPeer::finish(const std::shared_ptr<RingCall>& call) {
  --call->left;
  end_if_done(call);
}

void RingPeer::end_if_done(const std::shared_ptr<RingCall>& call) {
  if (call->left > 0 || call->in_flight > 0) return;
  waited_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - call->since).count();
  call->end(nullptr);
}

void RingPeer::send(const std::shared_ptr<RingCall>& call, const std::vector<int>& pieces) {
  struct Outgoing {
    wire::RingPush body;
    PayloadWriter payload;
    std::size_t bytes = 0;
  };
  std::map<int, Outgoing> outgoing;
  const auto flush = [&](int owner) {
    Outgoing message = std::move(outgoing[owner]);
    outgoing.erase(owner);
    message.body.set_generation(generation_);
    message.body.set_round(call->round);
    message.body.set_examples(call->examples);
    message.body.set_workers(1);
    message.body.set_rate_call(rate_calls_);
    message.body.set_rate(rate_);
    ++call->unacked;
    ++call->in_flight;
    unacked_.insert(call->round);
    calls_in_flight_.insert(call);
    submit(owner, message_of(MessageKind::kRingPush, message.body, message.payload.finish()), call->priority,
           [this, call, generation = generation_](const std::optional<Message>& answer) {
             wire::RingTaken taken;
             if (answer && taken.ParseFromString(answer->body)) acked(generation, call, call->round, taken.stale());
             if (--call->in_flight > 0) return;
             calls_in_flight_.erase(call);
             end_if_done(call);
           });
  };
  for (const int number : pieces) {
    Piece& piece = pieces_[static_cast<std::size_t>(number)];
    piece.given.rate_call = rate_calls_;
    piece.given.rate = rate_;
    const Place& place = places_[piece.group];
    const int owner = place.sends_to();
    if (owner < 0) continue;
    Outgoing& message = outgoing[owner];
    message.body.add_pieces(static_cast<std::uint32_t>(number));
    const std::size_t bytes = run_bytes(piece, piece.given.encoded);
    message.body.add_bytes(piece.given.encoded);
    // Twins write their outputs without waiting for each other, so a gradient that an output overwrites is copied. A
    // call of twins ends when the other has answered, and the gradient may change from then on.
    const bool twins = place.twin >= 0;
    message.payload.add(piece.given.data, bytes, twins && piece.given.overwritten ? nullptr : piece.given.owner, twins);
    message.bytes += bytes;
    if (message.bytes >= message_bytes(owner)) flush(owner);
  }
  while (!outgoing.empty()) flush(outgoing.begin()->first);
  for (const int number : pieces) {
    const Piece& piece = pieces_[static_cast<std::size_t>(number)];
    const Place& place = places_[piece.group];
    if (place.above < 0 || !place.below.empty()) give(number, call->round, rank_, piece.given);
  }
  if (call->unacked == 0) call->sent.reset();
}

void RingPeer::acked(std::uint64_t generation, const std::shared_ptr<RingCall>& call, std::uint64_t round, bool stale) {
  if (generation != generation_) return;
  behind_ = behind_ || stale;
  if (stale) return;
  unacked_.erase(unacked_.find(round));
  if (--call->unacked == 0) call->sent.reset();
  update_over();
}

}  // namespace paceline

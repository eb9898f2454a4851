// The peer's thread, and rounds: when they are closed, who is past what. Calls of this worker: ring_calls.cc; messages
// that arrive and changes of the ring: ring_recovery.cc.
#include "exchange/ring_peer.h"

#include <paceline/cores.h>
#include <paceline/detail/host_memory.h>
#include <paceline/engine.h>
#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>

#include "payload.h"
#include "workers.pb.h"

namespace paceline {
namespace {

// Of statistics, over those who contributed: examples do not count.
template <class T, class Contributions>
void average(const Contributions& from, std::size_t count, T* mean) {
  std::fill_n(mean, count, T(0));
  for (const auto& [rank, given] : from) {
    const T* source = reinterpret_cast<const T*>(given.data);
    for (std::size_t i = 0; i < count; ++i) mean[i] += source[i] / static_cast<T>(from.size());
  }
}

}  // namespace

void RingCall::end(std::exception_ptr error) {
  if (!completion) return;
  std::optional<Completion> ended = std::move(completion);
  completion.reset();
  sent.reset();
  applied.reset();
  if (error)
    ended->fail(std::move(error));
  else
    ended->done();
}

RingPeer::RingPeer(const ClusterConfig& config)
    : config_(config), message_bytes_(config.transport == "tcp" ? kNetworkMessageBytes : kSharedMessageBytes) {
  node_ = std::make_unique<Node>(
      config_, Node::Handlers{[this](const Request& request) { post([this, request] { on_request(request); }); },
                              [this](const Roster& roster) { post([this, roster] { on_roster(roster); }); }});
  node_->join();
  const Roster roster = node_->roster();
  newcomer_ = !roster.find({Role::kWorker, node_->rank()})->entered;
  post([this, roster] { on_roster(roster); });
  thread_ = std::thread([this] {
    name_thread("ring");
    become_single_threaded();
    never_hold_back_this_thread();
    loop();
  });
}

RingPeer::~RingPeer() {
  {
    Lock lock(mutex_);
    stopping_ = true;
  }
  posted_.notify_one();
  thread_.join();
}

void RingPeer::close(bool leave) {
  if (leave) node_->leave();
  post([this] {
    fail_all(std::make_exception_ptr(NetworkError("this process has left the job")));
    for (const auto& [rank, outbox] : outboxes_) outbox->close();
  });
  const auto done = std::make_shared<std::promise<void>>();
  post([done] { done->set_value(); });
  done->get_future().get();
  node_.reset();
}

void RingPeer::post(Job job) {
  {
    Lock lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  posted_.notify_one();
}

void RingPeer::loop() {
  std::deque<Job> jobs;
  for (;;) {
    {
      Lock lock(mutex_);
      posted_.wait(mutex_, [this]() REQUIRES(mutex_) { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      jobs.swap(jobs_);
    }
    for (; !jobs.empty(); jobs.pop_front()) {
      try {
        jobs.front()();
        after_job();
      } catch (const std::exception& error) {
        LOG(ERROR) << error.what();
        fail_all(std::current_exception());
      }
    }
  }
}

void RingPeer::after_job() {
  flush_results();
  check_settled();
  const bool out =
      std::all_of(others_.begin(), others_.end(), [](const auto& entry) { return entry.second.unacked_results == 0; });
  if (flushes_.empty() || recovering_ || behind_ || !out) return;
  for (std::promise<void>& flush : std::exchange(flushes_, {})) flush.set_value();
}

Outbox& RingPeer::outbox(int rank) {
  auto& outbox = outboxes_[rank];
  if (!outbox)
    outbox = std::make_unique<Outbox>(*node_, PeerId{Role::kWorker, rank}, message_bytes_, config_.transport == "tcp");
  return *outbox;
}

Message RingPeer::message_of(MessageKind kind, const google::protobuf::MessageLite& body, std::vector<Frame> payload) {
  Message message;
  message.header.kind = kind;
  message.body = body.SerializeAsString();
  message.payload = std::move(payload);
  return message;
}

void RingPeer::submit(int rank, Message message, int priority, std::function<void(std::optional<Message>)> on_answer) {
  std::size_t bytes = 0;
  for (const Frame& frame : message.payload) bytes += frame.size;
  outbox(rank).submit(
      priority, bytes, std::move(message),
      [this, on_answer = std::move(on_answer)](std::optional<Message> answer, std::exception_ptr error) {
        post([this, on_answer, error, answer = std::move(answer)]() mutable {
          if (failure_) return;
          try {
            if (error) std::rethrow_exception(error);
          } catch (const NetworkError&) {
            // The peer is lost or has left; the new roster says so, too.
          } catch (const std::exception&) {
            return fail_all(error);
          }
          on_answer(std::move(answer));
        });
      });
}

// ---- rounds, at the owner

void RingPeer::give(int number, std::uint64_t round, int from, Given given) {
  Piece& piece = pieces_[static_cast<std::size_t>(number)];
  if (round < piece.next_round) return;
  if (from != rank_) others_.at(from).idle = false;
  piece.open[round].try_emplace(from, std::move(given));
  try_close(number);
}

void RingPeer::try_close(int number) {
  Piece& piece = pieces_[static_cast<std::size_t>(number)];
  while (!piece.open.empty()) {
    const auto& [round, contributions] = *piece.open.begin();
    bool missing = contributions.count(rank_) == 0 && over_ <= round;
    for (const auto& [rank, other] : others_) {
      if (contributions.count(rank) > 0 || other.over > round) continue;
      missing = true;
      if (other.idle) want_from(rank, round + 1);
    }
    if (missing) return;
    close_round(number);
  }
}

void RingPeer::try_close_all() {
  for (std::size_t number = 0; number < pieces_.size(); ++number)
    if (!pieces_[number].open.empty()) try_close(static_cast<int>(number));
}

void RingPeer::close_round(int number) {
  Piece& piece = pieces_[static_cast<std::size_t>(number)];
  const auto closed = piece.open.extract(piece.open.begin());
  const KeyInfo& info = piece.key->info;
  const std::uint64_t version = piece.version;
  std::int64_t examples = 0;
  std::vector<Contribution> contributions;
  for (const auto& [rank, given] : closed.mapped()) {
    examples += given.examples;
    contributions.push_back({rank == rank_ ? rank_ : -1, version, given.examples, given.data});
  }
  use_rate(rate_);
  const auto update = [&](void* mean) {
    return [&, mean](void* copy) { updater_->apply_round(piece.slice, contributions, {mean, copy}); };
  };
  if (!info.average && updater_->only_weights()) {
    apply(number, closed.key(), update(nullptr));
    if (!others_.empty())
      add_result(number, closed.key(), version, examples, updater_->pull(piece.slice, -1).data, true);
    return;
  }
  std::shared_ptr<std::byte[]> mean;
  if (!others_.empty() || info.average) mean = detail::allocate_host(piece.bytes);
  if (info.average) {
    const auto count = static_cast<std::size_t>(piece.end - piece.begin);
    if (info.dtype == DType::kFloat32)
      average(closed.mapped(), count, reinterpret_cast<float*>(mean.get()));
    else
      average(closed.mapped(), count, reinterpret_cast<double*>(mean.get()));
    contributions = {{rank_, version, examples, mean.get()}};
  }
  apply(number, closed.key(), update(info.average ? nullptr : mean.get()));
  if (!others_.empty()) add_result(number, closed.key(), version, examples, std::move(mean), false);
}

void RingPeer::add_result(int number, std::uint64_t round, std::uint64_t version, std::int64_t examples,
                          std::shared_ptr<const std::byte[]> data, bool weights) {
  if (results_.round != round || results_.examples != examples) flush_results();
  results_.round = round;
  results_.examples = examples;
  results_.bytes += pieces_[static_cast<std::size_t>(number)].bytes;
  results_.pieces.push_back(number);
  results_.versions.push_back(version);
  results_.weights.push_back(weights);
  results_.data.push_back(std::move(data));
  if (results_.bytes >= message_bytes_) flush_results();
}

void RingPeer::flush_results() {
  if (results_.pieces.empty()) return;
  const Results results = std::exchange(results_, {});
  wire::RingResult body;
  body.set_generation(generation_);
  body.set_round(results.round);
  body.set_examples(results.examples);
  body.set_rate(rate_);
  PayloadWriter payload;
  for (std::size_t i = 0; i < results.pieces.size(); ++i) {
    body.add_pieces(static_cast<std::uint32_t>(results.pieces[i]));
    body.add_versions(results.versions[i]);
    body.add_weights(results.weights[i]);
    payload.add(results.data[i].get(), pieces_[static_cast<std::size_t>(results.pieces[i])].bytes, results.data[i]);
  }
  const std::vector<Frame> frames = payload.finish();
  constexpr int kSoonest = 1 << 30;
  for (auto& [rank, other] : others_) {
    ++other.unacked_results;
    submit(rank, message_of(MessageKind::kRingResult, body, frames), kSoonest,
           [this, rank = rank, generation = generation_](const std::optional<Message>& answer) {
             if (generation != generation_ || !answer) return;
             wire::RingTaken taken;
             if (taken.ParseFromString(answer->body) && taken.stale())
               behind_ = true;
             else
               --others_.at(rank).unacked_results;
           });
  }
}

// ---- rounds, at every worker

void RingPeer::apply(int number, std::uint64_t round, const std::function<void(void* copy)>& update) {
  Piece& piece = pieces_[static_cast<std::size_t>(number)];
  std::optional<Reader> reader;  // gets the weights while they pass by
  const auto ready = std::find_if(piece.readers.begin(), piece.readers.end(),
                                  [round](const Reader& waiting) { return waiting.need <= round + 1; });
  if (ready != piece.readers.end()) {
    reader = std::move(*ready);
    piece.readers.erase(ready);
  }
  update(reader ? reader->out : nullptr);
  ++applied_;
  ++piece.version;
  piece.next_round = round + 1;
  if (piece.mine && piece.mine->round < piece.next_round) {
    piece.given = {};
    finish(std::exchange(piece.mine, nullptr));
  }
  if (reader) finish(reader->call);
  serve_readers(piece);
}

void RingPeer::use_rate(double rate) {
  if (rate == std::exchange(used_rate_, rate)) return;
  updater_->set_learning_rate(rate);
}

void RingPeer::serve_readers(Piece& piece) {
  std::uint64_t later = 0;
  std::vector<Reader> readers = std::exchange(piece.readers, {});
  for (Reader& reader : readers) {
    if (reader.need <= std::max(piece.next_round, settled_)) {
      updater_->read(piece.slice, -1, reader.out);
      finish(reader.call);
      continue;
    }
    if (!piece.mine || piece.mine->round + 1 < reader.need) later = std::max(later, reader.need);
    piece.readers.push_back(std::move(reader));
  }
  if (later > 0) settle(later);
}

void RingPeer::end_step(std::uint64_t number) {
  post([this, number] {
    ended_ = std::max(ended_, number + 1);
    update_over();
  });
}

void RingPeer::note_partial_step(std::uint64_t number) {
  post([this, number] { partial_ = std::max(partial_, number + 1); });
}

void RingPeer::update_over() {
  if (recovering_) return;
  const std::uint64_t before = over_;
  over_ = unacked_.empty() ? ended_ : std::min(ended_, *unacked_.begin());
  const bool news = over_ > told_ && (idle_ || partial_ > told_ || asked_ > told_);
  if (news || (idle_ && !told_idle_)) {
    told_ = over_;
    for (const auto& [rank, other] : others_) tell(rank, 0);
  }
  told_idle_ = idle_;
  if (over_ > before) try_close_all();
}

void RingPeer::let_pass(std::uint64_t round) {
  if (!idle_ || ended_ > round) return;
  ended_ = round + 1;
  update_over();
}

Message RingPeer::tell_message(std::uint64_t want) {
  wire::RingTell body;
  body.set_generation(generation_);
  body.set_number(++tells_);
  body.set_over(over_);
  body.set_idle(idle_);
  body.set_want(want);
  body.set_rate_call(rate_calls_);
  body.set_rate(rate_);
  Message message;
  message.header.kind = MessageKind::kRingTell;
  message.body = body.SerializeAsString();
  return message;
}

void RingPeer::tell(int rank, std::uint64_t want) {
  constexpr int kSoonest = 1 << 30;
  submit(rank, tell_message(want), kSoonest, [](const std::optional<Message>&) {});
}

void RingPeer::want_from(int rank, std::uint64_t over) {
  Other& other = others_.at(rank);
  if (other.over >= over || other.wanted >= over) return;
  other.wanted = over;
  tell(rank, over);
}

void RingPeer::enter_idle(std::uint64_t clock) {
  on_thread([&, this] {
    idle_ = true;
    ended_ = std::max({ended_, clock, asked_});
    for (const Piece& piece : pieces_)
      if (!piece.open.empty()) ended_ = std::max(ended_, piece.open.rbegin()->first + 1);
    update_over();
  });
}

std::uint64_t RingPeer::leave_idle(std::uint64_t clock, bool settled) {
  return on_thread([&, this] {
    ended_ = std::max(ended_, clock);
    update_over();
    idle_ = told_idle_ = false;
    if (settled) settled_ = std::max(settled_, ended_);
    return ended_;
  });
}

void RingPeer::flush() {
  std::promise<void> flushed;
  std::future<void> done = flushed.get_future();
  on_thread([&, this] { flushes_.push_back(std::move(flushed)); });
  done.get();
}

// ---- nothing of an earlier round will come

bool RingPeer::settled_here(std::uint64_t need) {
  if (recovering_) return false;
  if (need > 0) let_pass(need - 1);
  bool all = over_ >= need;
  for (const auto& [rank, other] : others_) {
    if (other.over >= need) continue;
    all = false;
    want_from(rank, need);
  }
  return all && std::none_of(pieces_.begin(), pieces_.end(), [need](const Piece& piece) {
           return !piece.open.empty() && piece.open.begin()->first < need;
         });
}

void RingPeer::settle(std::uint64_t need) {
  if (need <= settling_ || need <= settled_) return;
  settling_ = need;
  if (recovering_) return;  // asked when it is over
  settle_left_ = static_cast<int>(others_.size());
  wire::RingAsk body;
  body.set_what(wire::RingAsk::SETTLE);
  body.set_generation(generation_);
  body.set_round(need);
  for (const auto& [rank, other] : others_)
    submit(rank, message_of(MessageKind::kRingAsk, body), 0,
           [this, need, generation = generation_](const std::optional<Message>& answer) {
             if (answer && generation == generation_ && need == settling_) --settle_left_;
           });
}

void RingPeer::check_settled() {
  std::erase_if(settle_requests_, [this](const Settling& settling) {
    const auto from = others_.find(settling.from);
    if (from == others_.end()) return true;
    if (!settled_here(settling.need)) return false;
    flush_results();
    if (from->second.unacked_results > 0) return false;
    settling.request.reply({});
    return true;
  });
  if (settling_ <= settled_ || settle_left_ > 0 || !settled_here(settling_)) return;
  settled_ = settling_;
  for (Piece& piece : pieces_) serve_readers(piece);
}

void RingPeer::fail_all(std::exception_ptr error) {
  if (failure_) return;
  failure_ = error;
  for (Piece& piece : pieces_) {
    piece.open.clear();
    piece.given = {};
    if (piece.mine) std::exchange(piece.mine, nullptr)->end(error);
    for (const Reader& reader : std::exchange(piece.readers, {})) reader.call->end(error);
  }
  for (std::promise<void>& flush : std::exchange(flushes_, {})) flush.set_exception(error);
  if (auto entering = std::exchange(entering_, {})) entering->set_exception(error);
  held_.clear();
  early_results_.clear();
  early_fetches_.clear();
  settle_requests_.clear();
  others_.clear();
}

}  // namespace paceline

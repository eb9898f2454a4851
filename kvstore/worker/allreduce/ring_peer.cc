// The thread of RingPeer, and the promises of each worker to be over a round (ring_peer.h). ring_rounds.cc closes
// rounds. ring_calls.cc handles the calls of this worker. ring_recovery.cc handles incoming messages and changes of the
// ring.
#include "allreduce/ring_peer.h"

#include <paceline/cores.h>
#include <paceline/detail/host_memory.h>
#include <paceline/engine.h>
#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>

#include "payload.h"
#include "transport/transport_setting.h"
#include "workers.pb.h"

namespace paceline {
void RingCall::end(std::exception_ptr error) {
  if (!completion) return;
  std::optional<Completion> ended = std::move(completion);
  completion.reset();
  if (error && applied) applied->delivery()->fail(error);
  sent.reset();
  applied.reset();
  if (error)
    ended->fail(std::move(error));
  else
    ended->done();
}

RingPeer::RingPeer(const ClusterConfig& config, Aggregate aggregate, std::shared_ptr<const Codec> push,
                   std::shared_ptr<const Codec> mean)
    : config_(config),
      lends_memory_(TransportSetting::parse(config.transport).lends_memory()),
      aggregate_(aggregate),
      push_codec_(std::move(push)),
      mean_codec_(std::move(mean)) {
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
  node_->close();
}

void RingPeer::post(Job job) {
  Lock lock(mutex_);
  jobs_.push_back(std::move(job));
  posted_.notify_one();  // under the lock, because the job may let the owner destroy this object
}

void RingPeer::loop() {
  std::deque<Job> jobs;
  for (;;) {
    {
      Lock lock(mutex_);
      posted_.wait(mutex_, [this]() PACELINE_REQUIRES(mutex_) { return stopping_ || !jobs_.empty(); });
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
  flush_sums();
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
    outbox = std::make_unique<Outbox>(*node_, PeerId{Role::kWorker, rank}, message_bytes(rank), !shares_memory(rank));
  return *outbox;
}

void RingPeer::submit(int rank, Message message, int priority, std::function<void(std::optional<Message>)> on_answer) {
  std::size_t bytes = 0;
  for (const Frame& frame : message.payload) bytes += frame.size;
  if (const auto to = others_.find(rank); to != others_.end() && !to->second.near)
    sent_to_hosts_ += static_cast<std::int64_t>(bytes);
  outbox(rank).submit(
      priority, bytes, std::move(message),
      [this, on_answer = std::move(on_answer)](std::optional<Message> answer, const std::exception_ptr& error) {
        post([this, on_answer, error, answer = std::move(answer)]() mutable {
          if (failure_) return;
          try {
            if (error) std::rethrow_exception(error);
          } catch (const NetworkError&) {
            // The other worker is lost or has left. The new roster says so too.
          } catch (const std::exception&) {
            return fail_all(error);
          }
          on_answer(std::move(answer));
        });
      });
}

// ---- rounds, at every worker

void RingPeer::apply(int number, std::uint64_t round, const std::function<void(const RoundCopies& out)>& update) {
  Piece& piece = pieces_[static_cast<std::size_t>(number)];
  std::optional<Reader> reader;  // gets a copy of the weights in the same pass
  const auto ready = std::find_if(piece.readers.begin(), piece.readers.end(),
                                  [round](const Reader& waiting) { return waiting.need <= round + 1; });
  if (ready != piece.readers.end()) {
    reader = std::move(*ready);
    piece.readers.erase(ready);
  }
  // Only twins may keep the weights in the key's shared array. Other workers send results from the memory of the
  // weights, and a write to the array would change results in flight.
  RoundCopies out;
  if (reader && reader->shared && places_[piece.group].twin >= 0)
    out.place = {piece.key->shared, reader->out};
  else if (reader)
    out.weight = reader->out;
  update(out);
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
    const auto given = given_.find(number);
    const std::size_t pieces = given == given_.end() ? 0 : given->second;
    given_.erase(given_.begin(), given_.upper_bound(number));
    // The owners wait for pieces that were not pushed, or whose gradient has failed, until this worker promises to be
    // over the round.
    if (pieces < pieces_.size()) partial_ = std::max(partial_, number + 1);
    ended_ = std::max(ended_, number + 1);
    update_over();
  });
}

void RingPeer::update_over() {
  if (recovering_) return;
  const std::uint64_t before = over_;
  over_ = unacked_.empty() ? ended_ : std::min(ended_, *unacked_.begin());
  passed_ = host_over();
  const auto news = [this](std::uint64_t now, std::uint64_t told) {
    return now > told && (idle_ || partial_ > told || asked_ > told);
  };
  if (news(over_, told_) || news(passed_, told_passed_) || (idle_ && !told_idle_)) {
    told_ = over_;
    told_passed_ = passed_;
    for (const auto& [rank, other] : others_) tell(rank, 0);
  }
  for (const auto& [rank, other] : others_)
    if (hosts_.together(rank, rank_) && other.idle) want_from(rank, std::max(asked_, std::min(partial_, over_)));
  told_idle_ = idle_;
  if (over_ > before) try_close_all();
}

// The first round for which this worker may still send a sum of its host.
std::uint64_t RingPeer::host_over() const {
  std::uint64_t over = sums_under_way_.empty() ? over_ : std::min(over_, *sums_under_way_.begin());
  bool alone = true;
  for (const auto& [rank, other] : others_) {
    if (!hosts_.together(rank, rank_)) continue;
    alone = false;
    over = std::min(over, other.over);
  }
  if (alone) return over;
  for (const Piece& piece : pieces_)
    if (!piece.open.empty() && places_[piece.group].above >= 0) over = std::min(over, piece.open.begin()->first);
  return over;
}

void RingPeer::let_pass(std::uint64_t round) {
  if (!idle_ || ended_ > round) return;
  ended_ = round + 1;
  update_over();
}

Message RingPeer::tell_message(std::uint64_t want, bool with_rules) {
  wire::RingTell body;
  body.set_generation(generation_);
  body.set_number(++tells_);
  body.set_over(over_);
  body.set_passed(passed_);
  body.set_idle(idle_);
  body.set_want(want);
  body.set_rate_call(rate_calls_);
  body.set_rate(rate_);
  body.set_rate_of(rate_of_);
  if (with_rules) *body.mutable_rules() = rules();
  return message_of(MessageKind::kRingTell, body);
}

void RingPeer::tell(int rank, std::uint64_t want) {
  constexpr int kSoonest = 1 << 30;
  submit(rank, tell_message(want), kSoonest, [](const std::optional<Message>&) {});
}

void RingPeer::want_from(int rank, std::uint64_t over) {
  Other& other = others_.at(rank);
  if ((hosts_.together(rank, rank_) ? other.over : other.passed) >= over || other.wanted >= over) return;
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

// ---- settling: waiting until nothing of an earlier round can arrive any more

bool RingPeer::settled_here(std::uint64_t need) {
  if (recovering_) return false;
  if (need > 0) let_pass(need - 1);
  bool all = passed_ >= need;
  for (const auto& [rank, other] : others_) {
    if ((hosts_.together(rank, rank_) ? other.over : other.passed) >= need) continue;
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
  if (recovering_) return;  // end_recovery() asks
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
    const bool out = std::all_of(others_.begin(), others_.end(), [&, this](const auto& entry) {
      return entry.second.unacked_results == 0 || !hosts_.together(entry.first, from->first);
    });
    if (!out) return false;
    settling.request.reply({});
    return true;
  });
  if (settling_ <= settled_ || settle_left_ > 0 || !settled_here(settling_)) return;
  settled_ = settling_;
  for (Piece& piece : pieces_) serve_readers(piece);
}

void RingPeer::fail_all(const std::exception_ptr& error) {
  if (failure_) return;
  failure_ = error;
  for (Piece& piece : pieces_) {
    piece.open.clear();
    piece.given = {};
    if (piece.mine) std::exchange(piece.mine, nullptr)->end(error);
    for (const Reader& reader : std::exchange(piece.readers, {})) reader.call->end(error);
  }
  for (const auto& call : std::exchange(calls_in_flight_, {})) call->end(error);
  for (std::promise<void>& flush : std::exchange(flushes_, {})) flush.set_exception(error);
  if (auto entering = std::exchange(entering_, {})) entering->set_exception(error);
  results_.clear();
  sums_.clear();
  held_.clear();
  early_results_.clear();
  early_fetches_.clear();
  settle_requests_.clear();
  others_.clear();
}

}  // namespace paceline

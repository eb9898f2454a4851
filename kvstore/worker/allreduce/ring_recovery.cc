// Messages of other workers, and the treatment of open rounds when a worker is lost, leaves or returns.
#include <paceline/error.h>
#include <paceline/log.h>
#include <paceline/optimizer.h>

#include <algorithm>

#include "allreduce/ring_peer.h"
#include "checkpoint/slice_state.h"
#include "parse_body.h"
#include "payload.h"
#include "workers.pb.h"

namespace paceline {
namespace {

constexpr std::size_t kFetchBytes = std::size_t{8} << 20;
constexpr std::uint64_t kMostRounds = std::uint64_t{1} << 62;

Message taken(bool stale) {
  wire::RingTaken body;
  body.set_stale(stale);
  Message message;
  message.body = body.SerializeAsString();
  return message;
}

void expect_round(std::uint64_t round) {
  if (round >= kMostRounds) throw Corrupt(str("no job has a round ", round));
}

void expect_examples(std::int64_t examples) {
  if (examples < 0) throw Corrupt(str("a worker speaks of ", examples, " examples"));
}

}  // namespace

void RingPeer::on_request(const Request& request) {
  if (failure_) return;
  try {
    switch (request.message().header.kind) {
      case MessageKind::kRingPush: return on_push(request);
      case MessageKind::kRingResult: return on_result(request);
      case MessageKind::kRingTell: return on_tell(request);
      case MessageKind::kRingAsk: return on_ask(request);
      default: throw InvalidArgument(std::string("a worker does not answer ") + name_of(request.message().header.kind));
    }
  } catch (const Error& error) {
    request.refuse(error);
  }
}

// True if the request can be handled now. Otherwise it is answered as stale, or kept for later.
bool RingPeer::in_step(const Request& request, std::uint64_t generation) {
  if (is_over(generation)) {
    request.reply(taken(true));
    return false;
  }
  if (!started_ || recovering_ || generation > generation_) {
    held_.push_back(request);
    return false;
  }
  if (others_.count(request.from().rank) == 0) throw NetworkError(name_of(request.from()) + " is not in the ring");
  return true;
}

void RingPeer::take_held(std::vector<Request>& requests) {
  for (const Request& request : std::exchange(requests, {})) on_request(request);
}

void RingPeer::on_push(const Request& request) {
  const auto body = parse_body<wire::RingPush>(request.message());
  if (!in_step(request, body.generation())) return;
  const auto arrived = std::make_shared<Arrived>();
  arrived->request = request;
  PayloadReader payload(arrived->request.message().payload);
  std::vector<std::pair<int, Given>> gradients;
  expect_round(body.round());
  expect_examples(body.examples());
  if (body.workers() < 1 || body.workers() > static_cast<std::uint32_t>(config_.workers))
    throw Corrupt(str("a push has the gradients of ", body.workers(), " workers"));
  if (!(body.rate() >= 0)) throw Corrupt(str("a push has a learning rate of ", body.rate()));
  if (body.bytes_size() != body.pieces_size()) throw Corrupt("a push does not tell the size of each piece");
  for (int i = 0; i < body.pieces_size(); ++i) {
    const std::uint32_t number = body.pieces(i);
    if (number >= pieces_.size() || std::ranges::count(places_[pieces_[number].group].below, request.from().rank) == 0)
      throw Corrupt(str("piece ", number, " is not worker ", rank_, "'s"));
    const std::byte* const data = next_run(payload, pieces_[number], body.bytes(i), push_codec_.get());
    gradients.emplace_back(static_cast<int>(number), Given{arrived, data, body.examples(), body.workers(),
                                                           body.bytes(i), body.rate_call(), body.rate()});
  }
  payload.expect_end();
  arrived->copies = payload.take_copies();
  request.reply(taken(false));
  let_pass(body.round());
  for (auto& [number, given] : gradients) give(number, body.round(), request.from().rank, std::move(given));
}

void RingPeer::on_result(const Request& request) {
  const auto body = parse_body<wire::RingResult>(request.message());
  if (!in_step(request, body.generation())) return;
  if (body.versions_size() != body.pieces_size() || body.weights_size() != body.pieces_size() ||
      body.bytes_size() != body.pieces_size())
    throw Corrupt("a result does not tell the version, the kind and the size of each piece");
  expect_round(body.round());
  expect_examples(body.examples());
  for (int i = 0; i < body.pieces_size(); ++i)
    if (body.weights(i) && body.bytes(i) > 0) throw Corrupt("a result has weights encoded");
  const auto relay = std::make_shared<Relay>(Relay{request});
  pass_on(request, body, relay);
  if (!take_result(request)) early_results_.push_back(request);
  if (relay->left == 0) request.reply(taken(false));
  // A result that came too early may fit now.
  for (bool progress = !early_results_.empty(); progress;)
    progress = std::erase_if(early_results_, [this](const Request& early) { return take_result(early); }) > 0;
}

// Returns false if a result of an earlier round is missing. The caller then tries again later.
bool RingPeer::take_result(const Request& request) {
  const auto body = parse_body<wire::RingResult>(request.message());
  const auto arrived = std::make_shared<Arrived>();
  arrived->request = request;
  PayloadReader payload(request.message().payload);
  use_rate(body.rate());
  std::vector<const std::byte*> data;
  for (int i = 0; i < body.pieces_size(); ++i) {
    if (body.pieces(i) >= pieces_.size()) throw Corrupt(str("there is no piece ", body.pieces(i)));
    data.push_back(next_run(payload, pieces_[body.pieces(i)], body.bytes(i), mean_codec_.get()));
  }
  payload.expect_end();
  arrived->copies = payload.take_copies();
  bool whole = true;
  for (int i = 0; i < body.pieces_size(); ++i) {
    const Piece& piece = pieces_[body.pieces(i)];
    const std::uint64_t version = piece.version;
    whole = whole && body.versions(i) <= version;
    if (body.versions(i) != version) continue;
    const std::byte* bytes = data[static_cast<std::size_t>(i)];
    apply(static_cast<int>(body.pieces(i)), body.round(), [&](const RoundCopies& out) {
      if (body.weights(i))
        updater_->take_round(piece.slice, {arrived, bytes}, body.examples(), rank_, out.weight);
      else
        updater_->apply_round(
            piece.slice,
            {{rank_, version, body.examples(), bytes, body.bytes(i) > 0 ? mean_codec_.get() : nullptr, body.bytes(i)}},
            out);
    });
  }
  return whole;
}

void RingPeer::on_tell(const Request& request) {
  const auto body = parse_body<wire::RingTell>(request.message());
  for (const std::uint64_t round : {body.over(), body.passed(), body.want()}) expect_round(round);
  if (body.has_rules()) take_rules(body.rules());
  take_rate(body.rate_of(), body.rate_call(), body.rate());
  if (!in_step(request, body.generation())) return;
  const int rank = request.from().rank;
  Other& other = others_.at(rank);
  other.over = std::max(other.over, body.over());
  other.passed = std::max(other.passed, body.passed());
  if (body.number() > other.heard) {
    other.heard = body.number();
    other.idle = body.idle();
  }
  request.reply(taken(false));
  if (body.want() > 0) {
    let_pass(body.want() - 1);
    if (passed_ >= body.want())
      tell(rank, 0);
    else
      asked_ = std::max(asked_, body.want());
  }
  update_over();
  try_close_all();
}

void RingPeer::on_ask(const Request& request) {
  const auto body = parse_body<wire::RingAsk>(request.message());
  switch (body.what()) {
    case wire::RingAsk::FETCH: return answer_fetch(request);
    case wire::RingAsk::SETTLE:
      expect_round(body.round());
      settle_requests_.push_back({request, body.round(), request.from().rank});
      return;
    default: break;
  }
  if (is_over(body.generation())) throw NetworkError("the ring has changed since");
  if (!started_ || body.generation() > generation_) {
    held_.push_back(request);
    return;
  }
  wire::RingState state;
  state.set_over(frozen_over_);
  for (const auto& [loads, version] : frozen_) {
    state.add_loads(loads);
    state.add_versions(version);
  }
  *state.mutable_rules() = rules();
  request.reply(message_of(MessageKind::kReply, state));
}

// ---- the ring changes

void RingPeer::on_roster(const Roster& roster) {
  if (failure_) return;
  if (const std::exception_ptr failure = node_->failure()) return fail_all(failure);
  if (roster.epoch <= generation_) return;
  rank_ = node_->rank();
  std::vector<int> live;
  std::map<int, Other> others;
  std::map<int, std::string> hosts;
  for (const Peer& peer : roster.peers) {
    if (peer.id.role != Role::kWorker || !peer.alive || !peer.entered) continue;
    live.push_back(peer.id.rank);
    hosts[peer.id.rank] = peer.host;
    if (peer.id.rank == rank_) continue;
    const auto known = others_.find(peer.id.rank);
    Other& other = others[peer.id.rank];
    if (known != others_.end() && known->second.incarnation == peer.incarnation)
      other = known->second;
    else
      worth_a_line_ = true;
    other.incarnation = peer.incarnation;
  }
  std::sort(live.begin(), live.end());
  if (!std::binary_search(live.begin(), live.end(), rank_)) {
    if (!started_) generation_ = roster.epoch;
    return take_held(held_);
  }
  for (const int rank : live_) {
    const Peer* const peer = roster.find({Role::kWorker, rank});
    const bool finished = peer != nullptr && peer->finished;
    if (!finished && !std::binary_search(live.begin(), live.end(), rank)) worth_a_line_ = true;
  }
  live_ = std::move(live);
  others_ = std::move(others);
  for (auto& [rank, other] : others_) other.near = hosts.at(rank) == hosts.at(rank_);
  hosts_ = RingHosts(hosts);
  take_places();
  generation_ = roster.epoch;
  constexpr std::uint64_t kStart = 1;
  if (!std::exchange(started_, true) && generation_ == kStart) {
    worth_a_line_ = false;
    return take_held(held_);
  }
  begin_generation();
}

void RingPeer::begin_generation() {
  recovering_ = true;
  behind_ = false;
  frozen_.clear();
  frozen_over_ = ended_;
  for (Piece& piece : pieces_) {
    frozen_.push_back(piece.valid ? Age{piece.loads, piece.version + 1} : Age{});
    piece.open.clear();
    piece.summed = 0;
    piece.sum_under_way = false;
    if (!piece.mine) continue;
    frozen_over_ = std::min(frozen_over_, piece.mine->round);
    piece.mine->unacked = 0;
  }
  // Take back the promises about rounds that are sent again. Calls stay open while their old messages are in flight,
  // because a worker that has not heard of this generation yet takes these messages.
  unacked_.clear();
  sums_under_way_.clear();
  over_ = told_ = frozen_over_;
  passed_ = told_passed_ = 0;
  told_idle_ = false;  // new workers do not know yet whether this one is idle
  asked_ = 0;
  partial_ = std::max(partial_, ended_ + 1);
  results_.clear();
  sums_.clear();
  early_results_.clear();
  states_.clear();
  wire::RingAsk body;
  body.set_what(wire::RingAsk::STATE);
  body.set_generation(generation_);
  for (auto& [rank, other] : others_) {
    other.wanted = 0;
    other.unacked_results = 0;
    submit(rank, message_of(MessageKind::kRingAsk, body), 0,
           [this, rank = rank, generation = generation_](const std::optional<Message>& answer) {
             if (answer && generation == generation_) take_state(rank, *answer);
           });
  }
  take_held(held_);
  if (others_.empty()) end_recovery();
}

void RingPeer::take_state(int rank, const Message& answer) {
  const auto body = parse_body<wire::RingState>(answer);
  others_.at(rank).over = body.over();
  take_rules(body.rules());
  if (body.loads_size() != body.versions_size()) throw Corrupt("a worker's answer cannot be parsed");
  std::vector<Age>& ages = states_[rank];
  for (int i = 0; i < body.versions_size(); ++i) ages.emplace_back(body.loads(i), body.versions(i));
  if (states_.size() < others_.size()) return;
  // No host's sum is in flight now, so `passed` follows from `over`.
  for (auto& [one, other] : others_) {
    other.passed = other.over;
    for (const auto& [mate, over] : others_)
      if (hosts_.together(one, mate)) other.passed = std::min(other.passed, over.over);
    if (hosts_.together(one, rank_)) other.passed = std::min(other.passed, frozen_over_);
  }
  fetch_missing();
}

void RingPeer::fetch_missing() {
  std::map<int, std::vector<int>> missing;
  for (std::size_t number = 0; number < pieces_.size(); ++number) {
    const Piece& piece = pieces_[number];
    if (!newcomer_ && !piece.valid) continue;  // init() fetches it
    Age newest = piece.valid ? Age{piece.loads, piece.version + 1} : Age{};
    std::vector<int> from;
    for (const auto& [rank, ages] : states_) {
      if (number >= ages.size() || ages[number] < newest || (ages[number] == newest && from.empty())) continue;
      if (ages[number] > newest) from.clear();
      newest = ages[number];
      from.push_back(rank);
    }
    if (!from.empty()) missing[from[number % from.size()]].push_back(static_cast<int>(number));
  }
  fetches_left_ = 1;
  for (const auto& [rank, numbers] : missing) {
    for (const std::vector<int>& batch : batches(numbers)) {
      wire::RingAsk body;
      body.set_what(wire::RingAsk::FETCH);
      for (const int number : batch) body.add_pieces(static_cast<std::uint32_t>(number));
      ++fetches_left_;
      submit(rank, message_of(MessageKind::kRingAsk, body), 0,
             [this, batch, generation = generation_](const std::optional<Message>& answer) {
               if (!answer || generation != generation_) return;
               load_pieces(batch, *answer, true);
               if (--fetches_left_ == 0) end_recovery();
             });
    }
  }
  if (--fetches_left_ == 0) end_recovery();
}

void RingPeer::end_recovery() {
  recovering_ = false;
  if (std::exchange(worth_a_line_, false)) {
    std::string ranks;
    for (const int rank : live_) ranks += str(ranks.empty() ? "" : ", ", rank);
    LOG(INFO) << "the ring goes on over the workers " << ranks;
  }
  std::map<std::shared_ptr<RingCall>, std::vector<int>> again;
  for (std::size_t number = 0; number < pieces_.size(); ++number)
    if (pieces_[number].mine) again[pieces_[number].mine].push_back(static_cast<int>(number));
  for (const auto& [call, numbers] : again) send(call, numbers);
  update_over();
  if (settling_ > settled_) {
    const std::uint64_t need = std::exchange(settling_, settled_);
    settle(need);
  }
  take_held(held_);
  check_entered();
}

std::uint64_t RingPeer::enter() {
  const std::uint64_t epoch = node_->enter();
  std::promise<std::uint64_t> entered;
  std::future<std::uint64_t> first = entered.get_future();
  on_thread([&, this] {
    entering_ = std::move(entered);
    entering_epoch_ = epoch;
    check_entered();
  });
  return first.get();
}

void RingPeer::check_entered() {
  if (!entering_ || recovering_ || generation_ < entering_epoch_) return;
  if (!std::all_of(pieces_.begin(), pieces_.end(), [](const Piece& piece) { return piece.valid; }))
    throw NetworkError(
        "the workers that had the weights were lost before this one, which has come back, could get them");
  newcomer_ = false;
  // Rounds that other workers have begun do not wait for this worker.
  for (const auto& [rank, other] : others_) ended_ = std::max(ended_, other.over);
  for (const Piece& piece : pieces_) ended_ = std::max(ended_, piece.next_round);
  update_over();
  std::exchange(entering_, {})->set_value(ended_);
}

// ---- weights and state

std::vector<std::vector<int>> RingPeer::batches(const std::vector<int>& numbers) const {
  std::vector<std::vector<int>> result;
  std::size_t bytes = kFetchBytes;
  for (const int number : numbers) {
    if (bytes >= kFetchBytes) {
      result.emplace_back();
      bytes = 0;
    }
    bytes += pieces_[static_cast<std::size_t>(number)].bytes;
    result.back().push_back(number);
  }
  return result;
}

void RingPeer::fetch(int rank, bool all) {
  const auto wanted = on_thread([this, all] {
    std::vector<int> numbers;
    for (std::size_t number = 0; number < pieces_.size(); ++number)
      if (all || !pieces_[number].valid) numbers.push_back(static_cast<int>(number));
    return batches(numbers);
  });
  for (const std::vector<int>& batch : wanted) {
    wire::RingAsk body;
    body.set_what(wire::RingAsk::FETCH);
    for (const int number : batch) body.add_pieces(static_cast<std::uint32_t>(number));
    const Message answer = node_->ask_and_wait({Role::kWorker, rank}, message_of(MessageKind::kRingAsk, body));
    on_thread([&, this] { load_pieces(batch, answer, !all); });
  }
}

void RingPeer::answer_fetch(const Request& request) {
  const auto body = parse_body<wire::RingAsk>(request.message());
  for (const std::uint32_t number : body.pieces()) {
    if (number < pieces_.size() && pieces_[number].valid) continue;
    early_fetches_.push_back(request);
    return;
  }
  wire::WorkerSlices reply;
  *reply.mutable_rules() = rules();
  PayloadWriter payload;
  for (const std::uint32_t number : body.pieces()) {
    const Piece& piece = pieces_[number];
    wire::WorkerSlices::Slice* part = reply.add_slices();
    write_slice(*updater_, piece.slice, true, part, &payload);
    part->set_next_round(piece.next_round);
    part->set_loads(piece.loads);
  }
  Message message = message_of(MessageKind::kReply, reply);
  message.payload = payload.finish();
  request.reply(std::move(message));
}

void RingPeer::load_pieces(const std::vector<int>& numbers, const Message& answer, bool newer_only) {
  const auto body = parse_body<wire::WorkerSlices>(answer);
  if (body.slices_size() != static_cast<int>(numbers.size())) throw Corrupt("a worker's answer cannot be parsed");
  take_rules(body.rules());
  // The other worker may not have the present rules yet. When it gets them, its state begins anew.
  const auto state_names = [](const std::string& rules) { return make_optimizer(Spec::parse(rules))->state_names(); };
  const bool anew = body.rules().optimizer_call() < optimizer_call_ &&
                    state_names(body.rules().optimizer()) != state_names(optimizer_);
  const auto owner = std::make_shared<Message>(answer);
  PayloadReader payload(owner->payload);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const wire::WorkerSlices::Slice& part = body.slices(static_cast<int>(i));
    Piece& piece = pieces_[static_cast<std::size_t>(numbers[i])];
    PieceState state{numbers[i], {}, {}};
    const Shape shape{piece.end - piece.begin};
    state.arrays = read_slice(part, shape, piece.key->info.dtype, &payload, owner, &state.counters);
    if (newer_only && piece.valid && Age{piece.loads, piece.version} >= Age{part.loads(), part.version()}) continue;
    if (anew) {
      std::erase_if(state.arrays, [](const auto& entry) { return entry.first != "weight"; });
      state.counters.optimizer_updates = 0;
    }
    load_piece(state, part.next_round());
    piece.loads = part.loads();
  }
  payload.expect_end();
  take_held(early_fetches_);
}

void RingPeer::load_piece(const PieceState& state, std::uint64_t next_round) {
  Piece& piece = pieces_[static_cast<std::size_t>(state.piece)];
  updater_->load_slice(piece.slice, state.arrays, state.counters);
  piece.version = state.counters.version;
  piece.next_round = std::max(piece.next_round, next_round);
  piece.valid = true;
  if (piece.mine && piece.mine->round < piece.next_round) {
    piece.given = {};
    finish(std::exchange(piece.mine, nullptr));
  }
  serve_readers(piece);
}

RingPeer::PieceState RingPeer::save(int number) {
  return on_thread([&, this] {
    const Piece& piece = pieces_[static_cast<std::size_t>(number)];
    PieceState state;
    state.piece = number;
    state.arrays = updater_->save_slice(piece.slice, &state.counters);
    return state;
  });
}

void RingPeer::load(const std::vector<PieceState>& states) {
  on_thread([&, this] {
    for (const PieceState& state : states) load_piece(state, 0);
    for (const PieceState& state : states) ++pieces_[static_cast<std::size_t>(state.piece)].loads;
  });
}

}  // namespace paceline

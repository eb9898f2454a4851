// Sums of rounds, at the delegate of a host and at the root (ring_hosts.h), and the way back of the results.
#include <paceline/detail/host_memory.h>
#include <paceline/error.h>

#include <algorithm>

#include "allreduce/ring_peer.h"
#include "payload.h"
#include "slice_update.h"
#include "workers.pb.h"

namespace paceline {
namespace {

constexpr int kSoonest = 1 << 30;

}  // namespace

const std::byte* RingPeer::next_run(PayloadReader& payload, const Piece& piece, std::size_t encoded,
                                    const Codec* codec) {
  if (encoded == 0) return payload.next(piece.bytes);
  const KeyInfo& key = piece.key->info;
  if (!codec || key.dtype != DType::kFloat32 || key.average)
    throw Corrupt(str("a piece of key '", key.name, "' cannot come encoded"));
  const std::byte* const data = payload.next(encoded);
  codec->check({data, encoded}, piece.end - piece.begin);
  return data;
}

void RingPeer::take_places() {
  places_.clear();
  if (live_.empty()) return;
  if (const int other = live_.front() == rank_ ? live_.back() : live_.front();
      live_.size() == 2 && !mean_codec_ && !shares_memory(other)) {
    places_.assign(groups_ + 1, {-1, {other}, other});
    return;
  }
  for (std::size_t group = 0; group <= groups_; ++group)
    places_.push_back({hosts_.above(rank_, static_cast<int>(group)), hosts_.below(rank_, static_cast<int>(group))});
}

double RingPeer::newest_rate(const std::map<int, Given>& contributions) {
  return std::max_element(contributions.begin(), contributions.end(),
                          [](const auto& a, const auto& b) { return a.second.rate_call < b.second.rate_call; })
      ->second.rate;
}

// ---- up: gradients and sums, towards the root

// NOLINTNEXTLINE(performance-unnecessary-value-param): it is moved, which clang-tidy does not see through try_emplace
void RingPeer::give(int number, std::uint64_t round, int from, Given given) {
  Piece& piece = pieces_[static_cast<std::size_t>(number)];
  if (round < std::max(piece.next_round, piece.summed)) return;
  // A push shows that its sender is not idle, unless the push has the sum of another host's workers.
  if (from != rank_ && (hosts_.together(from, rank_) || hosts_.alone(from))) others_.at(from).idle = false;
  piece.open[round].try_emplace(from, std::move(given));
  try_close(number);
}

void RingPeer::try_close(int number) {
  Piece& piece = pieces_[static_cast<std::size_t>(number)];
  while (!piece.open.empty() && !piece.sum_under_way) {  // one at a time, so that the sums of a piece arrive in order
    const auto& [round, contributions] = *piece.open.begin();
    bool missing = contributions.count(rank_) == 0 && over_ <= round;
    for (const int rank : places_[piece.group].below) {
      const Other& other = others_.at(rank);
      if (contributions.count(rank) > 0 || (hosts_.together(rank, rank_) ? other.over : other.passed) > round) continue;
      missing = true;
      if (may_be_idle(rank)) want_from(rank, round + 1);
    }
    if (missing) return;
    close_round(number);
  }
}

// Is `rank` idle? If `rank` is on another host, is any worker of that host idle?
bool RingPeer::may_be_idle(int rank) const {
  if (hosts_.together(rank, rank_)) return others_.at(rank).idle;
  return std::any_of(others_.begin(), others_.end(),
                     [&, this](const auto& entry) { return entry.second.idle && hosts_.together(entry.first, rank); });
}

void RingPeer::try_close_all() {
  for (std::size_t number = 0; number < pieces_.size(); ++number)
    if (!pieces_[number].open.empty()) try_close(static_cast<int>(number));
}

void RingPeer::close_round(int number) {
  Piece& piece = pieces_[static_cast<std::size_t>(number)];
  const auto closed = piece.open.extract(piece.open.begin());
  const Place& place = places_[piece.group];
  std::map<std::size_t, std::vector<Given>> by_host;  // gradients of each host, by rank
  for (const auto& [rank, given] : closed.mapped()) by_host[hosts_.host(rank)].push_back(given);
  std::vector<Given> parts;
  for (const auto& [host, given] : by_host) parts.push_back(together(piece, given));
  if (place.above >= 0) return add_sum(number, closed.key(), std::move(parts.front()));

  const KeyInfo& info = piece.key->info;
  const bool encodes = piece.key->encodes_mean, sends = place.sends_results();
  const double rate = place.twin >= 0 ? newest_rate(closed.mapped()) : rate_;
  Result result{closed.key(), 0, rate, piece.version, !info.average && !encodes && updater_->only_weights(), nullptr};
  for (const Given& part : parts) result.examples += part.examples;
  const bool by_workers = std::any_of(parts.begin(), parts.end(), [](const Given& part) { return part.workers > 1; });
  if (info.average || (result.examples == 0 && by_workers)) parts = {together(piece, parts)};
  std::vector<Contribution> contributions;
  for (const Given& part : parts)
    contributions.push_back(
        {-1, piece.version, part.examples, part.data, part.encoded > 0 ? push_codec_.get() : nullptr, part.encoded});
  // The updater keeps one value of running statistics for each worker. The mean always counts as this worker's, so it
  // replaces the last mean.
  if (info.average || closed.mapped().count(rank_) > 0) contributions.front().worker = rank_;
  use_rate(rate);
  std::shared_ptr<std::byte[]> gradient;
  if (encodes || (sends && !result.weights)) gradient = detail::allocate_host(piece.bytes);
  if (encodes) {
    // This worker applies the encoded mean, as all others do.
    const std::span values(reinterpret_cast<float*>(gradient.get()), static_cast<std::size_t>(piece.end - piece.begin));
    add_up_round(contributions, aggregate_, piece.end - piece.begin, info.dtype, values.data());
    const std::shared_ptr<std::byte[]> encoded = detail::allocate_host(mean_codec_->max_bytes(piece.end - piece.begin));
    result.encoded = mean_codec_->encode(values, {}, {}, encoded.get());
    contributions = {{contributions.front().worker, piece.version, result.examples, encoded.get(), mean_codec_.get(),
                      result.encoded}};
    gradient = encoded;
  }
  apply(number, closed.key(), [&](RoundCopies out) {
    if (!encodes) out.gradient = gradient.get();
    updater_->apply_round(piece.slice, contributions, out, {}, aggregate_);
  });
  if (!sends) return;
  result.data = result.weights ? updater_->pull(piece.slice, -1).data : std::move(gradient);
  add_result(number, std::move(result));
}

// Returns the sum or the mean of `parts`. A mean is weighted by examples. A mean of running statistics, or of parts
// without examples, is weighted by workers. A single part is returned as it is.
RingPeer::Given RingPeer::together(const Piece& piece, const std::vector<Given>& parts) const {
  if (parts.size() == 1) return parts.front();
  Given sum{nullptr, nullptr, 0, 0};
  for (const Given& part : parts) {
    sum.examples += part.examples;
    sum.workers += part.workers;
  }
  const KeyInfo& info = piece.key->info;
  const bool by_workers = info.average || sum.examples == 0;
  std::vector<Contribution> contributions;
  for (const Given& part : parts)
    contributions.push_back({-1, piece.version, by_workers ? part.workers : part.examples, part.data,
                             part.encoded > 0 ? push_codec_.get() : nullptr, part.encoded});
  const std::shared_ptr<std::byte[]> data = detail::allocate_host(piece.bytes);
  add_up_round(contributions, info.average ? Aggregate::kMean : aggregate_, piece.end - piece.begin, info.dtype,
               data.get());
  sum.owner = data;
  sum.data = data.get();
  return sum;
}

void RingPeer::add_sum(int number, std::uint64_t round, Given sum) {
  Piece& piece = pieces_[static_cast<std::size_t>(number)];
  piece.summed = round + 1;
  piece.sum_under_way = true;
  const int root = places_[piece.group].above;
  Sums& sums = sums_[root];
  const bool other = !sums.pieces.empty() && (sums.round != round || sums.sums.front().examples != sum.examples ||
                                              sums.sums.front().workers != sum.workers);
  if (other) send_sums(root, std::exchange(sums, {}));
  if (sums.pieces.empty()) sums_under_way_.insert(round);
  sums.round = round;
  sums.bytes += run_bytes(piece, sum.encoded);
  sums.pieces.push_back(number);
  sums.sums.push_back(std::move(sum));
  if (sums.bytes >= message_bytes(root)) send_sums(root, std::exchange(sums, {}));
}

void RingPeer::flush_sums() {
  for (const auto& [root, sums] : std::exchange(sums_, {}))
    if (!sums.pieces.empty()) send_sums(root, sums);
}

void RingPeer::send_sums(int rank, const Sums& sums) {
  wire::RingPush body;
  body.set_generation(generation_);
  body.set_round(sums.round);
  body.set_examples(sums.sums.front().examples);
  body.set_workers(sums.sums.front().workers);
  PayloadWriter payload;
  for (std::size_t i = 0; i < sums.pieces.size(); ++i) {
    body.add_pieces(static_cast<std::uint32_t>(sums.pieces[i]));
    const Given& sum = sums.sums[i];
    body.add_bytes(sum.encoded);
    payload.add(sum.data, run_bytes(pieces_[static_cast<std::size_t>(sums.pieces[i])], sum.encoded), sum.owner);
  }
  submit(
      rank, message_of(MessageKind::kRingPush, body, payload.finish()), kSoonest,
      [this, round = sums.round, pieces = sums.pieces, generation = generation_](const std::optional<Message>& answer) {
        wire::RingTaken taken;
        if (generation != generation_ || !answer || !taken.ParseFromString(answer->body)) return;
        if (taken.stale()) {
          behind_ = true;
          return;
        }
        sums_under_way_.erase(sums_under_way_.find(round));
        for (const int number : pieces) pieces_[static_cast<std::size_t>(number)].sum_under_way = false;
        for (const int number : pieces) try_close(number);
        update_over();
      });
}

// ---- down: results, from the root

void RingPeer::add_result(int number, Result result, const std::shared_ptr<Relay>& relay) {
  const Piece& piece = pieces_[static_cast<std::size_t>(number)];
  const std::vector<int>& ranks = places_[piece.group].below;
  Results& results = results_[ranks];
  if (!results.pieces.empty()) {
    const Result& last = results.results.back();
    if (last.round != result.round || last.examples != result.examples || last.rate != result.rate)
      send_results(ranks, std::exchange(results, {}));
  }
  results.bytes += run_bytes(piece, result.encoded);
  results.pieces.push_back(number);
  results.results.push_back(std::move(result));
  if (relay) results.relays.insert(relay);
  const auto most = [this](int a, int b) { return message_bytes(a) < message_bytes(b); };
  if (results.bytes >= message_bytes(*std::min_element(ranks.begin(), ranks.end(), most)))
    send_results(ranks, std::exchange(results, {}));
}

void RingPeer::flush_results() {
  for (const auto& [ranks, results] : std::exchange(results_, {}))
    if (!results.pieces.empty()) send_results(ranks, results);
}

void RingPeer::send_results(const std::vector<int>& ranks, const Results& results) {
  wire::RingResult body;
  body.set_generation(generation_);
  body.set_round(results.results.front().round);
  body.set_examples(results.results.front().examples);
  body.set_rate(results.results.front().rate);
  PayloadWriter payload;
  for (std::size_t i = 0; i < results.pieces.size(); ++i) {
    const Result& result = results.results[i];
    body.add_pieces(static_cast<std::uint32_t>(results.pieces[i]));
    body.add_versions(result.version);
    body.add_weights(result.weights);
    body.add_bytes(result.encoded);
    payload.add(result.data.get(), run_bytes(pieces_[static_cast<std::size_t>(results.pieces[i])], result.encoded),
                result.data);
  }
  const std::vector<Frame> frames = payload.finish();
  for (const int rank : ranks) {
    ++others_.at(rank).unacked_results;
    for (const auto& relay : results.relays) ++relay->left;
    submit(rank, message_of(MessageKind::kRingResult, body, frames), kSoonest,
           [this, rank, relays = results.relays, generation = generation_](const std::optional<Message>& answer) {
             if (generation != generation_ || !answer) return;
             wire::RingTaken taken;
             if (taken.ParseFromString(answer->body) && taken.stale()) {
               behind_ = true;
               return;
             }
             --others_.at(rank).unacked_results;
             for (const auto& relay : relays)
               if (--relay->left == 0) relay->request.reply(message_of(MessageKind::kReply, wire::RingTaken()));
           });
  }
}

void RingPeer::pass_on(const Request& request, const wire::RingResult& body, const std::shared_ptr<Relay>& relay) {
  const auto passes = [this](std::uint32_t number) {
    if (number >= pieces_.size()) throw Corrupt(str("there is no piece ", number));
    return places_[pieces_[number].group].sends_results();
  };
  if (std::none_of(body.pieces().begin(), body.pieces().end(), passes)) return;
  const auto arrived = std::make_shared<Arrived>();
  arrived->request = request;
  PayloadReader payload(request.message().payload);
  for (int i = 0; i < body.pieces_size(); ++i) {
    const std::uint32_t number = body.pieces(i);
    const std::byte* data = next_run(payload, pieces_[number], body.bytes(i), mean_codec_.get());
    if (!passes(number)) continue;
    add_result(
        static_cast<int>(number),
        {body.round(), body.examples(), body.rate(), body.versions(i), body.weights(i), {arrived, data}, body.bytes(i)},
        relay);
  }
  arrived->copies = payload.take_copies();
  flush_results();
}

}  // namespace paceline

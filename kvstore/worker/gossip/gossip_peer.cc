#include "gossip/gossip_peer.h"

#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "checkpoint/slice_state.h"
#include "draw.h"
#include "parse_body.h"

namespace paceline {
namespace {

template <class T>
void subtract(const void* what, void* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) static_cast<T*>(from)[i] -= static_cast<const T*>(what)[i];
}

std::size_t bytes_of(const LocalBackend::Weights& key) {
  return static_cast<std::size_t>(key.shape.size()) * size_of(key.dtype);
}

}  // namespace

int gossip_partner(const std::vector<int>& others, std::int64_t seed, int rank, std::int64_t step) {
  std::seed_seq seeds{static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(rank),
                      static_cast<std::uint64_t>(step)};
  std::mt19937 random(seeds);
  return others[random() % others.size()];
}

GossipPeer::GossipPeer(const ClusterConfig& config, LocalBackend& local, std::int64_t seed)
    : local_(local),
      updater_(local.updater()),
      seed_(seed),
      node_(config, {[this](const Request& request) { on_request(request); },
                     [this](const Roster& roster) { on_roster(roster); }}) {
  node_.join();
  if (node_.roster().find({Role::kWorker, node_.rank()})->entered) return;
  node_.leave();
  throw NetworkError("mode gossip takes in no worker after the start: the weights are at the others");
}

std::vector<int> GossipPeer::members() const {
  std::vector<int> ranks;
  for (const Peer& peer : node_.roster().peers)
    if (peer.id.role == Role::kWorker && peer.alive && peer.entered) ranks.push_back(peer.id.rank);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::size_t GossipPeer::add_keys(const std::vector<KeyInfo>& keys) {
  Lock lock(mutex_);
  const std::size_t first = keys_.size();
  for (const KeyInfo& key : keys) keys_.push_back(local_.weights_of(key.name));
  return first;
}

std::vector<LocalBackend::Weights> GossipPeer::keys() const {
  Lock lock(mutex_);
  return keys_;
}

void GossipPeer::leave() {
  {
    Lock lock(mutex_);
    leaving_ = true;
  }
  settle();
  kept_.wait_none();
  node_.leave();
}

// ---- meetings that this worker starts

void GossipPeer::meet(const std::vector<Snapshot>& snapshots, std::int64_t step, Completion completion) {
  std::vector<int> others = members();
  std::erase(others, node_.rank());
  if (others.empty()) return completion.done();
  const PeerId partner{Role::kWorker, gossip_partner(others, seed_, node_.rank(), step)};
  wire::GossipMeet body;
  body.set_number(static_cast<std::uint64_t>(step));
  body.set_keys(static_cast<std::uint32_t>(snapshots.size()));
  PayloadWriter payload;
  for (const Snapshot& snapshot : snapshots) payload.add(snapshot.data.get(), snapshot.bytes, snapshot.data);
  const auto end = std::make_shared<Completion>(std::move(completion));
  node_.ask(partner, message_of(MessageKind::kGossipMeet, body, payload.finish()),
            [this, end, partner, body](const std::optional<Message>& answer, const std::exception_ptr& error) {
              try {
                if (error) std::rethrow_exception(error);
                take_answer(partner, body, *answer);
              } catch (const NetworkError&) {
                // The partner is lost or has left. This worker goes on without the meeting.
              } catch (const std::exception&) {
                return end->fail(std::current_exception());
              }
              if (const std::exception_ptr failure = node_.failure()) return end->fail(failure);
              end->done();
            });
}

void GossipPeer::take_answer(const PeerId& partner, const wire::GossipMeet& asked, const Message& answer) {
  if (answer.payload.empty()) return;
  {
    Lock lock(mutex_);
    PayloadReader payload(answer.payload);
    const std::vector<const std::byte*> moved = runs(payload, asked.keys());
    for (std::size_t k = 0; k < moved.size(); ++k) {
      const Weights& key = keys_[k];
      updater_.change(key.slice, [&](void* weight) {
        if (key.dtype == DType::kFloat32)
          subtract<float>(moved[k], weight, key.shape.size());
        else
          subtract<double>(moved[k], weight, key.shape.size());
      });
    }
  }
  wire::GossipMeet taken;
  taken.set_number(asked.number());
  tell(partner, message_of(MessageKind::kGossipTaken, taken));
}

std::vector<const std::byte*> GossipPeer::runs(PayloadReader& payload, std::size_t keys) {
  if (keys > keys_.size()) throw Corrupt(str("a meeting over ", keys, " keys, of ", keys_.size()));
  std::vector<const std::byte*> found;
  for (std::size_t k = 0; k < keys; ++k) found.push_back(payload.next(bytes_of(keys_[k])));
  payload.expect_end();
  return found;
}

void GossipPeer::tell(const PeerId& peer, Message message, std::function<void()> arrived) {
  told_->add();
  node_.ask(peer, std::move(message),
            [told = told_, arrived = std::move(arrived)](const std::optional<Message>&, const std::exception_ptr&) {
              if (arrived) arrived();
              told->remove();
            });
}

// ---- requests of other workers

void GossipPeer::on_request(const Request& request) {
  if (request.from().role != Role::kWorker) throw InvalidArgument("only workers ask workers");
  switch (request.message().header.kind) {
    case MessageKind::kGossipMeet: return request.reply(answer_meeting(request));
    case MessageKind::kGossipTaken: {
      const auto body = parse_body<wire::GossipMeet>(request.message());
      {
        Lock lock(mutex_);
        Answer& last = answers_[request.from().rank];
        if (body.number() == last.number) forget(last);
      }
      return request.reply({});
    }
    case MessageKind::kGossipFetch: return request.reply(answer_fetch(request));
    default:
      throw InvalidArgument(str("a worker of mode gossip was asked for ", name_of(request.message().header.kind)));
  }
}

Message GossipPeer::answer_meeting(const Request& request) {
  const auto body = parse_body<wire::GossipMeet>(request.message());
  Lock lock(mutex_);
  Answer& last = answers_[request.from().rank];
  if (body.number() == last.number && last.message) return *last.message;
  if (body.number() <= last.number || leaving_) return {};
  PayloadReader payload(request.message().payload);
  const std::vector<const std::byte*> weights = runs(payload, body.keys());
  PayloadWriter moved;
  for (std::size_t k = 0; k < weights.size(); ++k) {
    const Weights& key = keys_[k];
    if (key.shape.size() == 0) continue;
    std::byte* const difference = moved.room(bytes_of(key));
    updater_.change(key.slice,
                    [&](void* weight) { draw(key.dtype, weights[k], 0.5, key.shape.size(), weight, difference); });
  }
  forget(last);
  last.number = body.number();
  Message answer;
  answer.payload = moved.finish();
  if (answer.payload.empty()) return answer;
  last.message = answer;
  kept_.add();
  return answer;
}

void GossipPeer::forget(Answer& answer) {
  if (answer.message) kept_.remove();
  answer.message.reset();
}

Message GossipPeer::answer_fetch(const Request& request) {
  const auto body = parse_body<wire::GossipFetch>(request.message());
  wire::WorkerSlices reply;
  PayloadWriter payload;
  Lock lock(mutex_);
  for (std::size_t k = body.first(); k < keys_.size(); ++k)
    write_slice(updater_, keys_[k].slice, body.state(), reply.add_slices(), &payload);
  return message_of(MessageKind::kReply, reply, payload.finish());
}

void GossipPeer::on_roster(const Roster& roster) {
  const std::vector<int> live = roster.live(Role::kWorker);
  Lock lock(mutex_);
  for (auto& [rank, answer] : answers_)
    if (!std::binary_search(live.begin(), live.end(), rank)) forget(answer);
}

// ---- all workers together

std::vector<SavedKey> GossipPeer::fetch(int from, std::size_t first, bool state) {
  wire::GossipFetch body;
  body.set_first(static_cast<std::uint32_t>(first));
  body.set_state(state);
  const auto answer = std::make_shared<Message>();
  try {
    *answer = node_.ask_and_wait({Role::kWorker, from}, message_of(MessageKind::kGossipFetch, body));
  } catch (const NetworkError& error) {
    if (const std::exception_ptr failure = node_.failure()) std::rethrow_exception(failure);
    LOG(WARNING) << "worker " << from << " was lost while all met, its weights with it: " << error.what();
    return {};
  }
  const auto slices = parse_body<wire::WorkerSlices>(*answer);
  PayloadReader payload(answer->payload);
  std::vector<SavedKey> fetched;
  Lock lock(mutex_);
  if (first + static_cast<std::size_t>(slices.slices_size()) != keys_.size())
    throw Corrupt("a worker's answer is not about the keys there are");
  for (const wire::WorkerSlices::Slice& slice : slices.slices()) {
    const Weights& key = keys_[first + fetched.size()];
    SavedKey& saved = fetched.emplace_back();
    for (const auto& [name, array] : read_slice(slice, key.shape, key.dtype, &payload, answer, &saved.counters)) {
      NDArray& copy = name == "weight" ? saved.weight : saved.slots[name];
      copy = array.clone();
      copy.wait();
    }
  }
  payload.expect_end();
  return fetched;
}

void GossipPeer::take(const std::vector<SavedKey>& fetched, std::size_t first, double share) {
  Lock lock(mutex_);
  for (std::size_t k = 0; k < fetched.size(); ++k) {
    const Weights& key = keys_[first + k];
    updater_.change(key.slice, [&, target = fetched[k].weight](void* weight) {
      if (share == 1)
        std::memcpy(weight, target.data(), target.bytes());
      else
        draw(key.dtype, target.data(), share, target.size(), weight);
    });
  }
}

void GossipPeer::take_mean() {
  int taken = 1;
  for (const int other : members()) {
    if (other == node_.rank()) continue;
    const std::vector<SavedKey> fetched = fetch(other, 0, false);
    if (!fetched.empty()) take(fetched, 0, 1.0 / ++taken);
  }
}

}  // namespace paceline

#include <algorithm>
#include <cmath>
#include <numeric>

#include "simulation.h"

namespace paceline::sim {
namespace {

enum Stream : std::uint64_t { kService = 2, kChoice = 3, kAcknowledgement = 4 };

}  // namespace

void Simulation::received(int w, int slice, double now) {
  Slice& self = slices_[static_cast<std::size_t>(slice)];
  const Worker& worker = workers_[static_cast<std::size_t>(w)];
  double cost = model_.server_push.of(self.bytes);
  if (cost > 0) {
    const auto number =
        static_cast<std::uint64_t>(worker.iteration) * slices_.size() + static_cast<std::uint64_t>(slice);
    cost *= model_.service.draw(Draws(model_.seed, kService, static_cast<std::uint64_t>(w), number));
  }
  const double pushed = occupy_server(self.server, now, cost);
  if (rounds_) return contribute(w, slice, pushed);

  const std::uint32_t delay = self.version - pulled_version(w, slice);
  if (delays_.size() <= delay) delays_.resize(std::max<std::size_t>(delay + 1, 2 * delays_.size()));
  ++delays_[delay];
  all_delays_ += delay;
  ++self.version;
  ++applied_;
  if (bounded_ || model_.pull_after_call) {
    // Until the worker pulls the slice again, the delay of its next push counts from this one.
    pulled_version(w, slice) = self.version;
    return acknowledge(w, slice, pushed);
  }
  answer(w, slice, pushed);
}

void Simulation::contribute(int w, int slice, double pushed) {
  Slice& self = slices_[static_cast<std::size_t>(slice)];
  const std::int64_t round = need_[at_layer(w, self.layer)] - 1;
  if (self.round > round) {
    ++refused_;
    return acknowledge(w, slice, pushed);
  }
  ++applied_;
  ++self.contributed;
  workers_[static_cast<std::size_t>(w)].contributed = round;
  if (ring_)
    self.parked.push_back(w);  // the worker gets the result of the round without a pull
  else
    acknowledge(w, slice, pushed);
  if (self.contributed >= expected() - backup_) close_round(slice, pushed);
}

void Simulation::close_round(int slice, double now) {
  Slice& self = slices_[static_cast<std::size_t>(slice)];
  const double applied = occupy_server(self.server, now, model_.server_apply.of(self.bytes));
  const std::int64_t round = self.round++;
  self.contributed = 0;
  ++self.version;
  ++rounds_closed_;
  std::vector<std::int32_t> parked;
  parked.swap(self.parked);
  if (ring_) {
    // Each server begins with another worker, so that they do not all send to the same one. With `one_line` every
    // server sends in the order of the workers.
    std::sort(parked.begin(), parked.end());
    if (!model_.one_line) std::rotate(parked.begin(), parked.begin() + self.server, parked.end());
  }
  for (const std::int32_t w : parked) {
    if (need_[at_layer(w, self.layer)] > self.round)
      self.parked.push_back(w);
    else
      answer(w, slice, applied);
  }
  if (model_.cancel_late) cancel_late(slice, round, applied);
}

void Simulation::cancel_late(int slice, std::int64_t round, double now) {
  const int layer = slices_[static_cast<std::size_t>(slice)].layer;
  for (int w = 0; w < model_.workers; ++w) {
    Worker& worker = workers_[static_cast<std::size_t>(w)];
    if (worker.round > round || worker.contributed >= round) continue;
    ++refused_;
    ++worker.attempt;
    ++worker.iteration;
    ++worker.round;
    missing_[at_layer(w, layer)] = 1;
    begin_step(w, now);
    answer(w, slice, now);
  }
}

void Simulation::acknowledge(int w, int slice, double at) {
  if (!bounded_ && !model_.pull_after_call && !model_.one_line)
    return schedule(at + 2 * model_.latency_seconds, kPull, w, slice);
  const int server = slices_[static_cast<std::size_t>(slice)].server;
  double there = small_arrives(machines_[static_cast<std::size_t>(machine_index(server))], at);
  if (model_.acknowledgement_seconds > 0) {
    Worker& worker = workers_[static_cast<std::size_t>(w)];
    Draws draws(model_.seed, kAcknowledgement, static_cast<std::uint64_t>(w), worker.acknowledgements++);
    there = std::max(there, worker.heard_until) + 2 * model_.acknowledgement_seconds * draws.uniform();
    worker.heard_until = there;
  }
  schedule(there, kAcknowledged, w, slice);
}

void Simulation::acknowledged(int w, int slice, double now) {
  const int layer = slices_[static_cast<std::size_t>(slice)].layer;
  const double there = small_arrives(machine_of_worker(w), now);
  const bool all = --unacknowledged_[at_layer(w, layer)] == 0;
  if (all && --workers_[static_cast<std::size_t>(w)].layers_unacknowledged == 0 && bounded_)
    schedule(there, kStepEnd, w, 0);
  if (!model_.pull_after_call) return schedule(there, kPull, w, slice);
  if (!all) return;
  for (const std::int32_t pulled : slices_of_layer_[static_cast<std::size_t>(layer)]) schedule(there, kPull, w, pulled);
}

bool Simulation::dynamic_bound_lets_go(int w, std::int64_t need, double asked) const {
  const Pace& slowest = paces_[last_];
  return dynamic_->may_pull({need, slowest_, paces_[static_cast<std::size_t>(w)].seconds, slowest.seconds,
                             std::max(0.0, asked - slowest.began)});
}

void Simulation::pull(int w, int slice, double now, double asked) {
  Slice& self = slices_[static_cast<std::size_t>(slice)];
  const std::int64_t need = need_[at_layer(w, self.layer)];
  if (rounds_ && self.round < need) return self.parked.push_back(w);
  if (bounded_ && need - slowest_ > bound_ && !(dynamic_ && dynamic_bound_lets_go(w, need, asked)))
    return parked_.push_back({w, slice, asked});
  if (asked < now) {  // being held back is no part of a step's time
    double& began = paces_[static_cast<std::size_t>(w)].began;
    began = server_clock_[static_cast<std::size_t>(w)] >= need ? now : began + now - asked;
  }
  answer(w, slice, now);
}

void Simulation::answer(int w, int slice, double now) {
  const Slice& self = slices_[static_cast<std::size_t>(slice)];
  Worker& worker = workers_[static_cast<std::size_t>(w)];
  pulled_version(w, slice) = self.version;
  worker.newest = std::max(worker.newest, self.round);
  reply(w, slice, occupy_server(self.server, now, model_.server_pull.of(self.bytes)));
}

void Simulation::step_end(int w, double now) {
  std::int64_t& clock = server_clock_[static_cast<std::size_t>(w)];
  const auto old = clocks_.find(clock);
  if (--old->second == 0) clocks_.erase(old);
  ++clocks_[++clock];
  const std::int64_t slowest = std::exchange(slowest_, clocks_.begin()->first);
  if (dynamic_) {
    Pace& mine = paces_[static_cast<std::size_t>(w)];
    mine = {now, clock > 1 ? now - mine.began : 0};
    double latest = -1;
    for (std::size_t other = 0; other < paces_.size(); ++other) {
      if (server_clock_[other] != slowest_ || paces_[other].began + paces_[other].seconds <= latest) continue;
      latest = paces_[other].began + paces_[other].seconds;
      last_ = other;
    }
  } else if (slowest == slowest_) {
    return;
  }
  std::vector<ParkedPull> parked;
  parked.swap(parked_);
  for (const ParkedPull& waiting : parked) pull(waiting.worker, waiting.slice, now, waiting.asked);
}

int Simulation::expected() const {
  return federated_ ? std::max(1, static_cast<int>(std::ceil(fraction_ * model_.workers - 1e-9))) : model_.workers;
}

// The workers that take part in a round of `federated`.
const std::vector<bool>& Simulation::chosen(std::int64_t round) {
  const auto known = chosen_.find(round);
  if (known != chosen_.end()) return known->second;
  chosen_.erase(chosen_.begin(), chosen_.lower_bound(round - 2));
  std::vector<std::pair<std::uint64_t, std::size_t>> lots;
  for (std::size_t w = 0; w < workers_.size(); ++w)
    lots.emplace_back(Draws(model_.seed, kChoice, static_cast<std::uint64_t>(round), w).bits(), w);
  std::nth_element(lots.begin(), lots.begin() + expected() - 1, lots.end());
  std::vector<bool>& taken = chosen_[round];
  taken.assign(workers_.size(), false);
  for (int i = 0; i < expected(); ++i) taken[lots[static_cast<std::size_t>(i)].second] = true;
  return taken;
}

}  // namespace paceline::sim

// Mode gossip: a worker's weights go to another one, whose answer, as many bytes, moves it; both compute meanwhile.
#include <algorithm>
#include <utility>

#include "simulation.h"

namespace paceline::sim {
namespace {

enum Stream : std::uint64_t { kPartner = 5 };

}  // namespace

void Simulation::begin_meeting(int w, double now) {
  if (model_.workers == 1) return;
  Worker& worker = workers_[static_cast<std::size_t>(w)];
  if (worker.meets) {
    worker.meeting_waits = true;
    return;
  }
  worker.meets = true;
  ++applied_;
  Draws draws(model_.seed, kPartner, static_cast<std::uint64_t>(w), static_cast<std::uint64_t>(worker.iteration));
  int partner = static_cast<int>(draws.bits() % static_cast<std::uint64_t>(model_.workers - 1));
  partner += partner >= w;
  const double ready = occupy_worker(w, now, model_.worker_push.of(whole_bytes_));
  carry_weights(w, ready, kMeetingFirstByte, w, partner);
}

void Simulation::carry_weights(int from, double ready, Kind kind, int w, int partner) {
  Machine& machine = machine_of_worker(from);
  const double cost = machine.link.out(whole_bytes_);
  const double begin = machine.occupy_out(ready, cost) + model_.latency_seconds;
  bytes_ += whole_bytes_;
  schedule(begin, kind, w, partner, begin + cost);
}

double Simulation::take_weights(int to, double now, double last_byte) {
  Machine& machine = machine_of_worker(to);
  const double arrived = std::max(machine.occupy_in(now, machine.link.in(whole_bytes_)), last_byte);
  return occupy_worker(to, arrived, model_.worker_pull.of(whole_bytes_));
}

void Simulation::answer_meeting(int w, int partner, double now) {
  const double ready = occupy_worker(partner, now, model_.worker_push.of(whole_bytes_));
  carry_weights(partner, ready, kMeetingAnswer, w, partner);
}

void Simulation::end_meeting(int w, double now) {
  Worker& worker = workers_[static_cast<std::size_t>(w)];
  worker.meets = false;
  if (std::exchange(worker.meeting_waits, false)) begin_meeting(w, now);
  if (std::exchange(worker.waits, false)) end_step(w, now);
}

}  // namespace paceline::sim

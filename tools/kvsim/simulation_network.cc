#include <algorithm>

#include "simulation.h"

namespace paceline::sim {

void Simulation::send_next(int w, double now) {
  Worker& worker = workers_[static_cast<std::size_t>(w)];
  if (worker.sending || worker.outbox.empty()) return;
  auto next = worker.outbox.begin();
  if (model_.by_priority && model_.layers.size() > 1)
    next = std::min_element(worker.outbox.begin(), worker.outbox.end(), [this](std::int32_t a, std::int32_t b) {
      return slices_[static_cast<std::size_t>(a)].layer < slices_[static_cast<std::size_t>(b)].layer;
    });
  const int slice = *next;
  worker.outbox.erase(next);
  const double left = send(w, slice, now);
  if (!queued_) return;
  worker.sending = true;
  schedule(left, kLinkFree, w, 0);
}

double Simulation::send(int w, int slice, double now) {
  const Slice& self = slices_[static_cast<std::size_t>(slice)];
  const double ready = occupy_worker(w, now, model_.worker_push.of(self.bytes));
  bytes_ += self.bytes;
  if (same_machine(w, self.server)) {
    schedule(ready, kReceived, w, slice);
    return ready;
  }
  Machine& machine = machine_of_worker(w);
  const double cost = machine.link.out(self.bytes), begin = machine.occupy_out(ready, cost);
  schedule(begin + model_.latency_seconds, kFirstByte, w, slice, begin + cost + model_.latency_seconds);
  return begin + cost;
}

void Simulation::arrive(int w, int slice, double now, double last_byte) {
  const Slice& self = slices_[static_cast<std::size_t>(slice)];
  Machine& machine = machines_[static_cast<std::size_t>(machine_index(self.server))];
  const double end = std::max(machine.occupy_in(now, machine.link.in(self.bytes)), last_byte);
  if (end > now)
    schedule(end, kReceived, w, slice);
  else
    received(w, slice, now);
}

void Simulation::reply(int w, int slice, double at) {
  const Slice& self = slices_[static_cast<std::size_t>(slice)];
  if (machines_[static_cast<std::size_t>(machine_index(self.server))].shared)
    schedule(at, kReply, w, slice);
  else
    send_reply(w, slice, at);
}

void Simulation::send_reply(int w, int slice, double at) {
  const Slice& self = slices_[static_cast<std::size_t>(slice)];
  bytes_ += self.bytes;
  if (same_machine(w, self.server)) return take(w, slice, at);
  Machine& machine = machines_[static_cast<std::size_t>(machine_index(self.server))];
  const double cost = machine.link.out(self.bytes), begin = machine.occupy_out(at, cost);
  schedule(begin + model_.latency_seconds, kReplyFirstByte, w, slice, begin + cost + model_.latency_seconds);
}

void Simulation::reply_arrives(int w, int slice, double now, double last_byte) {
  const Slice& self = slices_[static_cast<std::size_t>(slice)];
  Machine& machine = machine_of_worker(w);
  take(w, slice, std::max(machine.occupy_in(now, machine.link.in(self.bytes)), last_byte));
}

void Simulation::take(int w, int slice, double at) {
  const Slice& self = slices_[static_cast<std::size_t>(slice)];
  const std::size_t place = at_layer(w, self.layer);
  ready_[place] = std::max(ready_[place], occupy_worker(w, at, model_.worker_pull.of(self.bytes)));
  if (missing_[place] > 1)
    --missing_[place];
  else
    schedule(ready_[place], kSynchronised, w, self.layer);
}

}  // namespace paceline::sim

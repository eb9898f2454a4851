#include "worker_clocks.h"

#include <algorithm>

#include "store.pb.h"

namespace paceline {
namespace {

double seconds(WorkerClocks::Time from, WorkerClocks::Time to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

void WorkerClocks::set_roster(const Roster& roster) {
  std::map<int, Worker> kept;
  for (const Peer& peer : roster.peers) {
    if (peer.id.role != Role::kWorker || !peer.alive || peer.finished) continue;
    const auto found = workers_.find(peer.id.rank);
    if (found != workers_.end() && found->second.incarnation == peer.incarnation)
      kept.insert(*found);
    else
      kept[peer.id.rank] = {.incarnation = peer.incarnation, .paused = started_ ? 1U : 0U};
  }
  workers_ = std::move(kept);
  started_ = started_ || !workers_.empty();
  find_slowest();
}

void WorkerClocks::step_end(int rank, std::uint64_t incarnation, const wire::StepEnd& message, Time now) {
  const auto found = workers_.find(rank);
  if (found == workers_.end() || found->second.incarnation != incarnation) return;
  Worker& worker = found->second;
  if (message.state() == wire::StepEnd::RUNNING && message.clock() > worker.clock) {
    if (worker.began)
      worker.step_seconds = seconds(*worker.began, now) / static_cast<double>(message.clock() - worker.clock);
    worker.began = now;
  }
  worker.clock = std::max(worker.clock, message.clock());
  switch (message.state()) {
    case wire::StepEnd::FINISHED: worker.finished = true; break;
    case wire::StepEnd::INSIDE_BARRIER: worker.inside = std::max(worker.inside, message.number()); break;
    case wire::StepEnd::AFTER_BARRIER:
      // When the first worker leaves a barrier, all workers that met there count as having left it. Otherwise a round
      // could close without them.
      for (auto& [other, peer] : workers_) {
        if (peer.inside < message.number() || peer.through >= message.number()) continue;
        peer.through = message.number();
        peer.resumed = peer.paused;
        peer.clock = std::max(peer.clock, message.clock());
        peer.began = now;
      }
      break;
    case wire::StepEnd::PAUSED: worker.paused = std::max(worker.paused, message.number()); break;
    case wire::StepEnd::RESUMED:
      worker.resumed = std::max(worker.resumed, message.number());
      worker.began = now;
      break;
    default: break;
  }
  find_slowest();
}

void WorkerClocks::released(int worker, std::uint64_t step, Time asked, Time now) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  std::optional<Time>& began = found->second.began;
  if (found->second.clock >= step)
    began = now;
  else if (began)
    *began += now - asked;
}

Progress WorkerClocks::progress(int worker, std::uint64_t step, Time asked) const {
  const std::uint64_t behind = slowest().value_or(step);
  Progress progress{static_cast<std::int64_t>(step), static_cast<std::int64_t>(behind)};
  if (const auto mine = workers_.find(worker); mine != workers_.end()) progress.my_step = mine->second.step_seconds;
  // Of several slowest workers, take the one that is expected to end its step last.
  const auto left = [asked](const Worker& other) { return other.step_seconds - seconds(*other.began, asked); };
  const Worker* last = nullptr;
  for (const auto& [rank, other] : workers_)
    if (other.running() && other.clock == behind && other.began && (!last || left(other) > left(*last))) last = &other;
  if (!last) return progress;
  progress.slowest_step = last->step_seconds;
  progress.slowest_since = std::max(0.0, seconds(*last->began, asked));
  return progress;
}

WorkerClocks::Range WorkerClocks::others(int asking) const {
  std::optional<std::uint64_t> slowest, slowest_running;
  Range range;
  for (const auto& [rank, worker] : workers_) {
    if (rank == asking || worker.finished) continue;
    slowest = std::min(worker.clock, slowest.value_or(worker.clock));
    if (worker.running()) slowest_running = std::min(worker.clock, slowest_running.value_or(worker.clock));
    range.fastest = std::max(range.fastest, worker.clock);
  }
  range.slowest = slowest_running.value_or(slowest.value_or(0));
  return range;
}

bool WorkerClocks::is_live(int worker, std::uint64_t incarnation) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.incarnation == incarnation;
}

bool WorkerClocks::contributes(int worker) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.running();
}

std::uint64_t WorkerClocks::clock(int worker) const {
  const auto found = workers_.find(worker);
  return found == workers_.end() ? 0 : found->second.clock;
}

void WorkerClocks::find_slowest() {
  slowest_.reset();
  for (const auto& [rank, worker] : workers_)
    if (worker.running()) slowest_ = std::min(worker.clock, slowest_.value_or(worker.clock));
}

}  // namespace paceline

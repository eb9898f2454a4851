#include "shard.h"

#include <paceline/cores.h>
#include <paceline/log.h>

#include <chrono>
#include <utility>

namespace paceline {

ServerShard::ServerShard(WaitStats& waits, int number)
    : gate_(clocks_, mode_, waits),
      tables_(clocks_, gate_),
      sequencer_(make_at_once(nullptr, {clocks_, gate_, late_})) {
  thread_ = std::thread([this, number] {
    name_thread(str("shard ", number).c_str());
    become_single_threaded();
    loop();
  });
}

ServerShard::~ServerShard() {
  {
    Lock lock(mutex_);
    stopping_ = true;
  }
  posted_.notify_one();
  thread_.join();
}

void ServerShard::post(Job job) {
  {
    Lock lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  posted_.notify_one();
}

void ServerShard::post_short(Job job) {
  {
    Lock lock(mutex_);
    if (running_ || !jobs_.empty()) {
      jobs_.push_back(std::move(job));  // the shard's thread will run the job
      return;
    }
    running_ = true;
  }
  run_job(job);
  bool more = false;
  {
    Lock lock(mutex_);
    running_ = false;
    more = !jobs_.empty() || stopping_;
  }
  if (more) posted_.notify_one();
}

void ServerShard::loop() {
  std::deque<Job> jobs;
  for (bool ran = false;; ran = true) {
    {
      Lock lock(mutex_);
      if (ran) running_ = false;
      posted_.wait(mutex_, [this]() PACELINE_REQUIRES(mutex_) { return !running_ && (stopping_ || !jobs_.empty()); });
      if (jobs_.empty()) return;
      running_ = true;
      jobs.swap(jobs_);
    }
    for (; !jobs.empty(); jobs.pop_front()) run_job(jobs.front());
  }
}

void ServerShard::run_job(Job& job) {
  try {
    job(*this);
  } catch (const std::exception& error) {
    LOG(ERROR) << "a request was dropped: " << error.what();
  }
}

void ServerShard::set_mode(std::shared_ptr<const Mode> mode) {
  mode_ = std::move(mode);
  sequencer_ = make_sequencer(mode_, {clocks_, gate_, late_});
  tables_.set_mode(mode_);
}

void ServerShard::step_end(int worker, std::uint64_t incarnation, const wire::StepEnd& message, StepDone done) {
  clocks_.step_end(worker, incarnation, message, std::chrono::steady_clock::now());
  const bool running = message.state() == wire::StepEnd::RUNNING;
  ended_.push_back({worker, incarnation, running ? message.clock() : 0, std::move(done)});
  reconsider();
}

void ServerShard::set_roster(const Roster& roster) {
  clocks_.set_roster(roster);
  reconsider();
}

void ServerShard::reconsider() {
  if (mode_) {
    tables_.reconsider();
    sequencer_->reconsider(partitions_);
  }
  answer_steps();
}

void ServerShard::answer_steps() {
  const bool waits = mode_ && mode_->traits().applies == Applies::kInRounds;
  const std::uint64_t furthest = clocks_.slowest().value_or(UINT64_MAX - kFurthestAhead) + kFurthestAhead;
  std::erase_if(ended_, [&](EndedStep& step) {
    if (waits && step.clock > furthest && clocks_.is_live(step.worker, step.incarnation)) return false;
    step.done(clocks_.others(step.worker));
    return true;
  });
}

}  // namespace paceline

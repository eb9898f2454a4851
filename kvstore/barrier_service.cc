// Barriers over the live workers. Each worker numbers its barriers 1, 2, 3 ...; barrier n is passed when every live
// worker has asked for n or a later one. A worker that came later is in step from the first barrier that it asks for.

#include <message.pb.h>
#include <paceline/error.h>

#include <algorithm>
#include <map>
#include <vector>

#include "scheduler.h"

namespace paceline {
namespace {

class BarrierService final : public SchedulerService {
 public:
  bool on_request(const Request& request) override {
    if (request.message().header.kind != MessageKind::kBarrier) return false;
    proto::Barrier body;
    if (!body.ParseFromString(request.message().body)) throw Corrupt("[barrier] the request cannot be read");
    if (request.from().role != Role::kWorker)
      throw InvalidArgument("[barrier] it is for workers; " + name_of(request.from()) + " asked");
    Worker& worker = workers_[request.incarnation()];
    worker.reached = std::max(worker.reached, body.number());
    clock_ = std::max(clock_, body.clock());
    worker.waiting.emplace_back(body.number(), request);
    release();
    return true;
  }

  void on_roster(const Roster& roster) override {
    live_.clear();
    for (const Peer& peer : roster.peers)
      if (peer.id.role == Role::kWorker && peer.alive) live_.push_back(peer.incarnation);
    std::erase_if(workers_,
                  [&](const auto& entry) { return std::find(live_.begin(), live_.end(), entry.first) == live_.end(); });
    release();
  }

 private:
  struct Worker {
    std::uint64_t reached = 0;
    std::vector<std::pair<std::uint64_t, Request>> waiting;
  };

  void release() {
    if (live_.empty()) return;
    std::uint64_t passed = UINT64_MAX;
    for (const std::uint64_t incarnation : live_) {
      const auto worker = workers_.find(incarnation);
      passed = std::min(passed, worker == workers_.end() ? 0 : worker->second.reached);
    }
    for (auto& [incarnation, worker] : workers_)
      std::erase_if(worker.waiting, [&](const auto& entry) {
        if (entry.first > passed) return false;
        answer(entry.second);
        return true;
      });
  }

  void answer(const Request& request) const {
    proto::Barrier body;
    body.set_clock(clock_);
    Message message;
    message.body = body.SerializeAsString();
    request.reply(std::move(message));
  }

  std::uint64_t clock_ = 0;  // the largest so far: nobody goes on from a barrier with less
  std::vector<std::uint64_t> live_;
  std::map<std::uint64_t, Worker> workers_;
};

}  // namespace

std::unique_ptr<SchedulerService> make_barrier_service() { return std::make_unique<BarrierService>(); }

}  // namespace paceline

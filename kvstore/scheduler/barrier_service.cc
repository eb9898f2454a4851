// Barriers of the live workers, numbered as barrier_number.h says. A barrier is passed when every live worker has asked
// for it, for a later barrier, or for its part of a later epoch. A request with number 0 asks which barrier was passed
// last. A worker that joins later thus learns how far the others are.

#include <message.pb.h>
#include <paceline/error.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "barrier_number.h"
#include "parse_body.h"
#include "replies.h"
#include "scheduler.h"

namespace paceline {
namespace {

class BarrierService final : public SchedulerService {
 public:
  bool on_request(const Request& request) override {
    if (request.message().header.kind == MessageKind::kDataPart) return begin_epoch(request);
    if (request.message().header.kind != MessageKind::kBarrier) return false;
    const auto body = parse_body<proto::Barrier>(request.message());
    if (request.from().role != Role::kWorker)
      throw InvalidArgument("[barrier] it is for workers; " + name_of(request.from()) + " asked");
    if (body.number() == 0) {
      answer(request, passed_);
      return true;
    }
    Worker& worker = workers_[request.incarnation()];
    const std::uint64_t before = worker.reached;
    worker.reached = std::max(worker.reached, body.number());
    clock_ = std::max(clock_, body.clock());
    worker.waiting.push_back({body.number(), body.joining(), request, body.name(), body.value(), before});
    release();
    return true;
  }

  std::set<PeerId> waiting() const override {
    std::set<PeerId> workers;
    for (const auto& [incarnation, worker] : workers_)
      for (const Waiting& entry : worker.waiting) workers.insert(entry.request.from());
    return workers;
  }

  std::size_t waits() const override {
    std::size_t count = 0;
    for (const auto& [incarnation, worker] : workers_) count += worker.waiting.size();
    return count;
  }

  void refuse_waiting(const std::set<PeerId>& others) override {
    std::string who;
    for (const PeerId& other : others) who += (who.empty() ? "" : ", ") + name_of(other);
    for (auto& [incarnation, worker] : workers_)
      for (const Waiting& entry : std::exchange(worker.waiting, {})) {
        worker.reached = entry.reached_before;
        const std::string call =
            entry.name.empty() ? "barrier() or a function with one" : "all_gather() of '" + entry.name + "'";
        entry.request.refuse(
            InvalidArgument(str("[barrier] this worker calls ", call, " within an epoch, and ", who,
                                " has no batch left and waits for the end of the epoch; a worker may have a batch "
                                "more than another, so make collective calls between epochs")));
      }
  }

  void on_roster(const Roster& roster) override {
    live_.clear();
    for (const Peer& peer : roster.peers)
      if (peer.id.role == Role::kWorker && peer.alive) live_.push_back(peer.incarnation);
    if (at_start_.empty()) at_start_.insert(live_.begin(), live_.end());
    std::erase_if(workers_,
                  [&](const auto& entry) { return std::find(live_.begin(), live_.end(), entry.first) == live_.end(); });
    release();
  }

 private:
  // The values that the workers gather at one barrier.
  struct Meeting {
    proto::Barrier body;
    std::string name, mismatch;
    int first = 0;         // rank of the worker that gave `name`
    bool of_late = false;  // a worker that joined after the start is among those that gave values

    void add(int rank, const std::string& its_name, const std::string& value) {
      if (body.given().empty()) {
        name = its_name;
        first = rank;
      }
      if (its_name != name) differs(str("worker ", rank, " gathers '", its_name, "'"));
      proto::Barrier::Given* given = body.add_given();
      given->set_rank(static_cast<std::uint32_t>(rank));
      given->set_value(value);
    }
    void differs(const std::string& how) {
      mismatch = str("worker ", first, " gathers '", name, "' where ", how,
                     "; every worker makes the same collective calls in the same order");
    }
  };
  struct Waiting {
    std::uint64_t number = 0;
    bool joining = false;
    Request request;
    std::string name = {}, value = {};  // of all_gather(); empty name: a mere barrier
    std::uint64_t reached_before = 0;   // Worker::reached without this request
  };
  struct Worker {
    std::uint64_t reached = 0;
    std::vector<Waiting> waiting;
  };

  // A worker that asks for its part of an epoch has reached all barriers before that epoch. Returns false, so that the
  // data service answers the request.
  bool begin_epoch(const Request& request) {
    proto::DataPart body;
    if (request.from().role != Role::kWorker || !body.ParseFromString(request.message().body)) return false;
    std::uint64_t& reached = workers_[request.incarnation()].reached;
    reached = std::max(reached, barriers_before(body.epoch()));
    release();
    return false;
  }

  void release() {
    if (live_.empty()) return;
    std::uint64_t passed = UINT64_MAX;
    for (const std::uint64_t incarnation : live_) {
      const auto worker = workers_.find(incarnation);
      passed = std::min(passed, worker == workers_.end() ? 0 : worker->second.reached);
    }
    // The leader (Backend::leads()) is the lowest rank among the workers that wait at a barrier which is now passed.
    // Workers without weights cannot lead.
    std::set<int> met;
    for (const auto& [incarnation, worker] : workers_)
      for (const Waiting& entry : worker.waiting)
        if (!entry.joining && entry.number > passed_ && entry.number <= passed) met.insert(entry.request.from().rank);
    if (!met.empty()) leader_ = *met.begin();
    for (const auto& [incarnation, worker] : workers_)
      for (const Waiting& entry : worker.waiting)
        if (!entry.name.empty() && entry.number > passed_ && entry.number <= passed) {
          Meeting& meeting = meetings_[entry.number];
          meeting.add(entry.request.from().rank, entry.name, entry.value);
          meeting.of_late |= is_late(incarnation);
        }
    for (const auto& [incarnation, worker] : workers_)
      for (const Waiting& entry : worker.waiting) {
        if (!entry.name.empty() || !must_meet(entry)) continue;
        const auto meeting = meetings_.find(entry.number);
        if (entry.number <= passed_ || meeting == meetings_.end() || meeting->second.of_late) continue;
        meeting->second.differs(str("worker ", entry.request.from().rank, " calls barrier() or a function with one"));
      }
    passed_ = std::max(passed_, passed);
    for (auto& [incarnation, worker] : workers_)
      std::erase_if(worker.waiting, [&](const Waiting& entry) {
        if (entry.number > passed_) return false;
        answer(entry);
        return true;
      });
    // Every live worker has come to a later barrier, so none needs these values again.
    meetings_.erase(meetings_.begin(), meetings_.lower_bound(passed));
  }

  void answer(const Waiting& entry) const {
    // A worker that joined late may gather under another name at a barrier that the others have passed, or have a mere
    // barrier there. It gets no values.
    const auto meeting = meetings_.find(entry.number);
    const bool met = meeting != meetings_.end();
    if (met && meeting->second.mismatch.empty() && meeting->second.name == entry.name)
      return answer(entry.request, entry.number, meeting->second.body);
    proto::Barrier body;
    if (met && (!entry.name.empty() || must_meet(entry))) body.set_mismatch(meeting->second.mismatch);
    answer(entry.request, entry.number, std::move(body));
  }

  void answer(const Request& request, std::uint64_t number, proto::Barrier body = {}) const {
    body.set_number(number);
    body.set_late(is_late(request.incarnation()));
    body.set_clock(clock_);
    body.set_leader(static_cast<std::uint32_t>(leader_));
    reply(request, body);
  }

  bool is_late(std::uint64_t incarnation) const { return at_start_.count(incarnation) == 0; }
  // A late worker may count its barriers otherwise, so it may have a mere barrier where the others gather.
  bool must_meet(const Waiting& entry) const { return !entry.joining && !is_late(entry.request.incarnation()); }

  std::uint64_t clock_ = 0;  // largest clock so far; every worker leaves a barrier with at least this clock
  std::uint64_t passed_ = 0;
  int leader_ = 0;
  std::set<std::uint64_t> at_start_;  // incarnations of the workers that were there at the start
  std::vector<std::uint64_t> live_;
  std::map<std::uint64_t, Worker> workers_;
  std::map<std::uint64_t, Meeting> meetings_;  // by barrier, until every live worker has asked for a later one
};

}  // namespace

std::unique_ptr<SchedulerService> make_barrier_service() { return std::make_unique<BarrierService>(); }

}  // namespace paceline

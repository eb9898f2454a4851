// Records which worker delivers which positions of an epoch. Each epoch has
//   parts       one for each worker that was live when the first worker asked for its part, in order of rank
//   assigned    for each worker: the positions that it will deliver and has not committed
//   unassigned  positions of workers that have not begun the epoch
//   left        positions for any worker that asks, such as those of lost workers
//   done        committed positions
//   notes       the notes of commits
// begin() moves positions from unassigned to assigned. commit() moves positions from assigned to done. The loss of a
// worker moves its assigned positions to left. take_over() moves positions from left to the caller's assigned ones.
// When every worker of the epoch has begun or will not begin, the positions that are still unassigned go to left. If
// workers get positions only on request, all positions are in left at first.
//
// An epoch of training has a number that barriers count (barrier_number.h). The other epochs are those of evaluations.
// A worker that has asked for its part of an epoch of training begins no evaluation that belongs to an earlier one.

#include <message.pb.h>
#include <paceline/backend.h>
#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "barrier_number.h"
#include "parse_body.h"
#include "position_set.h"
#include "replies.h"
#include "roster.h"
#include "scheduler.h"

namespace paceline {
namespace {

// The smallest number of positions in an answer if the scheduler chooses the number, unless fewer are left. It is
// small, so that the live workers share what is left.
constexpr std::int64_t kSmallestPiece = 256;

PositionSet from_proto(const proto::Ranges& ranges) {
  if (ranges.bounds_size() % 2 != 0) throw Corrupt("[data] a range without an end");
  PositionSet set;
  for (int i = 0; i < ranges.bounds_size(); i += 2) {
    if (ranges.bounds(i) < 0 || ranges.bounds(i) > ranges.bounds(i + 1))
      throw Corrupt(str("[data] ", ranges.bounds(i), " to ", ranges.bounds(i + 1), " is no range of positions"));
    set.add(ranges.bounds(i), ranges.bounds(i + 1));
  }
  return set;
}

proto::Ranges to_proto(const PositionSet& set) {
  proto::Ranges ranges;
  for (const auto& [begin, end] : set.ranges()) {
    ranges.add_bounds(begin);
    ranges.add_bounds(end);
  }
  return ranges;
}

bool is_training(std::int64_t epoch) { return barriers_before(epoch) != 0; }

std::string name_of_epoch(std::int64_t epoch) {
  return is_training(epoch) ? str("epoch ", epoch + 1) : std::string("an evaluation");
}

class DataService final : public SchedulerService {
 public:
  bool on_request(const Request& request) override {
    switch (request.message().header.kind) {
      case MessageKind::kDataPart: part(request); return true;
      case MessageKind::kDataBegin: begin(request); return true;
      case MessageKind::kDataCommit: commit(request); return true;
      case MessageKind::kDataCommitted: committed(request); return true;
      case MessageKind::kDataTakeOver: take_over(request); return true;
      default: return false;
    }
  }

  std::set<PeerId> waiting() const override {
    std::set<PeerId> workers;
    for (const Waiting& waiting : waiting_) workers.insert(waiting.request.from());
    for (const PartRequest& asked : part_requests_) workers.insert(asked.request.from());
    return workers;
  }

  std::size_t waits() const override { return waiting_.size() + part_requests_.size(); }

  void on_roster(const Roster& roster) override {
    std::map<std::uint64_t, Peer> live;
    for (const Peer& peer : roster.peers)
      if (peer.id.role == Role::kWorker && peer.alive) live[peer.incarnation] = peer;
    live.swap(live_);
    if (at_start_.empty())
      for (const auto& [incarnation, peer] : live_) at_start_.insert(incarnation);
    for (const auto& [incarnation, peer] : live) {
      if (live_.count(incarnation) > 0) continue;
      const Peer* now = roster.find(peer.id);
      lose(incarnation, describe(peer) + (now && now->finished ? " has left" : " was lost"));
    }
    settle();
    if (roster.over && taken_over_ > 0)
      LOG(INFO) << std::exchange(taken_over_, 0) << " positions were taken over from lost workers";
  }

 private:
  struct Part {
    std::uint64_t incarnation = 0;
    int rank = 0;
    bool begun = false;
    bool absent = false;     // the worker is lost, or trains in an epoch later than `within`
    bool handed_on = false;  // the worker was absent before it began, and its positions went to `left`
  };
  struct Epoch {
    // Of an epoch of training: its own number. Of an evaluation: the last epoch of training that its first worker had
    // asked for, or -1.
    std::int64_t within = -1;
    bool over = false;  // all is committed, and every live worker trains in a later epoch
    std::vector<Part> parts;
    bool known = false;  // a worker has begun the epoch
    bool on_request = false;
    std::string order;
    PositionSet unassigned;
    std::map<std::uint64_t, std::uint64_t> begun;   // by incarnation: the number of its last kDataBegin
    std::map<std::uint64_t, PositionSet> assigned;  // by incarnation
    PositionSet left;
    PositionSet again;  // positions of lost workers that nobody has taken over yet
    PositionSet done;
    std::map<std::int64_t, std::string> notes;  // by the first position of each commit

    Part* of(std::uint64_t incarnation) {
      for (Part& part : parts)
        if (part.incarnation == incarnation) return &part;
      return nullptr;
    }
    bool all_began_or_are_absent() const {
      return std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.begun || part.absent; });
    }
    bool committed() const {
      return all_began_or_are_absent() && left.empty() &&
             std::all_of(assigned.begin(), assigned.end(), [](const auto& entry) { return entry.second.empty(); });
    }
  };
  struct Waiting {
    Request request;
    std::int64_t epoch = 0;
    std::uint64_t number = 0;
    PieceSize size;
  };
  struct PartRequest {  // one that has no answer yet
    Request request;
    std::int64_t epoch = 0;
    bool newcomer = false;  // it joined after the start, and has not trained yet
  };
  struct Given {  // the last answer that a worker got from take_over()
    std::uint64_t number = 0;
    proto::DataTakeOverReply body;
  };

  // Throws InvalidArgument for a number that leaves no room to count in.
  Epoch& epoch_of(std::int64_t number) {
    constexpr std::int64_t kMost = std::int64_t{1} << 62;
    require(number > -kMost && number < kMost, "[data] ", number, " is not the number of an epoch");
    return epochs_[number];
  }

  void part(const Request& request) {
    const std::int64_t number = parse_body<proto::DataPart>(request.message()).epoch();
    epoch_of(number);
    const bool newcomer = at_start_.count(request.incarnation()) == 0 && trains_in(request.incarnation()) < 0;
    if (is_training(number)) {
      std::int64_t& trains = trains_in_.try_emplace(request.incarnation(), -1).first->second;
      trains = std::max(trains, number);
      for (const std::int64_t other : unsettled_) note_absent(epochs_.at(other));
      forget_old_epochs();
    }
    part_requests_.push_back({request, number, newcomer});
    settle();
  }

  // A newcomer may come to an epoch while the others are still between this epoch and the one before. It waits for
  // them: a checkpoint that they write there must not contain what it learns from the new epoch.
  bool too_early(const PartRequest& asked) const {
    if (!is_training(asked.epoch) || !asked.newcomer) return false;
    if (const Epoch& epoch = epochs_.at(asked.epoch); !epoch.parts.empty() || epoch.over) return false;
    return std::any_of(trains_in_.begin(), trains_in_.end(),
                       [&](const auto& worker) { return worker.second < asked.epoch; });
  }

  void answer_part(const PartRequest& asked) {
    const std::uint64_t incarnation = asked.request.incarnation();
    Epoch& epoch = epochs_.at(asked.epoch);
    if (epoch.parts.empty() && !epoch.over) {
      for (const auto& [live, peer] : live_) epoch.parts.push_back({live, peer.id.rank});
      std::sort(epoch.parts.begin(), epoch.parts.end(), [](const Part& a, const Part& b) { return a.rank < b.rank; });
      epoch.within = is_training(asked.epoch) ? asked.epoch : trains_in(incarnation);
      note_absent(epoch);
      unsettled_.insert(asked.epoch);
      unforgotten_.insert(asked.epoch);
    }
    Part* mine = epoch.of(incarnation);
    if (!mine) {
      // A worker gets the part of the lost worker of the same rank, if that worker had not begun the epoch.
      for (Part& part : epoch.parts)
        if (part.rank == asked.request.from().rank && part.absent && !part.begun) mine = &part;
    }
    proto::DataPartReply answer;
    if (mine && !mine->handed_on) {
      mine->incarnation = incarnation;
      mine->absent = false;
      answer.set_index(static_cast<int>(mine - epoch.parts.data()));
      answer.set_count(static_cast<int>(epoch.parts.size()));
    }
    reply(asked.request, answer);
  }

  std::int64_t trains_in(std::uint64_t incarnation) const {
    const auto found = trains_in_.find(incarnation);
    return found == trains_in_.end() ? -1 : found->second;
  }

  void note_absent(Epoch& epoch) const {
    for (Part& part : epoch.parts) part.absent |= !part.begun && trains_in(part.incarnation) > epoch.within;
  }

  // Forgets the parts of epochs that are committed and that every live worker has left behind, and the notes of
  // evaluations. The committed positions stay.
  void forget_old_epochs() {
    if (trains_in_.size() < live_.size()) return;
    std::int64_t slowest = INT64_MAX;
    for (const auto& [incarnation, epoch] : trains_in_) slowest = std::min(slowest, epoch);
    for (auto entry = unforgotten_.begin(); entry != unforgotten_.end();) {
      Epoch& epoch = epochs_.at(*entry);
      const bool old = epoch.within < slowest && !epoch.parts.empty() && epoch.committed();
      if (old) {
        Epoch rest;
        rest.within = epoch.within;
        rest.over = rest.known = true;
        rest.on_request = epoch.on_request;
        rest.order = std::move(epoch.order);
        rest.done = std::move(epoch.done);
        if (is_training(*entry)) rest.notes = std::move(epoch.notes);
        epoch = std::move(rest);
      }
      entry = old ? unforgotten_.erase(entry) : std::next(entry);
    }
  }

  void begin(const Request& request) {
    const auto body = parse_body<proto::DataBegin>(request.message());
    const PositionSet mine = from_proto(body.mine()), all = from_proto(body.all());
    Epoch& epoch = epoch_of(body.epoch());
    const auto begun = epoch.begun.find(request.incarnation());
    const bool again = begun != epoch.begun.end();
    if (again && body.number() <= begun->second) return request.reply({});
    if (again && epoch.order != body.order())
      throw InvalidArgument(str("[data] another iterator of this worker has begun ", name_of_epoch(body.epoch()),
                                ", in the order '", epoch.order, "' and not in '", body.order(),
                                "'; give this one other numbers of epochs"));
    if (epoch.known && epoch.order != body.order())
      throw InvalidArgument(str("[data] this worker would deliver ", name_of_epoch(body.epoch()), " in the order '",
                                body.order(), "', and the others in '", epoch.order,
                                "'; start all workers with the same data set, seed and options"));
    if (epoch.known && epoch.on_request != body.on_request())
      throw InvalidArgument(str("[data] of ", name_of_epoch(body.epoch()),
                                " some workers take parts of equal size, and others what they get done; start all "
                                "workers with the same balance"));
    Part* const part = epoch.of(request.incarnation());
    if (part && part->handed_on && !mine.empty())
      throw InvalidArgument(str("[data] this worker began a later epoch before ", name_of_epoch(body.epoch()),
                                ", and the others have its part; ask for a part of it anew"));
    epoch.begun[request.incarnation()] = body.number();
    PositionSet& assigned = epoch.assigned[request.incarnation()];
    if (again) {  // the worker begins the epoch again, and gives back the positions that it had taken over
      PositionSet back = assigned;
      back.subtract(mine);
      epoch.left.add(back);
      assigned.subtract(back);
    } else {
      assigned.add(mine);
      if (!epoch.known) (body.on_request() ? epoch.left : epoch.unassigned) = all;
      epoch.known = true;
      epoch.on_request = body.on_request();
      epoch.order = body.order();
      epoch.unassigned.subtract(mine);
      if (part) part->begun = true;
    }
    request.reply({});
    settle();
  }

  void commit(const Request& request) {
    const auto body = parse_body<proto::DataCommit>(request.message());
    const PositionSet done = from_proto(body.done());
    Epoch& epoch = epoch_of(body.epoch());
    const auto assigned = epoch.assigned.find(request.incarnation());
    if (assigned != epoch.assigned.end()) assigned->second.subtract(done);
    epoch.left.subtract(done);  // they may have been given back before this commit came
    epoch.done.add(done);
    if (body.has_note()) {
      if (done.empty()) throw Corrupt("[data] a note without positions");
      epoch.notes[done.ranges().begin()->first] = body.note();
    }
    request.reply({});
    settle();
  }

  void committed(const Request& request) {
    const auto body = parse_body<proto::DataCommitted>(request.message());
    proto::DataCommittedReply answer;
    const auto epoch = epochs_.find(body.epoch());
    if (epoch != epochs_.end() && body.notes())
      for (const auto& [first, note] : epoch->second.notes) answer.add_notes(note);
    else if (epoch != epochs_.end())
      *answer.mutable_positions() = to_proto(epoch->second.done);
    reply(request, answer);
  }

  void take_over(const Request& request) {
    const auto body = parse_body<proto::DataTakeOver>(request.message());
    const auto given = given_.find(request.incarnation());
    if (given != given_.end() && body.number() <= given->second.number) {
      reply(request, given->second.body);
      return;
    }
    epoch_of(body.epoch());
    Waiting waiting{request, body.epoch(), body.number(), {body.wanted(), body.multiple()}};
    if (try_give(waiting, !body.wait())) return;
    waiting_.push_back(std::move(waiting));
  }

  // Pieces shrink as fewer positions are left, so that all workers end together.
  std::int64_t size_of_piece(std::int64_t left, PieceSize size) const {
    const auto takers = static_cast<std::int64_t>(std::max<std::size_t>(1, live_.size()));
    const std::int64_t fair = left / (2 * takers);
    if (size.wanted <= 0) return std::max(kSmallestPiece, fair);
    const std::int64_t multiple = std::clamp<std::int64_t>(size.multiple, 1, std::max<std::int64_t>(1, left));
    return std::max<std::int64_t>(1, std::min(size.wanted, fair) / multiple) * multiple;
  }

  // True if the request was answered. Without `at_once`, an empty answer means that every position is committed.
  bool try_give(const Waiting& waiting, bool at_once) {
    const std::uint64_t taker = waiting.request.incarnation();
    Epoch& epoch = epochs_.at(waiting.epoch);
    if (epoch.left.empty() && !at_once && !epoch.committed()) return false;
    const PositionSet piece = epoch.left.take(size_of_piece(epoch.left.count(), waiting.size));
    epoch.assigned[taker].add(piece);
    const std::int64_t before = epoch.again.count();
    epoch.again.subtract(piece);
    taken_over_ += before - epoch.again.count();
    Given& given = given_[taker];
    given.number = waiting.number;
    *given.body.mutable_positions() = to_proto(piece);
    reply(waiting.request, given.body);
    return true;
  }

  void lose(std::uint64_t incarnation, const std::string& who) {
    given_.erase(incarnation);
    trains_in_.erase(incarnation);
    std::erase_if(part_requests_, [&](const PartRequest& asked) { return asked.request.incarnation() == incarnation; });
    std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.request.incarnation() == incarnation; });
    for (auto& [number, epoch] : epochs_) {
      if (Part* part = epoch.of(incarnation)) part->absent = true;
      const auto assigned = epoch.assigned.find(incarnation);
      if (assigned == epoch.assigned.end()) continue;
      hand_on(epoch, number, assigned->second, who);
      epoch.assigned.erase(assigned);
    }
  }

  void hand_on(Epoch& epoch, std::int64_t number, const PositionSet& positions, const std::string& who) {
    if (positions.empty()) return;
    LOG(WARNING) << who << "; " << positions.count() << " positions of " << name_of_epoch(number)
                 << " that it had not committed go to the others";
    epoch.left.add(positions);
    epoch.again.add(positions);
  }

  // Call it after an epoch or the roster has changed. Hands on parts that nobody will begin, and answers waiting
  // requests where this is now possible.
  void settle() {
    const auto answer_in_time = [this](const PartRequest& asked) {
      if (too_early(asked)) return false;
      answer_part(asked);
      return true;
    };
    // An answer may let others be answered that were too early before.
    while (std::erase_if(part_requests_, answer_in_time) > 0) {
    }
    std::erase_if(unsettled_, [this](std::int64_t number) {
      Epoch& epoch = epochs_.at(number);
      if (!epoch.known || !epoch.all_began_or_are_absent()) return false;
      const auto never_begun = [](const Part& part) { return part.absent && !part.begun; };
      if (std::any_of(epoch.parts.begin(), epoch.parts.end(), never_begun)) {
        for (Part& part : epoch.parts) part.handed_on = never_begun(part);
        hand_on(epoch, number, epoch.unassigned, "a worker was lost, or went on, before it began");
        epoch.unassigned.clear();
      }
      return true;
    });
    std::erase_if(waiting_, [this](const Waiting& waiting) { return try_give(waiting, false); });
  }

  std::set<std::uint64_t> at_start_;                 // incarnations of the workers that were there at the start
  std::map<std::uint64_t, Peer> live_;               // workers, by incarnation
  std::map<std::uint64_t, std::int64_t> trains_in_;  // by incarnation: the last epoch of training that it asked for
  std::map<std::int64_t, Epoch> epochs_;
  std::set<std::int64_t> unsettled_;    // epochs with parts that may still begin or be handed on
  std::set<std::int64_t> unforgotten_;  // epochs of which more than the positions is known
  std::vector<PartRequest> part_requests_;
  std::map<std::uint64_t, Given> given_;
  std::vector<Waiting> waiting_;
  std::int64_t taken_over_ = 0;
};

}  // namespace

std::unique_ptr<SchedulerService> make_data_service() { return std::make_unique<DataService>(); }

}  // namespace paceline

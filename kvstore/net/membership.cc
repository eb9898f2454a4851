#include "membership.h"

#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "random.h"

namespace paceline {
namespace {

constexpr double kSlowSeconds = 10;  // seconds without progress after which the log names a worker that others wait for

Peer scheduler_peer(std::uint64_t incarnation, const std::string& address, const std::string& key) {
  Peer peer;
  peer.id = {Role::kScheduler, 0};
  peer.incarnation = incarnation;
  peer.address = address;
  peer.key = key;
  return peer;
}

std::string who(Role role, const std::string& host, std::int64_t pid) {
  return str(name_of(role), " at ", host, " (process ", pid, ")");
}

}  // namespace

Membership::Membership(const ClusterConfig& config, std::uint64_t incarnation, std::uint64_t job,
                       const std::string& address, const std::string& key)
    : config_(config), job_(job), self_(scheduler_peer(incarnation, address, key)), last_incarnation_(incarnation) {}

int Membership::wanted(Role role) const { return role == Role::kServer ? config_.servers : config_.workers; }

std::size_t Membership::count(Role role) const {
  return static_cast<std::size_t>(
      std::count_if(members_.begin(), members_.end(), [&](const Member& m) { return m.peer.id.role == role; }));
}

std::uint64_t Membership::next_incarnation() {
  // The gaps between incarnations are random. A stranger therefore cannot guess the incarnation of a process and speak
  // in its name.
  constexpr std::uint64_t kGap = std::uint64_t{1} << 32;
  return last_incarnation_ += 1 + random_number() % kGap;
}

Membership::Member* Membership::find(std::uint64_t sender) {
  if (sender == 0) return nullptr;
  for (std::vector<Member>* list : {&members_, &late_})
    for (Member& member : *list)
      if (member.peer.incarnation == sender || member.provisional == sender) return &member;
  return nullptr;
}

bool Membership::join(const Request& request, LinkId link, const std::string& key) {
  proto::Join body;
  if (!body.ParseFromString(request.message().body) || (body.role() != static_cast<std::uint32_t>(Role::kServer) &&
                                                        body.role() != static_cast<std::uint32_t>(Role::kWorker)))
    throw Corrupt("[join] the request cannot be read");
  if ((request.message().header.incarnation & kProvisionalIncarnation) == 0)
    throw Corrupt("[join] the sender's number is none of a process that has not joined");
  const Role role = static_cast<Role>(body.role());
  const std::string name = who(role, body.host(), body.pid());
  // The error does not contain the name of this job: a process of another job must not learn it.
  if (body.job() != config_.job)
    throw NetworkError(str("the scheduler at ", self_.address, " serves another job than '", body.job(), "' of the ",
                           name, "; give each job its own address"));
  if (static_cast<int>(body.servers()) != config_.servers || static_cast<int>(body.workers()) != config_.workers)
    throw NetworkError(str(name, " believes that the job has ", body.servers(), " servers and ", body.workers(),
                           " workers; the scheduler has been told ", config_.servers, " and ", config_.workers,
                           "; give every process the same DMLC_NUM_SERVER and DMLC_NUM_WORKER"));

  const Lock lock(mutex_);
  if (given_up_) std::rethrow_exception(given_up_);
  if (Member* known = find(request.message().header.incarnation)) {
    known->request = request;
    if (known->peer.incarnation != 0) answer(*known);
    return false;
  }
  Member member;
  member.peer.id.role = role;
  member.peer.host = body.host();
  member.peer.address = body.address();
  member.peer.key = key;
  member.provisional = request.message().header.incarnation;
  member.task = static_cast<int>(body.task());
  member.pid = body.pid();
  member.link = link;
  member.request = request;
  if (epoch_ > 0) {
    if (over_ || !failure_.empty()) throw NetworkError(too_late(name));
    if (role == Role::kServer) throw NetworkError(str(name, " comes too late: the job has all its servers"));
    if (late_.size() >= static_cast<std::size_t>(config_.workers)) throw NetworkError(name + " is one too many");
    late_.push_back(std::move(member));
    return place_late();
  }
  refuse_task_twice(member);
  if (count(role) >= static_cast<std::size_t>(wanted(role)))
    throw NetworkError(
        str("the job has ", wanted(role), " ", name_of(role), "s and all have joined; ", name, " is one too many"));
  LOG(INFO) << name << " has joined";
  members_.push_back(std::move(member));
  return start_if_complete();
}

// Refuses a newcomer whose task number another process has. If that process is silent, it may have been started again,
// and the newcomer replaces it.
void Membership::refuse_task_twice(const Member& newcomer) {
  if (newcomer.task < 0) return;
  const auto same = std::ranges::find_if(members_, [&](const Member& member) {
    return member.peer.id.role == newcomer.peer.id.role && member.task == newcomer.task;
  });
  if (same == members_.end()) return;
  const std::string first = who(same->peer.id.role, same->peer.host, same->pid);
  if (same->silent < 3 * config_.heartbeat_seconds)
    throw NetworkError(str(first, " has already joined with task number ", newcomer.task, "; ",
                           who(newcomer.peer.id.role, newcomer.peer.host, newcomer.pid),
                           " has the same; give every process a DMLC_TASK_ID of its own"));
  const std::string what = first + " fell silent before the start, and another process comes in its place";
  LOG(WARNING) << what;
  same->request.refuse(NetworkError(what));
  members_.erase(same);
}

bool Membership::start_if_complete() {
  if (count(Role::kServer) < static_cast<std::size_t>(config_.servers) ||
      count(Role::kWorker) < static_cast<std::size_t>(config_.workers))
    return false;
  const auto order = [](const Member& member) {
    return std::make_pair(member.peer.id.role, member.task >= 0 ? member.task : std::numeric_limits<int>::max());
  };
  std::stable_sort(members_.begin(), members_.end(),
                   [&](const Member& a, const Member& b) { return order(a) < order(b); });
  int next[3] = {0, 0, 0};
  for (Member& member : members_) {
    member.peer.id.rank = next[static_cast<int>(member.peer.id.role)]++;
    member.peer.incarnation = next_incarnation();
    member.peer.entered = member.peer.id.role == Role::kWorker;
    member.changed = epoch_ + 1;
  }
  changed();
  for (Member& member : members_) answer(member);
  LOG(INFO) << "all processes have joined: servers " << config_.servers << ", workers " << config_.workers;
  return true;
}

void Membership::answer(Member& member) {
  proto::Joined body;
  body.set_job(job_);
  body.set_rank(static_cast<std::uint32_t>(member.peer.id.rank));
  body.set_incarnation(member.peer.incarnation);
  *body.mutable_roster() = to_proto(notice_locked(0));
  member.told = epoch_;
  Message message;
  message.body = body.SerializeAsString();
  std::exchange(member.request, {}).reply(std::move(message));
}

// Gives a late worker the rank of a lost worker, preferably of one with the same task number.
bool Membership::place(Member& late) {
  Member* free = nullptr;
  for (Member& member : members_) {
    if (member.peer.id.role != late.peer.id.role || member.peer.alive || member.peer.finished) continue;
    if (!free || (late.task >= 0 && member.task == late.task)) free = &member;
  }
  if (!free) return false;
  late.peer.id = free->peer.id;
  gone_.emplace_back(free->peer.incarnation, describe(free->peer));
  late.peer.incarnation = next_incarnation();
  late.changed = epoch_ + 1;
  late.silent = late.still = 0;
  late.returned = true;
  *free = std::move(late);
  LOG(WARNING) << describe(free->peer) << " takes the place of the one that was lost";
  changed();
  answer(*free);
  return true;
}

bool Membership::place_late() {
  bool any = false;
  for (std::size_t i = 0; i < late_.size();) {
    if (!place(late_[i])) {
      ++i;
      continue;
    }
    late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(i));
    any = true;
  }
  return any;
}

std::string Membership::too_late(const std::string& name) const {
  return str(name, " comes too late: the job is ", over_ ? "over" : "ending, " + failure_);
}

// The scheduler ends soon, so newcomers that wait for a place must hear now that they get none.
void Membership::refuse_late() {
  if (!over_ && failure_.empty()) return;
  for (Member& member : late_)
    member.request.refuse(NetworkError(too_late(who(member.peer.id.role, member.peer.host, member.pid))));
  late_.clear();
}

bool Membership::heard(std::uint64_t sender, LinkId link, std::uint64_t epoch, const proto::Heartbeat& activity,
                       std::string& why) {
  const Lock lock(mutex_);
  Member* member = find(sender);
  if (!member) {
    why = "the scheduler does not know this process: it belongs to an earlier start of the job";
    for (const auto& [incarnation, name] : gone_)
      if (incarnation == sender) why = name + " was declared lost and its place was taken";
    return false;
  }
  if (!member->peer.alive && !member->peer.finished) {
    why = describe(member->peer) + " was declared lost: " + member->lost;
    return false;
  }
  member->link = link;
  member->silent = 0;
  member->knows = std::max(member->knows, epoch);
  const bool got_on = activity.step() != member->activity.step() || activity.calls() != member->activity.calls();
  if (got_on) member->still = 0;
  member->activity = activity;
  return true;
}

bool Membership::is_member(std::uint64_t sender) const {
  const Lock lock(mutex_);
  return std::ranges::any_of(members_,
                             [sender](const Member& m) { return sender != 0 && m.peer.incarnation == sender; });
}

bool Membership::leave(std::uint64_t sender) {
  const Lock lock(mutex_);
  Member* member = find(sender);
  if (!member || !member->peer.alive) return false;
  member->peer.alive = false;
  member->peer.finished = true;
  member->changed = epoch_ + 1;
  LOG(INFO) << describe(member->peer) << " has left";
  changed();
  refuse_late();
  return true;
}

bool Membership::enter(std::uint64_t sender) {
  const Lock lock(mutex_);
  Member* member = find(sender);
  if (!member || !member->peer.alive) return false;
  member->peer.entered = true;
  member->changed = epoch_ + 1;
  changed();
  return true;
}

bool Membership::ended(Role role, int task, const std::string& how) {
  const Lock lock(mutex_);
  if (epoch_ == 0) {
    if (start_failure_.empty()) start_failure_ = str("the job cannot start: ", name_of(role), " ", task, " ", how);
    return false;
  }
  const auto found = std::ranges::find_if(members_, [&](const Member& member) {
    return member.peer.id.role == role && member.task == task && !member.returned;
  });
  if (found == members_.end() || !found->peer.alive || !failure_.empty()) return false;
  lose(*found, "it " + how);
  changed();
  place_late();
  refuse_late();
  return true;
}

void Membership::lose(Member& member, const std::string& how) {
  member.peer.alive = false;
  member.changed = epoch_ + 1;
  member.lost = how;
  const std::string name = describe(member.peer);
  LOG(WARNING) << name << " was lost: " << how;
  if ((member.peer.id.role == Role::kServer || config_.stop_on_worker_loss) && !over_)
    failure_ = str(name, " was lost (", how, "); the job cannot go on without it");
}

bool Membership::tick(double seconds) {
  const Lock lock(mutex_);
  for (Member& member : late_) member.waited += seconds;
  for (std::vector<Member>* list : {&members_, &late_})
    for (Member& member : *list) member.silent += seconds, member.still += seconds;
  const auto silent = [&](const Member& member) { return member.silent > config_.silence_deadline_seconds; };

  const auto gives_up = [&](const Member& member) {
    if (!silent(member)) return false;
    const std::string what =
        who(member.peer.id.role, member.peer.host, member.pid) + " fell silent before it came into the job";
    LOG(WARNING) << what;
    member.request.refuse(NetworkError(what + "; start it again"));
    return true;
  };
  std::erase_if(late_, [&](const Member& member) {
    if (gives_up(member)) return true;
    if (member.waited < config_.silence_deadline_seconds + 2 * config_.heartbeat_seconds) return false;
    member.request.refuse(
        NetworkError(str("the job has ", config_.workers, " workers and all are there; ",
                         who(member.peer.id.role, member.peer.host, member.pid), " is one too many")));
    return true;
  });
  if (epoch_ == 0) {
    std::erase_if(members_, gives_up);
    return false;
  }
  bool any = false;
  for (Member& member : members_) {
    if (!member.peer.alive || !silent(member) || !failure_.empty()) continue;
    lose(member, "nothing heard of it for " + in_seconds(member.silent));
    any = true;
  }
  any |= lose_whom_all_wait_for();
  if (any) changed();
  any |= place_late();
  refuse_late();
  return any;
}

// A worker that sends heartbeats may still hang, in the user's code for example. The other workers then wait in
// requests to servers or to the scheduler, which are not to blame.
bool Membership::lose_whom_all_wait_for() {
  const double deadline = config_.progress_deadline_seconds;  // 0: none
  const double slow =
      std::min({kSlowSeconds, config_.silence_deadline_seconds, deadline > 0 ? deadline : kSlowSeconds});
  Member* still = nullptr;
  int waiting = 0;
  for (Member& member : members_) {
    if (member.peer.id.role != Role::kWorker || !member.peer.alive) continue;
    if (member.activity.waiting() >= slow)
      ++waiting;
    else if (member.activity.waiting() == 0 && member.still >= slow && (!still || member.still > still->still))
      still = &member;
  }
  waited_for_.clear();
  if (waiting == 0 || !still) return false;
  const std::string since =
      str("it has ended ", still->activity.step(), " steps, and has asked nothing for ", in_seconds(still->still));
  waited_for_ =
      str(waiting, waiting == 1 ? " worker waits for " : " workers wait for ", describe(still->peer), ": ", since);
  if (deadline == 0 || still->still <= deadline) return false;
  lose(*still, since + " while others waited for it");
  return true;
}

void Membership::changed() {
  ++epoch_;
  int live = 0, finished = 0;
  const Member* last_lost = nullptr;
  for (const Member& member : members_) {
    if (member.peer.id.role != Role::kWorker) continue;
    live += member.peer.alive;
    finished += member.peer.finished;
    if (!member.peer.alive && !member.peer.finished) last_lost = &member;
  }
  over_ = live == 0;
  if (over_ && finished == 0 && failure_.empty() && last_lost)
    failure_ = "every worker was lost, the last one " + describe(last_lost->peer);
}

bool Membership::give_up(const std::exception_ptr& reason) {
  const Lock lock(mutex_);
  if (epoch_ > 0) return false;
  given_up_ = reason;
  try {
    std::rethrow_exception(reason);
  } catch (const std::exception& error) {
    for (Member& member : members_) member.request.refuse(error);
  }
  return true;
}

bool Membership::started() const {
  const Lock lock(mutex_);
  return epoch_ > 0;
}

std::string Membership::start_failure() const {
  const Lock lock(mutex_);
  return start_failure_;
}

std::string Membership::waiting() const {
  constexpr std::size_t kMostNamed = 20;
  const Lock lock(mutex_);
  if (epoch_ > 0) return waited_for_;
  std::string absent, joined;
  for (const Role role : {Role::kServer, Role::kWorker})
    if (const std::string some = missing(role); !some.empty()) absent += (absent.empty() ? "" : " and ") + some;
  for (std::size_t i = 0; i < std::min(members_.size(), kMostNamed); ++i)
    joined += (i == 0 ? "" : ", ") + who(members_[i].peer.id.role, members_[i].peer.host, members_[i].pid);
  if (members_.size() > kMostNamed) joined += str(" and ", members_.size() - kMostNamed, " others");
  return str("waiting for ", absent, "; joined: ", joined.empty() ? "none" : joined, "; the scheduler listens at ",
             self_.address);
}

// Returns for instance "2 of 3 workers (tasks 0 1)". Names the tasks only if every process of this role that has joined
// has a valid task number.
std::string Membership::missing(Role role) const {
  constexpr int kMostNamed = 10;
  const int absent = wanted(role) - static_cast<int>(count(role));
  if (absent <= 0) return "";
  std::set<int> tasks;
  for (const Member& member : members_)
    if (member.peer.id.role == role) tasks.insert(member.task);
  std::string numbers;
  int named = 0;
  for (int task = 0; task < wanted(role) && named < kMostNamed; ++task)
    if (tasks.count(task) == 0) numbers += str(named++ == 0 ? "" : " ", task);
  const bool numbered = tasks.empty() || (*tasks.begin() >= 0 && *tasks.rbegin() < wanted(role));
  const std::string which = numbered && !tasks.empty() ? str(absent == 1 ? " (task " : " (tasks ", numbers, ")") : "";
  return str(absent, " of ", wanted(role), " ", name_of(role), "s", which);
}

RosterNotice Membership::notice(std::uint64_t since) const {
  const Lock lock(mutex_);
  return notice_locked(since);
}

RosterNotice Membership::notice_locked(std::uint64_t since) const {
  RosterNotice notice;
  notice.since = since;
  notice.roster.epoch = epoch_;
  notice.roster.over = over_;
  notice.failure = failure_;
  if (since == 0) notice.roster.peers.push_back(self_);
  for (const Member& member : members_)
    if (member.changed > since) notice.roster.peers.push_back(member.peer);
  return notice;
}

std::vector<std::pair<std::uint64_t, LinkId>> Membership::speakers() const {
  const Lock lock(mutex_);
  std::vector<std::pair<std::uint64_t, LinkId>> speakers;
  for (const Member& member : members_)
    if (member.peer.alive) speakers.emplace_back(member.peer.incarnation, member.link);
  return speakers;
}

std::vector<std::pair<LinkId, std::uint64_t>> Membership::untold() {
  const Lock lock(mutex_);
  std::vector<std::pair<LinkId, std::uint64_t>> links;
  for (Member& member : members_)
    if (member.peer.alive && member.told < epoch_) links.emplace_back(member.link, std::exchange(member.told, epoch_));
  return links;
}

bool Membership::everybody_knows() const {
  const Lock lock(mutex_);
  return std::ranges::all_of(
      members_, [epoch = epoch_](const Member& member) { return !member.peer.alive || member.knows >= epoch; });
}

bool Membership::everybody_left() const {
  const Lock lock(mutex_);
  return std::none_of(members_.begin(), members_.end(), [](const Member& member) { return member.peer.alive; });
}

}  // namespace paceline

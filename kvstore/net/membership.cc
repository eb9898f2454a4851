#include "membership.h"

#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace paceline {
namespace {

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

Membership::Member* Membership::find(std::uint64_t sender) {
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
  const Role role = static_cast<Role>(body.role());
  const std::string name = who(role, body.host(), body.pid());
  if (body.job() != config_.job)
    throw NetworkError(str("the scheduler at ", self_.address, " serves job '", config_.job, "', not '", body.job(),
                           "' of the ", name, "; give each job its own address"));

  const Lock lock(mutex_);
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
    if (over_ || !failure_.empty())
      throw NetworkError(str(name, " comes too late: the job is ", over_ ? "over" : "ending, " + failure_));
    if (role == Role::kServer) throw NetworkError(str(name, " comes too late: the job has all its servers"));
    late_.push_back(std::move(member));
    return place_late();
  }
  if (count(role) >= static_cast<std::size_t>(wanted(role)))
    throw NetworkError(
        str("the job has ", wanted(role), " ", name_of(role), "s and all have joined; ", name, " is one too many"));
  LOG(INFO) << name << " has joined";
  members_.push_back(std::move(member));
  return start_if_complete();
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
    member.peer.incarnation = ++last_incarnation_;
    member.peer.entered = member.peer.id.role == Role::kWorker;
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
  *body.mutable_roster() = to_proto(notice_locked());
  Message message;
  message.body = body.SerializeAsString();
  std::exchange(member.request, {}).reply(std::move(message));
}

// Gives a late worker the place of a lost one, preferably the one with the same task number.
bool Membership::place(Member& late) {
  Member* free = nullptr;
  for (Member& member : members_) {
    if (member.peer.id.role != late.peer.id.role || member.peer.alive || member.peer.finished) continue;
    if (!free || (late.task >= 0 && member.task == late.task)) free = &member;
  }
  if (!free) return false;
  late.peer.id = free->peer.id;
  gone_.emplace_back(free->peer.incarnation, describe(free->peer));
  late.peer.incarnation = ++last_incarnation_;
  late.silent = 0;
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

bool Membership::heard(std::uint64_t sender, LinkId link, std::uint64_t epoch, std::string& why) {
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
  return true;
}

bool Membership::leave(std::uint64_t sender) {
  const Lock lock(mutex_);
  Member* member = find(sender);
  if (!member || !member->peer.alive) return false;
  member->peer.alive = false;
  member->peer.finished = true;
  LOG(INFO) << describe(member->peer) << " has left";
  changed();
  return true;
}

bool Membership::enter(std::uint64_t sender) {
  const Lock lock(mutex_);
  Member* member = find(sender);
  if (!member || !member->peer.alive) return false;
  member->peer.entered = true;
  changed();
  return true;
}

bool Membership::ended(Role role, int task, const std::string& how) {
  const Lock lock(mutex_);
  const auto found = std::ranges::find_if(members_, [&](const Member& member) {
    return member.peer.id.role == role && member.task == task && !member.returned;
  });
  if (epoch_ == 0 || found == members_.end() || !found->peer.alive || !failure_.empty()) return false;
  lose(*found, "it " + how);
  changed();
  place_late();
  return true;
}

void Membership::lose(Member& member, const std::string& how) {
  member.peer.alive = false;
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
    for (Member& member : *list) member.silent += seconds;
  const auto silent = [&](const Member& member) { return member.silent > config_.silence_deadline_seconds; };

  std::erase_if(late_, [&](const Member& member) {
    if (silent(member)) return true;
    if (member.waited < config_.silence_deadline_seconds + 2 * config_.heartbeat_seconds) return false;
    member.request.refuse(
        NetworkError(str("the job has ", config_.workers, " workers and all are there; ",
                         who(member.peer.id.role, member.peer.host, member.pid), " is one too many")));
    return true;
  });
  if (epoch_ == 0) {
    std::erase_if(members_, [&](const Member& member) {
      if (silent(member))
        LOG(WARNING) << who(member.peer.id.role, member.peer.host, member.pid) << " fell silent before the start";
      return silent(member);
    });
    return false;
  }
  bool any = false;
  for (Member& member : members_) {
    if (!member.peer.alive || !silent(member) || !failure_.empty()) continue;
    lose(member, "nothing heard of it for " + in_seconds(member.silent));
    any = true;
  }
  if (any) changed();
  return place_late() || any;
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

void Membership::give_up(const std::exception& reason) {
  const Lock lock(mutex_);
  for (Member& member : members_) member.request.refuse(reason);
}

bool Membership::started() const {
  const Lock lock(mutex_);
  return epoch_ > 0;
}

std::string Membership::waiting() const {
  const Lock lock(mutex_);
  return waiting_locked();
}

std::string Membership::waiting_locked() const {
  if (epoch_ > 0) return "";
  std::string missing, joined;
  for (const Role role : {Role::kServer, Role::kWorker}) {
    const int absent = wanted(role) - static_cast<int>(count(role));
    if (absent > 0)
      missing += str(missing.empty() ? "" : " and ", absent, " of ", wanted(role), " ", name_of(role), "s");
  }
  for (const Member& member : members_)
    joined += (joined.empty() ? "" : ", ") + who(member.peer.id.role, member.peer.host, member.pid);
  return str("waiting for ", missing, "; joined: ", joined.empty() ? "none" : joined, "; the scheduler listens at ",
             self_.address);
}

RosterNotice Membership::notice() const {
  const Lock lock(mutex_);
  return notice_locked();
}

RosterNotice Membership::notice_locked() const {
  RosterNotice notice;
  notice.roster.epoch = epoch_;
  notice.roster.over = over_;
  notice.failure = failure_;
  notice.roster.peers.push_back(self_);
  for (const Member& member : members_) notice.roster.peers.push_back(member.peer);
  return notice;
}

std::vector<LinkId> Membership::links() const {
  const Lock lock(mutex_);
  std::vector<LinkId> links;
  for (const Member& member : members_)
    if (member.peer.alive) links.push_back(member.link);
  return links;
}

bool Membership::everybody_knows() const {
  const Lock lock(mutex_);
  return std::all_of(members_.begin(), members_.end(),
                     [&](const Member& member) { return !member.peer.alive || member.knows >= epoch_; });
}

bool Membership::everybody_left() const {
  const Lock lock(mutex_);
  return std::none_of(members_.begin(), members_.end(), [](const Member& member) { return member.peer.alive; });
}

}  // namespace paceline

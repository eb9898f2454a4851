// A Node's place in the job: joining, heartbeats, rosters, failure.

#include <paceline/error.h>
#include <paceline/log.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "node_impl.h"

namespace paceline {
namespace {

using Clock = std::chrono::steady_clock;
constexpr PeerId kScheduler{Role::kScheduler, 0};
constexpr double kProgressSeconds = 10;  // between two log lines about missing processes
constexpr double kNamingSeconds = 10;    // between two log lines about a worker that holds others up
constexpr int kMany = 64;                // jobs with at least so many processes combine changes of the roster

template <class T>
T parse(const Message& message) {
  T body;
  if (!body.ParseFromString(message.body))
    throw Corrupt(str("[message] the body of a ", name_of(message.header.kind), " cannot be read"));
  return body;
}

}  // namespace

void Node::Impl::join(const std::function<void()>& meanwhile) {
  const Clock::time_point begin = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  auto refused = std::make_shared<std::exception_ptr>();  // guarded by mutex_
  if (!scheduler_) {
    proto::Join body;
    body.set_role(static_cast<std::uint32_t>(config_.role));
    body.set_job(config_.job);
    body.set_host(host_);
    body.set_address(bound_address_);
    body.set_task(config_.task);
    body.set_servers(static_cast<std::uint32_t>(config_.servers));
    body.set_workers(static_cast<std::uint32_t>(config_.workers));
    body.set_pid(getpid());
    if (keyring_) body.set_proof(keyring_->proof(keyring_->own().open));
    Message request;
    request.header.kind = MessageKind::kJoin;
    request.body = body.SerializeAsString();
    ask(kScheduler, std::move(request), [this, refused](std::optional<Message> answer, std::exception_ptr error) {
      try {
        if (answer) return on_joined(*answer);
      } catch (const Error&) {
        error = std::current_exception();  // the answer cannot be read
      }
      const Lock lock(mutex_);
      *refused = std::move(error);
      changed_.notify_all();
    });
  }
  double next_line = kProgressSeconds;
  for (;;) {
    std::string waiting;
    bool late = false;
    {
      const Lock lock(mutex_);
      changed_.wait_for(mutex_, std::chrono::milliseconds(100),
                        [&]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return joined_ || *refused || failure_; });
      if (joined_) return;
      if (*refused) std::rethrow_exception(*refused);
      if (failure_) std::rethrow_exception(failure_);
      waiting = waiting_;
      late = elapsed() > config_.start_deadline_seconds;
      if (late && !scheduler_ && !scheduler_heard_)
        throw Timeout(str("the scheduler at ", scheduler_address_, " did not answer within ",
                          in_seconds(config_.start_deadline_seconds),
                          "; check that it runs, and that this address and port are the ones it listens at",
                          keyring_ ? ", and that it has the same key as this process" : ""));
      // A live scheduler decides when to give up, because its error names the missing processes.
      if (late && !scheduler_ && scheduler_silent_ > config_.silence_deadline_seconds)
        throw Timeout(str("the scheduler at ", scheduler_address_, " fell silent before the start; it was ", waiting));
    }
    // Do not hold mutex_ here: Membership calls the Node while it holds its own mutex.
    if (meanwhile) meanwhile();
    if (scheduler_) {
      waiting = membership_->waiting();
      std::exception_ptr why;
      if (const std::string failure = membership_->start_failure(); !failure.empty())
        why = std::make_exception_ptr(NetworkError(failure));
      else if (late)
        why = std::make_exception_ptr(
            Timeout(str("the job did not start within ", in_seconds(config_.start_deadline_seconds), ": ", waiting)));
      if (why && membership_->give_up(why)) std::rethrow_exception(why);
    }
    if (elapsed() > next_line && !waiting.empty()) {
      next_line += kProgressSeconds;
      LOG(INFO) << waiting;
    }
  }
}

void Node::Impl::leave() {
  if (scheduler_) return;
  {
    const Lock lock(mutex_);
    if (!joined_ || failure_ || std::exchange(leaving_, true)) return;
  }
  auto known = std::make_shared<bool>(false);  // guarded by mutex_
  Message request;
  request.header.kind = MessageKind::kLeave;
  const std::uint64_t number = ask(kScheduler, std::move(request), [this, known](const auto&, const auto&) {
    const Lock lock(mutex_);
    *known = true;
    changed_.notify_all();
  });
  {
    const Lock lock(mutex_);
    const std::chrono::nanoseconds longest(static_cast<std::int64_t>(config_.silence_deadline_seconds * 1e9));
    if (!changed_.wait_for(mutex_, longest, [&] { return *known; }))
      LOG(WARNING) << "the scheduler did not answer within " << in_seconds(config_.silence_deadline_seconds)
                   << " that this process leaves; it may count it as lost";
  }
  pending_requests_.cancel(number);
}

void Node::Impl::ended(Role role, int task, const std::string& how) {
  const Lock turn(turn_);
  if (membership_->ended(role, task, how)) broadcast();
}

void Node::Impl::on_join(LinkId link, Message message) {
  if (!scheduler_) return;
  if (is_of_another(message.header.incarnation, link)) {
    on_stray(link, message, "its sender speaks on another link");
    return;
  }
  deliver(link, std::move(message), {});
}

void Node::Impl::on_heartbeat(LinkId link, const Message& message) {
  if (!scheduler_) return;
  const std::uint64_t sender = message.header.incarnation;
  if (is_of_another(sender, link)) {
    on_stray(link, message, "its sender speaks on another link");
    return;
  }
  const auto body = parse<proto::Heartbeat>(message);
  std::string why;
  if (!membership_->heard(sender, link, message.header.epoch, body, why)) {
    // The request to join may still be on its way.
    if ((sender & kProvisionalIncarnation) == 0) refuse(link, message, why);
    return;
  }
  may_speak(sender, link);
  reached(body.step());
  // Only members get the roster.
  if (membership_->is_member(sender)) return send_notice(link, message.header.epoch);
  proto::Notice notice;
  notice.set_waiting(membership_->waiting());
  Message say;
  say.header = header_for(MessageKind::kRoster, message);
  say.body = notice.SerializeAsString();
  send(link, encode(say));
}

void Node::Impl::send_notice(LinkId link, std::uint64_t known) {
  proto::Notice body;
  const RosterNotice changes = membership_->notice(known);
  if (changes.roster.epoch > known) *body.mutable_roster() = to_proto(changes);
  body.set_waiting(membership_->waiting());
  send_control(link, MessageKind::kRoster, 0, body.SerializeAsString());
}

void Node::Impl::broadcast() {
  for (const auto& [incarnation, link] : membership_->speakers()) may_speak(incarnation, link);
  // Tells the other processes before the change takes effect here. Answers that the change causes then arrive after the
  // new roster.
  for (const auto& [link, known] : membership_->untold()) send_notice(link, known);
  apply(membership_->notice());
  broadcast_late_ = false;
  broadcast_at_ = Clock::now();
}

// In a large job, combines changes that follow each other within a short time, for instance when many processes leave.
void Node::Impl::broadcast_soon() {
  broadcast_late_ = true;
  broadcast_if_late();
}

void Node::Impl::broadcast_if_late() {
  if (!broadcast_late_) return;
  const int processes = config_.servers + config_.workers;
  // A change goes to every process, so this keeps the messages about changes below a thousand a second.
  const std::chrono::milliseconds pause(processes);
  if (processes < kMany || Clock::now() - broadcast_at_ > pause) broadcast();
}

void Node::Impl::on_notice(LinkId link, const Message& message) {
  if (scheduler_ || link != scheduler_link_) return;
  const auto body = parse<proto::Notice>(message);
  bool joined = false;
  {
    const Lock lock(mutex_);
    scheduler_silent_ = 0;
    scheduler_heard_ = true;
    waiting_ = body.waiting();
    joined = joined_;
  }
  if (body.has_roster() && joined) apply(from_proto(body.roster()));
}

void Node::Impl::on_joined(const Message& answer) {
  const auto body = parse<proto::Joined>(answer);
  RosterNotice notice = from_proto(body.roster());
  std::string name;
  {
    const Lock lock(mutex_);
    job_ = body.job();
    rank_ = static_cast<int>(body.rank());
    incarnation_ = body.incarnation();
    scheduler_heard_ = true;
    scheduler_silent_ = 0;
    name = str(name_of(config_.role), " ", rank_, "@", host_);
  }
  if (config_.names_log) set_log_identity(name);
  if (faults_) faults_->name_self(name_in_plan(PeerId{config_.role, static_cast<int>(body.rank())}));
  apply(std::move(notice));
}

void Node::Impl::apply(RosterNotice notice) {
  std::vector<std::pair<Peer, bool>> gone;  // with whether it left in good order
  std::vector<PendingRequests::Failure> unanswered;
  std::vector<LinkId> closed;
  std::exception_ptr failed;
  std::deque<std::pair<LinkId, Message>> early;
  {
    const Lock lock(mutex_);
    if (notice.roster.epoch <= roster_.epoch) return;
    Roster newest = roster_;
    if (!update(newest, notice)) return;  // changes are missing: the next heartbeat makes the scheduler send them
    notice.roster = std::move(newest);
    for (const Peer& old : roster_.peers) {
      const Peer* now = notice.roster.find(old.id);
      if (!old.alive || (now && now->alive && now->incarnation == old.incarnation)) continue;
      const bool left = now && now->finished;
      gone.emplace_back(old, left);
      // Before roster_ shows who has taken the peer's place: requests from then on are for that process.
      std::ranges::move(pending_requests_.fail(old.id, describe(old) + (left ? " has left the job" : " was lost")),
                        std::back_inserter(unanswered));
      // A process that left in good order may still speak on its link, to ask whether its requests have come.
      if (!left) speakers_.forget(old.incarnation);
      if (const auto connection = connections_.find(old.id); connection != connections_.end()) {
        closed.push_back(connection->second);
        connections_.erase(connection);
      }
      if (old.incarnation == incarnation_ && !leaving_)
        failed = std::make_exception_ptr(NetworkError("this process was declared lost; the scheduler's log says why"));
    }
    if (!notice.failure.empty()) failed = std::make_exception_ptr(NetworkError(notice.failure));
    roster_ = notice.roster;
    joined_ = true;
    early.swap(early_);
    early_bytes_ = 0;
    changed_.notify_all();
  }
  know_members(notice.roster);
  for (const auto& [peer, left] : gone) {
    // The answers to a process that left are kept: it may ask again if the answer to its kLeave was lost.
    if (!left) answers_.forget(peer.incarnation);
  }
  finish_asks(unanswered);
  close_links([&](Transport& transport) {
    for (const LinkId link : closed) transport.close(link);
  });
  if (!scheduler_ && !notice.failure.empty()) send_heartbeat();  // the scheduler waits until all know of the failure
  if (failed)
    fail(failed);
  else if (handlers_.on_roster)
    handlers_.on_roster(notice.roster);
  for (auto& [link, message] : early) on_request(link, std::move(message));
}

void Node::Impl::know_members(const Roster& roster) {
  if (!keyring_) return;
  std::unordered_map<std::string, std::uint64_t> members;
  for (const Peer& peer : roster.peers)
    if (peer.alive || peer.finished) members.emplace(peer.key, peer.incarnation);
  keyring_->set_members(std::move(members));
  if (!scheduler_) close_links([](Transport& transport) { transport.close_unadmitted(); });
}

void Node::Impl::fail(const std::exception_ptr& error) {
  Roster roster;
  {
    const Lock lock(mutex_);
    if (failure_ || leaving_) return;
    failure_ = error;
    roster = roster_;
    changed_.notify_all();
  }
  finish_asks(pending_requests_.fail_all(error));
  if (handlers_.on_roster) handlers_.on_roster(roster);
}

void Node::Impl::watch_scheduler(double seconds) {
  {
    const Lock lock(mutex_);
    scheduler_silent_ += seconds;
    if (!joined_ || roster_.over || scheduler_silent_ <= config_.silence_deadline_seconds) return;
    given_up_ = true;
  }
  fail(std::make_exception_ptr(NetworkError(
      str("the scheduler at ", scheduler_address_, " was lost: nothing heard of it for ",
          in_seconds(config_.silence_deadline_seconds), keyring_ ? ", or it has declared this process lost" : ""))));
}

// Returns what the scheduler says about the worker that others wait for.
std::string Node::Impl::who_holds_up() const {
  if (scheduler_) return "";
  const Lock lock(mutex_);
  return joined_ && !waiting_.empty() ? "; " + waiting_ : "";
}

// Logs which worker holds others up, at most once in ten seconds. A process other than the scheduler logs this only
// while it waits for others without an unanswered request (see Node::set_waiting()).
void Node::Impl::name_who_holds_up(double seconds) {
  std::string text;
  std::function<double()> seconds_waiting;
  if (scheduler_) {
    text = membership_->started() ? membership_->waiting() : "";
  } else {
    const Lock lock(mutex_);
    if (joined_) text = waiting_;
    seconds_waiting = seconds_waiting_;
  }
  const bool waits = scheduler_ || (seconds_waiting && seconds_waiting() > 0);
  if (text.empty() || !waits) return;
  next_naming_ -= seconds;
  if (next_naming_ > 0) return;
  next_naming_ = kNamingSeconds;
  LOG(WARNING) << text;
}

}  // namespace paceline

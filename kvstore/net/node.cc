#include "node.h"

#include <paceline/detail/host_name.h>
#include <paceline/detail/waiting_work.h>
#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <utility>

#include "node_impl.h"
#include "random.h"
#include "transport/address.h"
#include "transport/transport_setting.h"

namespace paceline {
namespace {

using Clock = std::chrono::steady_clock;

std::string host_of(const ClusterConfig& config) {
  if (Options transport = Spec::parse(config.transport).options; transport.has("host"))
    return transport.get<std::string>("host", "");
  if (!config.node_host.empty()) return config.node_host;
  return detail::host_name();
}

// Returns the address to listen at so that peers can connect to `host`. A host name may resolve to another address here
// than on other hosts, for instance to 127.0.1.1. For a name other than localhost, this process therefore listens on
// all interfaces.
std::string listening_host(const std::string& host) {
  return is_numeric_host(host) || host == "localhost" ? host : "*";
}

// The name of this process in fault plans before it has a rank. Ranks follow the launcher's task numbers, so the task
// number stands for the rank.
std::string name_in_plan(const ClusterConfig& config) {
  if (config.role == Role::kScheduler) return name_of(config.role);
  return name_of(config.role) + (config.task >= 0 ? std::to_string(config.task) : "");
}

}  // namespace

// ---- PeerId, Roster ----

std::string name_of(const PeerId& peer) {
  return peer.role == Role::kScheduler ? "the scheduler" : str(name_of(peer.role), " ", peer.rank);
}

const Peer* Roster::find(const PeerId& id) const {
  for (const Peer& peer : peers)
    if (peer.id == id) return &peer;
  return nullptr;
}

std::vector<int> Roster::live(Role role) const {
  std::vector<int> ranks;
  for (const Peer& peer : peers)
    if (peer.id.role == role && peer.alive) ranks.push_back(peer.id.rank);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// ---- Node ----

Node::Node(const ClusterConfig& config, Handlers handlers)
    : impl_(std::make_shared<Impl>(config, std::move(handlers))) {
  impl_->start();
}
Node::~Node() { close(); }
void Node::close() { impl_->stop(); }

void Node::join(const std::function<void()>& meanwhile) { impl_->join(meanwhile); }
void Node::leave() { impl_->leave(); }
void Node::receive_while_waiting() { impl_->receive_while_waiting(); }

std::uint64_t Node::enter() {
  Message request;
  request.header.kind = MessageKind::kEnter;
  return ask_and_wait({Role::kScheduler, 0}, std::move(request)).header.epoch;
}

int Node::rank() const {
  const Lock lock(impl_->mutex_);
  return impl_->rank_;
}
std::uint64_t Node::incarnation() const {
  const Lock lock(impl_->mutex_);
  return impl_->incarnation_;
}
Roster Node::roster() const {
  const Lock lock(impl_->mutex_);
  return impl_->roster_;
}

std::exception_ptr Node::failure() const { return impl_->failure(); }
std::int64_t Node::malformed() const { return impl_->malformed_total_; }
void Node::ended(Role role, int task, const std::string& how) { impl_->ended(role, task, how); }
void Node::reached(std::uint64_t step) { impl_->reached(step); }
void Node::set_waiting(std::function<double()> seconds_waiting) {
  const Lock lock(impl_->mutex_);
  impl_->seconds_waiting_ = std::move(seconds_waiting);
}
const std::string& Node::scheduler_address() const { return impl_->scheduler_address_; }
bool Node::everybody_knows() const { return impl_->membership_->everybody_knows(); }
bool Node::everybody_left() const { return impl_->membership_->everybody_left(); }

// ---- Impl: start, stop, threads ----

Node::Impl::Impl(const ClusterConfig& config, Handlers handlers)
    : config_(config),
      scheduler_(config.role == Role::kScheduler),
      host_(host_of(config)),
      pending_requests_(config.heartbeat_seconds / 4),
      handlers_(std::move(handlers)) {
  require(config.heartbeat_seconds > 0 && config.silence_deadline_seconds >= 2 * config.heartbeat_seconds,
          "[cluster] a silence deadline of ", config.silence_deadline_seconds,
          " s does not leave room for heartbeats of ", config.heartbeat_seconds,
          " s; it must be at least twice as long");
  require(config.workers >= 1 && config.servers >= 0, "[cluster] a job needs at least one worker; it has ",
          config.workers, " workers and ", config.servers, " servers");
}

void Node::Impl::start() {
  std::unique_ptr<Transport> transport = make_transport(Spec::parse(config_.transport));
  if (!config_.faults.empty()) {
    const bool own_process = config_.names_log;
    auto faulty = make_faulty_transport(std::move(transport), FaultPlan::parse(config_.faults), name_in_plan(config_),
                                        own_process);
    faults_ = faulty.get();
    transport = std::move(faulty);
  }
  transport->on_receive([this](LinkId link, const Packet& packet) { on_packet(link, packet); });
  Transport& to = *transport;
  use_secrets(to);
  {
    const Lock lock(mutex_);
    job_ = config_.job.empty() ? 0 : number_of_job(config_.job);
    incarnation_ = random_number() | kProvisionalIncarnation;
    if (scheduler_) {
      if (job_ == 0) job_ = random_number() | 1;
      constexpr std::uint64_t kRoom = 3;  // keeps later incarnations below kProvisionalIncarnation
      incarnation_ = (random_number() | 1) >> kRoom;
    }
  }
  const bool inproc = TransportSetting::parse(config_.transport).in_process();
  const auto place = [&](const std::string& name) { return config_.scheduler_host + "/" + name; };
  scheduler_address_ = inproc ? place("scheduler") : join_host_port(config_.scheduler_host, config_.scheduler_port);
  {
    const Lock lock(send_mutex_);
    transport_ = std::move(transport);
  }
  try {
    if (scheduler_) {
      if (inproc) {
        to.bind(scheduler_address_);
      } else {
        const std::string at = to.bind(join_host_port(listening_host(config_.scheduler_host), config_.scheduler_port));
        scheduler_address_ = join_host_port(config_.scheduler_host, parse_host_port(at).port);
      }
    } else {
      scheduler_link_ = to.connect(scheduler_address_, keyring_ ? keyring_->scheduler_key() : "");
      name_link(scheduler_link_, {Role::kScheduler, 0});
      if (config_.role == Role::kServer || config_.servers == 0) {  // without servers, workers connect to each other
        if (inproc) {
          bound_address_ = to.bind(place(std::to_string(random_number())));
        } else {
          std::string own = config_.node_host;
          if (own.empty()) own = announced_host(local_host_towards(config_.scheduler_host), config_.scheduler_host);
          if (own.empty())
            throw NetworkError("[cluster] this host has no way to the scheduler's host '" + config_.scheduler_host +
                               "'; check the name, or set DMLC_NODE_HOST to this host's address");
          const std::string at = to.bind(join_host_port(listening_host(own), config_.node_port));
          bound_address_ = join_host_port(own, parse_host_port(at).port);
        }
      }
    }
    {
      const Lock lock(mutex_);
      if (scheduler_)
        membership_ = std::make_unique<Membership>(config_, incarnation_, job_, scheduler_address_,
                                                   keyring_ ? keyring_->own().open : "");
      ready_ = true;
    }
    timer_ = std::thread([this] { run_timer(); });
    if (!scheduler_) heart_ = std::thread([this] { run_heart(); });
  } catch (...) {
    stop();
    throw;
  }
}

void Node::Impl::use_secrets(Transport& transport) {
  if (config_.secret.empty() || TransportSetting::parse(config_.transport).in_process()) return;
  keyring_ = std::make_shared<Keyring>(config_.secret, scheduler_);
  keyed_transport_ = &transport;
  transport.use_keys(keyring_);
}

void Node::Impl::receive_while_waiting() {
  const Lock lock(send_mutex_);
  if (!transport_) return;
  if (const auto work = transport_->waiting_work()) detail::offer_waiting_work(work);
}

void Node::Impl::stop() {
  if (closed_) return;
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  timer_wake_.notify_all();
  heart_wake_.notify_all();
  if (timer_.joinable()) timer_.join();
  if (heart_.joinable()) heart_.join();
  std::unique_ptr<Transport> transport;
  {
    const Lock lock(send_mutex_);
    transport = std::move(transport_);
  }
  {
    const Lock connecting(connect_mutex_);  // a thread in link_to() may still use `transport`
  }
  transport.reset();
  faults_ = nullptr;  // was part of the transport
  keyed_transport_ = nullptr;
  closed_ = true;
  finish_asks(pending_requests_.fail_all(std::make_exception_ptr(NetworkError("this process has left the job"))));
  run_posted();
}

void Node::Impl::run_timer() {
  const auto period = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(std::clamp(config_.heartbeat_seconds / 8, 0.002, 0.05)));
  Clock::time_point last = Clock::now();
  for (;;) {
    {
      const Lock lock(mutex_);
      timer_wake_.wait_for(mutex_, period,
                           [this]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return stopping_ || !posted_.empty(); });
      if (stopping_) return;
    }
    run_posted();
    const Clock::time_point now = Clock::now();
    if (now - last < period) continue;
    try {
      tick(std::chrono::duration<double>(now - std::exchange(last, now)).count());
    } catch (const std::exception& error) {
      LOG(ERROR) << error.what();
    }
  }
}

void Node::Impl::run_heart() {
  const std::chrono::nanoseconds period(static_cast<std::int64_t>(config_.heartbeat_seconds * 1e9));
  for (;;) {
    {
      const Lock lock(mutex_);
      if (heart_wake_.wait_for(mutex_, period, [this]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return stopping_; }))
        return;
    }
    send_heartbeat();
  }
}

void Node::Impl::tick(double seconds) {
  // If this process was suspended, the pause does not count as silence of the others.
  const double silence = std::min(seconds, config_.heartbeat_seconds);
  {
    // While a handler runs, it holds turn_, and no message is handled. This thread then waits, and counts no silence.
    const Lock turn(turn_);
    if (!scheduler_)
      watch_scheduler(silence);
    else if (membership_->tick(silence))
      broadcast();
    else
      broadcast_if_late();
  }
  if (scheduler_) close_links_of_the_lost(seconds);
  std::vector<PendingRequests::Slow> slow;
  for (const PendingRequests::Probe& probe : pending_requests_.due(slow)) send_probe(probe);
  give_up_unreachable(silence);
  for (const PendingRequests::Slow& ask : slow)
    LOG(WARNING) << name_of(ask.peer) << " has not answered " << name_of(ask.kind) << " for " << in_seconds(ask.seconds)
                 << (ask.others > 0 ? str(", nor ", ask.others, " other requests") : "") << who_holds_up();
  if (slow.empty()) name_who_holds_up(seconds);
}

// A peer that this worker cannot reach may still send heartbeats to the scheduler, so no process would declare it lost.
// This process then fails with an error instead.
void Node::Impl::give_up_unreachable(double seconds) {
  if (config_.role != Role::kWorker || config_.progress_deadline_seconds == 0) return;
  const double limit = std::max(config_.progress_deadline_seconds, config_.silence_deadline_seconds);
  PeerId self{config_.role};
  {
    const Lock lock(mutex_);
    self.rank = rank_;
  }
  const std::optional<PeerId> peer = pending_requests_.unheard(seconds, limit, self);
  if (!peer) return;
  const Lock turn(turn_);
  fail(
      std::make_exception_ptr(NetworkError(str(name_of(*peer), " cannot be reached from here: it has answered nothing ",
                                               "for ", in_seconds(limit), ", though the scheduler hears of it"))));
}

// Closes the links of lost processes after a while. Until then, a lost process that sends a message is told that it was
// declared lost.
void Node::Impl::close_links_of_the_lost(double seconds) {
  since_links_were_closed_ += seconds;
  if (!keyring_ || since_links_were_closed_ < config_.silence_deadline_seconds) return;
  since_links_were_closed_ = 0;
  close_links([](Transport& transport) { transport.close_unadmitted(); });
}

void Node::Impl::send_heartbeat() {
  {
    const Lock lock(mutex_);
    if (leaving_ || given_up_) return;
  }
  const PendingRequests::Activity activity = pending_requests_.activity();
  std::function<double()> seconds_waiting;
  {
    const Lock lock(mutex_);
    seconds_waiting = seconds_waiting_;
  }
  proto::Heartbeat body;
  body.set_step(step_);
  body.set_calls(activity.calls);
  body.set_waiting(std::max(activity.waiting, seconds_waiting ? seconds_waiting() : 0));
  send_control(scheduler_link_, MessageKind::kHeartbeat, 0, body.SerializeAsString());
}

void Node::Impl::reached(std::uint64_t step) {
  std::uint64_t known = step_.load();
  while (known < step && !step_.compare_exchange_weak(known, step)) continue;
  if (faults_) faults_->reached(step);
}

void Node::Impl::post(std::function<void()> work) {
  {
    const Lock lock(mutex_);
    posted_.push_back(std::move(work));
  }
  timer_wake_.notify_all();
}

void Node::Impl::run_posted() {
  std::vector<std::function<void()>> posted;
  {
    const Lock lock(mutex_);
    posted.swap(posted_);
  }
  if (posted.empty()) return;
  const Lock turn(turn_);
  for (const auto& work : posted) work();
}

std::exception_ptr Node::Impl::failure() const {
  const Lock lock(mutex_);
  return failure_;
}

}  // namespace paceline

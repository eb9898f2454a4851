#include "faults/faulty_transport.h"

#include <paceline/error.h>
#include <paceline/log.h>
#include <paceline/mutex.h>
#include <spawn.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <map>
#include <thread>
#include <utility>
#include <vector>

namespace paceline {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kKindAt = 5;                                    // offset in the head of a message
constexpr auto kSent = std::chrono::milliseconds(50);                 // lets a sent packet leave before a fault strikes
constexpr double kOvertakenAtLeast = 1e-3, kOvertakenAtMost = 10e-3;  // seconds
enum Draw { kStruck, kDuration, kSecondDuration };

Clock::duration seconds(double count) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(count));
}

// A stopped process cannot continue by itself, so a child process sends it SIGCONT.
void freeze_this_process(double duration) {
  const std::string command = str("sleep ", duration, "; kill -CONT ", getpid());
  const char* const words[] = {"sh", "-c", command.c_str(), nullptr};
  pid_t waker = 0;
  if (posix_spawnp(&waker, "sh", nullptr, nullptr, const_cast<char* const*>(words), environ) != 0) {
    LOG(ERROR) << "fault plan: cannot freeze this process: sh cannot be started";
    return;
  }
  kill(getpid(), SIGSTOP);
  waitpid(waker, nullptr, 0);
}

class Faulty final : public FaultyTransport {
 public:
  Faulty(std::unique_ptr<Transport> inner, FaultPlan plan, const std::string& self, bool own_process)
      : plan_(std::move(plan)),
        own_process_(own_process),
        self_(self),
        states_(plan_.faults.size()),
        inner_(std::move(inner)) {
    for (const Fault& fault : plan_.faults)
      LOG_IF(WARNING, own_process_) << "FAULT PLAN (seed " << plan_.seed << "): " << fault.text;
    thread_ = std::thread([this] { run(); });
  }

  ~Faulty() override {
    {
      const Lock lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
    LOG_IF(WARNING, own_process_) << "fault plan: of " << packets_ << " packets that " << self_ << " sent, " << dropped_
                                  << " were dropped, " << duplicated_ << " sent twice, " << held_back_ << " held back";
  }

  std::string bind(const std::string& address) override { return inner_->bind(address); }
  void use_keys(const std::shared_ptr<Keyring>& keyring) override { inner_->use_keys(keyring); }
  std::string identity_of(LinkId link) override { return inner_->identity_of(link); }
  void close_unadmitted() override { inner_->close_unadmitted(); }
  LinkId connect(const std::string& address, const std::string& key) override {
    double pause = 0;
    {
      const Lock lock(mutex_);
      for (std::size_t i = 0; i < plan_.faults.size(); ++i)
        if (plan_.faults[i].kind == Fault::Kind::kSlowConnect && matches(plan_.faults[i].from, self_) && in_force(i))
          pause += plan_.faults[i].amount;
    }
    std::this_thread::sleep_for(seconds(pause));
    return inner_->connect(address, key);
  }
  void close(LinkId link) override {
    {
      const Lock lock(mutex_);
      names_.erase(link);
    }
    inner_->close(link);
  }
  void keep(LinkId link) override { inner_->keep(link); }
  std::string describe(LinkId link) override { return inner_->describe(link); }
  void on_receive(Handler handler) override {
    inner_->on_receive([this, handler = std::move(handler)](LinkId link, Packet packet) {
      if (receives(packet)) handler(link, std::move(packet));
    });
  }
  std::shared_ptr<detail::WaitingWork> waiting_work() override { return inner_->waiting_work(); }
  void add_observer(std::shared_ptr<TransportObserver> observer) override { inner_->add_observer(std::move(observer)); }
  bool reads_in_place(LinkId link, const void* data, std::size_t bytes) override {
    return inner_->reads_in_place(link, data, bytes);
  }

  void name_self(const std::string& name) override {
    const Lock lock(mutex_);
    self_ = name;
  }
  void name_link(LinkId link, const std::string& name) override {
    const Lock lock(mutex_);
    names_[link] = name;
  }
  void reached(std::uint64_t step) override {
    const Lock lock(mutex_);
    if (static_cast<double>(step) <= step_) return;
    step_ = static_cast<double>(step);
    strike_where_it_is_time();
  }

  void send(LinkId link, Packet packet) override {
    const Lock lock(mutex_);
    if (dead_) return;
    const std::string& peer = name_of_link(link);
    const MessageKind kind = kind_of(packet);
    const std::uint64_t number = ++sent_to_[peer];
    ++packets_;
    strike_at(Fault::Point::kBeforeSending, kind);
    if (dead_) return;
    if (is_lost(peer, kind, number)) {
      ++dropped_;
      return;
    }
    // send_or_hold() copies the packet, so the last reference to a frame's owner is not released under the lock. The
    // destructor of an owner may call send().
    if (drawn(Fault::Kind::kDuplicate, peer, kind, number)) {
      ++duplicated_;
      send_or_hold(link, peer, packet, number, kSecondDuration);
    }
    send_or_hold(link, peer, packet, number, kDuration);
    strike_at(Fault::Point::kAfterSending, kind);
  }

 private:
  struct State {
    std::optional<Clock::time_point> began, strikes;
    bool struck = false;
    Clock::time_point line_free;  // used by throttles only
  };
  struct Held {
    LinkId link;
    Packet packet;
  };

  // ---- functions that need mutex_ ----

  const std::string& name_of_link(LinkId link) const PACELINE_REQUIRES(mutex_) {
    static const std::string unknown = "?";
    const auto found = names_.find(link);
    return found == names_.end() ? unknown : found->second;
  }

  bool is_reached(const FaultTime& time, Clock::time_point now) const PACELINE_REQUIRES(mutex_) {
    return time.in_steps ? step_ >= time.value : now - start_ >= seconds(time.value);
  }

  bool in_force(std::size_t i) PACELINE_REQUIRES(mutex_) {
    const Fault& fault = plan_.faults[i];
    State& state = states_[i];
    const Clock::time_point now = Clock::now();  // read once, so that slow logging does not use up the duration
    if (!state.began) {
      if (!is_reached(fault.begin, now)) return false;
      state.began = now;
      if (fault.kind == Fault::Kind::kCut) LOG(WARNING) << "fault plan: " << fault.text << ": begins";
    }
    if (fault.seconds && now - *state.began >= seconds(*fault.seconds)) return false;
    return !(fault.end && is_reached(*fault.end, now));
  }

  bool concerns(std::size_t i, const std::string& peer, MessageKind kind) PACELINE_REQUIRES(mutex_) {
    const Fault& fault = plan_.faults[i];
    return fault.concerns(self_, peer) && (!fault.of || *fault.of == kind) && in_force(i);
  }

  static MessageKind kind_of(const Packet& packet) {
    const bool has_kind = !packet.empty() && packet[0].size > kKindAt;
    return static_cast<MessageKind>(has_kind ? packet[0].data[kKindAt] : std::byte{255});
  }

  // Does a random fault of kind `fault` strike packet `number` to `peer`?
  bool drawn(Fault::Kind fault, const std::string& peer, MessageKind kind, std::uint64_t number)
      PACELINE_REQUIRES(mutex_) {
    for (std::size_t i = 0; i < plan_.faults.size(); ++i)
      if (plan_.faults[i].kind == fault && concerns(i, peer, kind) &&
          fate(plan_.seed, i, self_, peer, number, kStruck) < plan_.faults[i].amount)
        return true;
    return false;
  }

  bool is_lost(const std::string& peer, MessageKind kind, std::uint64_t number) PACELINE_REQUIRES(mutex_) {
    for (std::size_t i = 0; i < plan_.faults.size(); ++i)
      if (plan_.faults[i].kind == Fault::Kind::kCut && concerns(i, peer, kind)) return true;
    return drawn(Fault::Kind::kDrop, peer, kind, number);
  }

  void send_or_hold(LinkId link, const std::string& peer, const Packet& packet, std::uint64_t number, Draw draw)
      PACELINE_REQUIRES(mutex_) {
    const MessageKind kind = kind_of(packet);
    const Clock::time_point now = Clock::now();
    Clock::time_point due = std::max(now, frozen_until_);
    double pause = 0;
    for (std::size_t i = 0; i < plan_.faults.size(); ++i) {
      const Fault& fault = plan_.faults[i];
      if (!concerns(i, peer, kind)) continue;
      if (fault.kind == Fault::Kind::kDelay) {  // exponential distribution with mean `amount`
        pause -= fault.amount * std::log1p(-fate(plan_.seed, i, self_, peer, number, draw));
      } else if (fault.kind == Fault::Kind::kThrottle) {
        double bytes = 0;
        for (const Frame& frame : packet) bytes += static_cast<double>(frame.size);
        due = states_[i].line_free = std::max(due, states_[i].line_free) + seconds(bytes / fault.amount);
      }
    }
    const bool overtaken = drawn(Fault::Kind::kReorder, peer, kind, number);
    if (overtaken) {
      const double part = fate(plan_.seed, plan_.faults.size(), self_, peer, number, draw);
      pause += kOvertakenAtLeast + part * (kOvertakenAtMost - kOvertakenAtLeast);
    }
    due += seconds(pause);
    Order& order = orders_[link];
    if (!overtaken) order.last_due = due = std::max(due, order.last_due);
    if (due <= now && order.held == 0) {
      inner_->send(link, packet);
      return;
    }
    ++held_back_;
    ++order.held;
    held_.emplace(due, Held{link, packet});
    wake();
  }

  // ---- freezes and kills ----

  bool may_strike(std::size_t i) PACELINE_REQUIRES(mutex_) {
    const Fault& fault = plan_.faults[i];
    return (fault.kind == Fault::Kind::kFreeze || fault.kind == Fault::Kind::kKill) && !states_[i].struck &&
           matches(fault.from, self_) && is_reached(fault.begin, Clock::now());
  }

  void strike_at(Fault::Point point, MessageKind kind) PACELINE_REQUIRES(mutex_) {
    for (std::size_t i = 0; i < plan_.faults.size(); ++i) {
      const Fault& fault = plan_.faults[i];
      if (fault.point != point || fault.of != kind || !may_strike(i)) continue;
      if (point == Fault::Point::kAfterSending) {
        states_[i].struck = true;
        states_[i].strikes = Clock::now() + kSent;
        wake();
      } else {
        strike(i);
      }
    }
  }

  void strike_where_it_is_time() PACELINE_REQUIRES(mutex_) {
    for (std::size_t i = 0; i < plan_.faults.size(); ++i) {
      const bool sent = states_[i].strikes && *states_[i].strikes <= Clock::now();
      if (sent) states_[i].strikes.reset();
      if (sent || (plan_.faults[i].point == Fault::Point::kNone && may_strike(i))) strike(i);
    }
  }

  void strike(std::size_t i) PACELINE_REQUIRES(mutex_) {
    const Fault& fault = plan_.faults[i];
    states_[i].struck = true;
    LOG(WARNING) << "fault plan: " << fault.text << ": strikes " << self_
                 << (own_process_ ? str(" (process ", getpid(), ")") : "");
    if (fault.kind == Fault::Kind::kKill) {
      if (own_process_) kill(getpid(), SIGKILL);
      dead_ = true;
    } else if (own_process_) {
      freeze_this_process(*fault.seconds);
    } else {
      frozen_until_ = Clock::now() + seconds(*fault.seconds);
    }
  }

  // Called for each packet that arrives. Waits while the process is frozen. False if the process is dead, and the
  // packet must be dropped.
  bool receives(const Packet& packet) {
    const Lock lock(mutex_);
    strike_at(Fault::Point::kOnReceiving, kind_of(packet));
    while (!dead_ && !stop_ && Clock::now() < frozen_until_)
      changed_.wait_for(mutex_, frozen_until_ - Clock::now(), [] { return false; });
    return !dead_;
  }

  // ---- the thread that sends held packets, and strikes when a fault is due ----

  void run() {
    while (send_next()) continue;
  }

  bool send_next() {
    Packet packet;  // destroyed after the lock is released, because the destructor of a frame's owner may call send()
    const Lock lock(mutex_);
    if (stop_) return false;
    strike_where_it_is_time();
    const Clock::time_point now = Clock::now();
    // A frozen process sends nothing, not even packets that fall due while it is frozen.
    const Clock::time_point due =
        held_.empty() ? now + std::chrono::hours(1) : std::max(held_.begin()->first, frozen_until_);
    if (due > now) {
      Clock::time_point wake = due;
      for (std::size_t i = 0; i < plan_.faults.size(); ++i) {
        if (states_[i].strikes) wake = std::min(wake, *states_[i].strikes);
        const FaultTime& begin = plan_.faults[i].begin;
        if (!begin.in_steps && !states_[i].struck && start_ + seconds(begin.value) > now)
          wake = std::min(wake, start_ + seconds(begin.value));
      }
      const std::uint64_t seen = news_;
      changed_.wait_for(mutex_, wake - now,
                        [&]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return stop_ || news_ != seen; });
      return true;
    }
    const LinkId link = held_.begin()->second.link;
    packet = std::move(held_.begin()->second.packet);
    held_.erase(held_.begin());
    --orders_[link].held;
    if (!dead_) inner_->send(link, packet);
    return true;
  }

  void wake() PACELINE_REQUIRES(mutex_) {
    ++news_;
    changed_.notify_all();
  }

  struct Order {
    Clock::time_point last_due;
    int held = 0;
  };

  const FaultPlan plan_;
  const bool own_process_;
  const Clock::time_point start_ = Clock::now();
  Mutex mutex_;
  CondVar changed_;
  std::string self_ PACELINE_GUARDED_BY(mutex_);
  std::map<LinkId, std::string> names_ PACELINE_GUARDED_BY(mutex_);
  std::map<std::string, std::uint64_t> sent_to_ PACELINE_GUARDED_BY(mutex_);
  std::vector<State> states_ PACELINE_GUARDED_BY(mutex_);  // one for each fault of the plan
  std::multimap<Clock::time_point, Held> held_ PACELINE_GUARDED_BY(mutex_);
  std::map<LinkId, Order> orders_ PACELINE_GUARDED_BY(mutex_);
  double step_ PACELINE_GUARDED_BY(mutex_) = -1;
  Clock::time_point frozen_until_ PACELINE_GUARDED_BY(mutex_);
  std::int64_t packets_ PACELINE_GUARDED_BY(mutex_) = 0, dropped_ PACELINE_GUARDED_BY(mutex_) = 0;
  std::int64_t duplicated_ PACELINE_GUARDED_BY(mutex_) = 0, held_back_ PACELINE_GUARDED_BY(mutex_) = 0;
  std::uint64_t news_ PACELINE_GUARDED_BY(mutex_) = 0;  // number of calls of wake()
  bool dead_ PACELINE_GUARDED_BY(mutex_) = false;
  bool stop_ PACELINE_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Transport> inner_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<FaultyTransport> make_faulty_transport(std::unique_ptr<Transport> inner, FaultPlan plan,
                                                       const std::string& self, bool own_process) {
  return std::make_unique<Faulty>(std::move(inner), std::move(plan), self, own_process);
}

}  // namespace paceline

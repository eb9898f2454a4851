// ZeroMQ over TCP. The bound side is a ROUTER, and each outgoing connection is a DEALER. ZeroMQ keeps a queue for each
// peer, so a dead peer does not stall the others. One thread at a time receives: the transport's own, or a thread that
// waits for an engine. A thread that calls send() uses the sockets itself if they are free, because waking another
// thread costs more than sending a small packet. Otherwise the thread puts a command into a queue.
//
//   ZMTP message in both directions := frame of the packet*        (ROUTER adds and removes the routing id)
//
// Payloads are not copied, except in small frames. ZeroMQ holds Frame::owner of an outgoing frame until the frame is
// sent. The memory of an incoming frame belongs to ZeroMQ.

#include <paceline/error.h>
#include <paceline/log.h>
#include <paceline/mutex.h>
#include <zmq.hpp>

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "observers.h"
#include "rejection_log.h"
#include "tcp_sockets.h"
#include "transport/address.h"
#include "transport/borrowed_poller.h"
#include "transport/connections.h"
#include "transport/door.h"
#include "transport/link_names.h"
#include "transport/wake_ups.h"

namespace paceline {
namespace {

constexpr std::size_t kMostIncomingLinks = 65536;
constexpr std::int64_t kCurveBytes = 64;  // more than CURVE adds to the size of a frame
constexpr int kMostSockets = 16384;       // each monitored connection needs three
constexpr int kPacketsPerTurn = 64;       // received from one socket before the next socket has its turn

class Tcp final : public Connections {
 public:
  explicit Tcp(const Options& options)
      : max_frame_bytes_(options.get<std::int64_t>("max_frame_bytes", std::int64_t{1} << 30)),
        context_(options.get<int>("io_threads", 1), kMostSockets) {
    thread_ = std::thread([this] { run(); });
  }

  ~Tcp() override {
    borrowed_poller_->leave();
    put({Command::kStop, 0, {}, {}, {}});
    thread_.join();
    context_.close();
    doorman_.reset();
  }

  void use_door(std::shared_ptr<Door> door) override {
    door_ = std::move(door);
    doorman_ = std::make_unique<Doorman>(context_, door_);
  }

  std::string bind(const std::string& address) override {
    HostPort at = parse_host_port(address);
    Socket router = open_socket(context_, zmq::socket_type::router, max_message_bytes());
    router.set(zmq::sockopt::router_mandatory, true);
    router.set(zmq::sockopt::router_handover, true);
    if (door_) door_->equip_listener(router);
    Socket monitor = bind_router(context_, router, at);
    put({Command::kAddRouter, 0, {}, std::move(router), std::move(monitor)});
    return join_host_port(at.host, at.port);
  }

  LinkId connect(const std::string& address, const std::string& key) override {
    const std::string endpoint = endpoint_of(parse_host_port(address));
    Socket dealer = open_socket(context_, zmq::socket_type::dealer, max_message_bytes());
    dealer.set(zmq::sockopt::reconnect_ivl, 50);
    dealer.set(zmq::sockopt::reconnect_ivl_max, 1000);
    dealer.set(zmq::sockopt::routing_id, new_routing_id());
    Socket monitor;
    try {
      if (door_) door_->equip_caller(dealer, key);
      if (door_ && !door_->lets_callers_return()) monitor = monitor_of(context_, dealer, kBroken);
      uninterrupted([&] { dealer.connect(endpoint); });
    } catch (const zmq::error_t& error) {
      throw NetworkError("[tcp] cannot connect to " + address + ": " + error.what());
    }
    const LinkId id = names_.add({address, key});
    put({Command::kAddDealer, id, {}, std::move(dealer), std::move(monitor)});
    return id;
  }

  void send(LinkId link, Packet packet) override {
    if (!send_at_once(link, packet)) put({Command::kSend, link, std::move(packet), {}, {}});
  }

  void close(LinkId link) override {
    names_.erase(link);
    put({Command::kClose, link, {}, {}, {}});
  }

  void keep(LinkId link) override { put({Command::kKeep, link, {}, {}, {}}); }

  std::string describe(LinkId link) override {
    const LinkName name = names_.of(link);
    return name.address.empty() ? "nobody" : name.address;
  }

  std::string identity_of(LinkId link) override { return door_ ? names_.of(link).identity : ""; }

  void close_unadmitted() override {
    if (!door_) return;
    for (const LinkId link : names_.unwelcome([this](const std::string& who) { return door_->still_admits(who); }))
      close(link);
  }

  void on_receive(Handler handler) override {
    const Lock lock(mutex_);
    handler_ = std::make_shared<const Handler>(std::move(handler));
  }

  std::shared_ptr<detail::WaitingWork> waiting_work() override { return borrowed_poller_; }

  void add_observer(std::shared_ptr<TransportObserver> observer) override { observers_.add(std::move(observer)); }

 private:
  struct Command {
    enum Kind { kSend, kClose, kKeep, kAddRouter, kAddDealer, kStop } kind;
    LinkId link;
    Packet packet;
    Socket socket;
    Socket monitor;
  };
  struct Watched {
    Socket socket;
    bool news = true;  // something may have arrived
  };
  struct Router {
    Watched requests, monitor;
    std::unordered_map<std::string, LinkId> links;  // by routing id
    int listener = -1;                              // descriptor of the listening socket
  };
  struct Dealer : Watched {
    Socket monitor;  // empty: ZeroMQ reconnects by itself
  };
  struct Using {
    explicit Using(bool& flag) : in_use(flag) { in_use = true; }
    ~Using() { in_use = false; }
    Using(const Using&) = delete;
    bool& in_use;
  };
  struct Incoming {  // a peer that connected to a router
    std::size_t router = 0;
    std::string routing_id, identity;
    Connection connection;
    bool is_kept = false;  // the peer is a member, see keep()
  };

  std::int64_t max_message_bytes() const { return max_frame_bytes_ + (door_ ? kCurveBytes : 0); }

  void put(Command command) {
    {
      const Lock lock(mutex_);
      commands_.push_back(std::move(command));
      if (!std::exchange(asleep_, false)) return;
    }
    wake_ups_.ring();
  }

  // False if the sockets are in use, or if earlier commands still wait in the queue.
  bool send_at_once(LinkId link, const Packet& packet) {
    const std::unique_lock sockets(sockets_mutex_, std::try_to_lock);
    if (!sockets || in_use_) return false;
    {
      const Lock lock(mutex_);
      if (!commands_.empty()) return false;
    }
    const Using use(in_use_);
    // ZeroMQ signals an arrival only once, and sending may consume the signal. If something has arrived, the receiving
    // thread must be woken.
    try {
      const Socket* socket = send_now(link, packet);
      if (socket && (uninterrupted([&] { return socket->get(zmq::sockopt::events); }) & ZMQ_POLLIN) != 0)
        wake_ups_.ring();
    } catch (const zmq::error_t& error) {
      LOG_EVERY_N(WARNING, 100) << "[tcp] " << error.what();
      wake_ups_.ring();
    }
    return true;
  }

  // ---- functions that need sockets_mutex_ ----

  void obey(Command& command) {
    switch (command.kind) {
      case Command::kSend: send_now(command.link, command.packet); break;
      case Command::kClose: close_now(command.link); break;
      case Command::kKeep:
        if (const auto incoming = incoming_.find(command.link); incoming != incoming_.end())
          incoming->second.is_kept = true;
        break;
      case Command::kAddRouter:
        watch(command.socket, number_of_router(routers_.size()));
        watch(command.monitor, number_of_router(routers_.size()) + 1);
        routers_.push_back({{std::move(command.socket)}, {std::move(command.monitor)}, {}, -1});
        break;
      case Command::kAddDealer:
        watch(command.socket, command.link);
        if (command.monitor) watch(command.monitor, command.link);
        dealers_.emplace(command.link, Dealer{{std::move(command.socket)}, std::move(command.monitor)});
        break;
      case Command::kStop: stopped_ = true; break;
    }
  }

  static std::uint64_t number_of_router(std::size_t router) { return ~std::uint64_t{0} - 2 * router - 1; }
  void watch(Socket& socket, std::uint64_t number) { wake_ups_.add(socket.get(zmq::sockopt::fd), number); }

  // Marks the sockets that may have received something, after a wake-up or a command.
  void note(std::uint64_t number) {
    const bool all = number == WakeUps::kBell;
    for (std::size_t i = 0; i < routers_.size(); ++i) {
      if (all || number == number_of_router(i)) routers_[i].requests.news = true;
      if (all || number == number_of_router(i) + 1) routers_[i].monitor.news = true;
    }
    if (all)
      for (auto& [link, dealer] : dealers_) dealer.news = true;
    else if (const auto dealer = dealers_.find(number); dealer != dealers_.end())
      dealer->second.news = true;
  }

  // Returns the socket that was used, or null.
  const Socket* send_now(LinkId link, const Packet& packet) {
    if (packet.empty()) return nullptr;
    const auto dealer = dealers_.find(link);
    if (dealer != dealers_.end()) {
      observers_.on_send(link, packet);
      send_frames(dealer->second.socket, packet);
      return &dealer->second.socket;
    }
    const auto incoming = incoming_.find(link);
    if (incoming == incoming_.end()) return nullptr;
    Socket& router = routers_[incoming->second.router].requests.socket;
    try {
      send_frame(router, zmq::message_t(incoming->second.routing_id), true);
    } catch (const zmq::error_t& error) {
      if (error.num() != EHOSTUNREACH) throw;
      return &router;  // the peer is away, and may come back with the same routing id
    }
    observers_.on_send(link, packet);
    send_frames(router, packet);
    return &router;
  }

  void close_now(LinkId link) {
    if (const auto dealer = dealers_.find(link); dealer != dealers_.end()) {
      dealer->second.socket.set(zmq::sockopt::linger, 0);
      dealers_.erase(dealer);
    } else if (const auto incoming = incoming_.find(link); incoming != incoming_.end()) {
      hang_up(incoming->second.connection);
      forget(incoming);
    }
  }

  void forget(std::map<LinkId, Incoming>::iterator incoming) {
    routers_[incoming->second.router].links.erase(incoming->second.routing_id);
    names_.erase(incoming->first);
    incoming_.erase(incoming);
  }

  // Receives at most kPacketsPerTurn packets from each socket. True if there may be more to receive.
  bool receive_all() {
    bool more = false;
    for (std::size_t i = 0; i < routers_.size(); ++i) {
      Watched& requests = routers_[i].requests;
      Watched& monitor = routers_[i].monitor;
      if (monitor.news) more |= monitor.news = read_monitor(routers_[i]);
      if (requests.news) more |= requests.news = receive(requests.socket, &i, 0);
    }
    for (auto& [link, dealer] : dealers_) {
      if (!dealer.news) continue;
      more |= dealer.news = receive(dealer.socket, nullptr, link);
      bool is_broken = false;
      while (dealer.monitor && read_event(dealer.monitor)) is_broken = true;
      if (is_broken) door_->broken(link);
    }
    return more;
  }

  // True if there may be more to receive.
  bool receive(Socket& socket, const std::size_t* router, LinkId link) {
    for (int count = 0; count < kPacketsPerTurn; ++count) {
      Packet packet;
      std::string routing_id;
      if (!receive_frames(socket, router ? &routing_id : nullptr, packet)) return false;
      if (router) link = incoming_link(*router, routing_id, packet);
      if (link != 0) arrived_.emplace_back(link, std::move(packet));
    }
    return true;
  }

  LinkId incoming_link(std::size_t router, const std::string& routing_id, const Packet& packet) {
    // ZeroMQ lets a peer choose its routing id, so another peer may come with the id of one that has gone.
    std::string identity = door_ ? paceline::identity_of(packet) : "";
    if (const auto known = routers_[router].links.find(routing_id); known != routers_[router].links.end()) {
      const auto incoming = incoming_.find(known->second);
      if (incoming->second.identity == identity) {
        if (descriptor_of(packet) != incoming->second.connection.fd)
          incoming->second.connection = connection_of(packet);
        return known->second;
      }
      forget(incoming);
    }
    if (door_ && !door_->still_admits(identity)) return 0;  // the packet arrived before its connection was closed
    Connection connection = connection_of(packet);
    const std::string mapped = "::ffff:";  // prefix of IPv4 addresses on a dual-stack socket
    const LinkId link =
        names_.add({connection.host.substr(connection.host.starts_with(mapped) ? mapped.size() : 0), identity, true});
    routers_[router].links[routing_id] = link;
    incoming_[link] = {router, routing_id, std::move(identity), std::move(connection)};
    if (incoming_.size() > kMostIncomingLinks) forget(least_useful());
    return link;
  }

  // Returns the oldest link that is not kept, or the newest link if all are kept.
  std::map<LinkId, Incoming>::iterator least_useful() {
    const auto other = std::ranges::find_if(incoming_, [](const auto& entry) { return !entry.second.is_kept; });
    return other != incoming_.end() ? other : std::prev(incoming_.end());
  }

  // True if some reports may be left.
  bool read_monitor(Router& router) {
    constexpr int kMostReports = 100;
    bool no_descriptor = false, more = true;
    for (int count = 0; count < kMostReports && !no_descriptor; ++count) {
      Report report;
      more = read_report(router.monitor.socket, report);
      if (!more) break;
      if (report.event == ZMQ_EVENT_LISTENING) {
        router.listener = report.value;
      } else if (report.event == ZMQ_EVENT_ACCEPT_FAILED) {
        no_descriptor = report.value == EMFILE || report.value == ENFILE;
      } else {
        const std::string what = rejection_of(report, door_ != nullptr);
        rejections_.add("[tcp] " + what);
        observers_.on_reject(what);
      }
    }
    if (no_descriptor) {
      const bool hung_up = turn_away(router.listener);
      exhausted_.add(str("[tcp] no file descriptor is left: ", hung_up ? "hung up on" : "cannot even hang up on",
                         " those who connect; allow more (ulimit -n, or fs.file-max of the system)"));
    }
    return more;
  }

  // ---- receiving, by one thread at a time ----

  void run() {
    for (std::vector<std::uint64_t> woken;; woken = sleep(false)) {
      while (take_turn(std::exchange(woken, {}))) {
      }
      if (stopped_) return;
    }
  }

  // Receives in place of the transport's thread, until `done` returns true. Meanwhile the transport's thread sleeps
  // when it has nothing to do.
  void receive_until(const std::function<bool()>& done) {
    {
      const Lock lock(mutex_);
      poller_is_borrowed_ = true;
    }
    bool more = false;
    while (!done()) more = take_turn(more ? std::vector<std::uint64_t>() : sleep(true));
    {
      const Lock lock(mutex_);
      poller_is_borrowed_ = false;
      asleep_ = true;  // the transport's thread may be asleep
      more |= !commands_.empty();
    }
    poller_is_back_.notify_all();
    if (more) wake_ups_.ring();
  }

  // Runs the queued commands, then receives and delivers. True if there may be more to receive.
  bool take_turn(const std::vector<std::uint64_t>& woken) {
    const std::lock_guard turn(turn_mutex_);
    bool more = false;
    {
      const std::lock_guard sockets(sockets_mutex_);
      const Using use(in_use_);
      for (const std::uint64_t number : woken) note(number);
      std::deque<Command> commands;
      {
        const Lock lock(mutex_);
        commands.swap(commands_);
      }
      for (Command& command : commands) {
        try {
          obey(command);
        } catch (const std::exception& error) {
          LOG_EVERY_N(WARNING, 100) << "[tcp] " << error.what();
        }
      }
      if (!commands.empty()) note(WakeUps::kBell);
      if (stopped_) {  // only after all commands: a handler may have sent packets since kStop was queued
        dealers_.clear();
        routers_.clear();
      }
      more = receive_all();
    }
    deliver();
    return more;
  }

  void deliver() {
    if (arrived_.empty()) return;
    std::shared_ptr<const Handler> handler;
    {
      const Lock lock(mutex_);
      handler = handler_;
    }
    for (auto& [link, packet] : arrived_) {
      observers_.on_receive(link, packet);
      if (handler && *handler) (*handler)(link, std::move(packet));
    }
    arrived_.clear();
  }

  // Sleeps until something arrives or a command is queued. Returns the numbers that woke this thread.
  std::vector<std::uint64_t> sleep(bool is_borrower) {
    {
      const Lock lock(mutex_);
      if (poller_is_borrowed_ && !is_borrower) {
        // Pass this wake-up on: the thread that borrowed the poller must receive it.
        wake_ups_.ring();
        poller_is_back_.wait(mutex_, [this]() PACELINE_REQUIRES(mutex_) { return !poller_is_borrowed_; });
      }
      if (!commands_.empty()) return {};
      asleep_ = true;
    }
    std::vector<std::uint64_t> woken = wake_ups_.wait();
    const Lock lock(mutex_);
    asleep_ = false;
    return woken;
  }

  const std::int64_t max_frame_bytes_;
  zmq::context_t context_;
  WakeUps wake_ups_;
  Observers observers_;
  RejectionLog rejections_, exhausted_;
  LinkNames names_;
  std::shared_ptr<Door> door_;  // null: everybody may connect
  std::unique_ptr<Doorman> doorman_;

  Mutex mutex_;
  std::deque<Command> commands_ PACELINE_GUARDED_BY(mutex_);
  bool asleep_ PACELINE_GUARDED_BY(mutex_) = false;  // no thread is about to check commands_
  bool poller_is_borrowed_ PACELINE_GUARDED_BY(mutex_) = false;
  CondVar poller_is_back_;
  std::shared_ptr<const Handler> handler_ PACELINE_GUARDED_BY(mutex_);

  std::recursive_mutex sockets_mutex_;  // guards the members below; taken before mutex_; senders never wait for it
  // True while the thread that holds the mutex uses the sockets. A send() that it calls meanwhile is queued.
  bool in_use_ = false;
  std::vector<Router> routers_;
  std::map<LinkId, Dealer> dealers_;
  std::map<LinkId, Incoming> incoming_;

  std::mutex turn_mutex_;  // guards the members below; taken before sockets_mutex_
  std::vector<std::pair<LinkId, Packet>> arrived_;
  bool stopped_ = false;

  const std::shared_ptr<BorrowedPoller> borrowed_poller_ = std::make_shared<BorrowedPoller>(
      [this](const std::function<bool()>& done) { receive_until(done); }, [this] { wake_ups_.ring(); });
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Connections> make_connections(const Options& options) { return std::make_unique<Tcp>(options); }

}  // namespace paceline

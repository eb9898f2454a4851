// Peers in one process pass packets by reference. Each transport has an inbox, a thread that empties it, and links. A
// link to a name that is not bound yet keeps its packets until a transport binds the name.

#include <paceline/error.h>
#include <paceline/mutex.h>

#include <deque>
#include <map>
#include <thread>
#include <unordered_map>
#include <utility>

#include "observers.h"
#include "transport_catalog.h"

namespace paceline {
namespace {

class Inbox;

// A connection. End 0 is the end that connected. Packets that one end sends go to the inbox of the other end.
struct Wire {
  Mutex mutex;
  std::shared_ptr<Inbox> inbox[2] PACELINE_GUARDED_BY(mutex);
  LinkId link[2] PACELINE_GUARDED_BY(mutex) = {
      0, 0};  // number of the link in the transport of that inbox; 0: not known there yet
  const Inbox* numbered_in PACELINE_GUARDED_BY(mutex) = nullptr;  // the inbox whose transport numbered link[1]
  std::deque<Packet> waiting PACELINE_GUARDED_BY(mutex);          // packets from end 0, while end 1 has no transport
  bool listed PACELINE_GUARDED_BY(mutex) = true;                  // end 1 is attached, or waits in the switchboard
  bool closed PACELINE_GUARDED_BY(mutex) = false;                 // end 0 has closed the wire for ever

  void detach() PACELINE_REQUIRES(mutex) {
    inbox[1].reset();
    link[1] = 0;
    listed = false;
  }
};

struct Delivery {
  std::shared_ptr<Wire> wire;
  int end = 0;  // the end at which the packet arrives
  Packet packet;
};

class Inbox {
 public:
  // False when the transport is gone.
  bool put(Delivery delivery) {
    {
      const Lock lock(mutex_);
      if (closed_) return false;
      deliveries_.push_back(std::move(delivery));
    }
    some_.notify_one();
    return true;
  }
  // Waits for deliveries. False when the inbox is closed.
  bool take(std::deque<Delivery>& out) {
    const Lock lock(mutex_);
    some_.wait(mutex_, [this]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return closed_ || !deliveries_.empty(); });
    out = std::exchange(deliveries_, {});
    return !closed_;
  }
  void close() {
    std::deque<Delivery> dropped;
    {
      const Lock lock(mutex_);
      closed_ = true;
      dropped.swap(deliveries_);
    }
    some_.notify_all();
  }

 private:
  Mutex mutex_;
  CondVar some_;
  std::deque<Delivery> deliveries_ PACELINE_GUARDED_BY(mutex_);
  bool closed_ PACELINE_GUARDED_BY(mutex_) = false;
};

// Knows the inbox that is bound to each name, and the wires that wait for a name. Wires are attached only under the
// lock of the switchboard, which is taken before the lock of a wire.
class Switchboard {
 public:
  static Switchboard& of_this_process() {
    static Switchboard& board = *new Switchboard;
    return board;
  }

  void bind(const std::string& name, const std::shared_ptr<Inbox>& inbox) {
    const Lock lock(mutex_);
    Place& place = places_[name];
    if (place.bound)
      throw NetworkError("[inproc] '" + name + "' is already bound in this process; choose another name");
    place.bound = inbox;
    for (const std::weak_ptr<Wire>& waiting : std::exchange(place.waiting, {}))
      if (const std::shared_ptr<Wire> wire = waiting.lock()) attach(wire, inbox);
  }

  void unbind(const std::string& name) {
    const Lock lock(mutex_);
    const auto place = places_.find(name);
    place->second.bound.reset();
    if (place->second.waiting.empty()) places_.erase(place);
  }

  void connect(const std::string& name, const std::shared_ptr<Wire>& wire) {
    const Lock lock(mutex_);
    Place& place = places_[name];
    if (place.bound)
      attach(wire, place.bound);
    else
      place.waiting.push_back(wire);
  }

 private:
  struct Place {
    std::shared_ptr<Inbox> bound;
    std::vector<std::weak_ptr<Wire>> waiting;
  };

  static void attach(const std::shared_ptr<Wire>& wire, const std::shared_ptr<Inbox>& inbox) {
    const Lock lock(wire->mutex);
    if (wire->closed) return;
    wire->inbox[1] = inbox;
    // After a hang-up, the delivery of an older packet may already have given the link a new number. That number stays
    // valid if it belongs to this inbox.
    if (wire->numbered_in != inbox.get()) wire->link[1] = 0;
    for (Packet& packet : std::exchange(wire->waiting, {})) inbox->put({wire, 1, std::move(packet)});
  }

  Mutex mutex_;
  std::map<std::string, Place> places_ PACELINE_GUARDED_BY(mutex_);
};

class Inproc final : public Transport {
 public:
  Inproc() : inbox_(std::make_shared<Inbox>()), thread_([this] { run(); }) {}

  ~Inproc() override {
    for (const std::string& name : bound_) Switchboard::of_this_process().unbind(name);
    inbox_->close();
    thread_.join();
    for (const auto& [id, link] : links_) hang_up(link);
  }

  std::string bind(const std::string& address) override {
    Switchboard::of_this_process().bind(address, inbox_);
    const Lock lock(mutex_);
    bound_.push_back(address);
    return address;
  }

  LinkId connect(const std::string& address, const std::string& /*key*/) override {
    const auto wire = std::make_shared<Wire>();
    LinkId id = 0;
    {
      const Lock lock(mutex_);
      id = ++last_link_;
      links_[id] = {wire, 0, address};
    }
    {
      const Lock lock(wire->mutex);
      wire->inbox[0] = inbox_;
      wire->link[0] = id;
    }
    Switchboard::of_this_process().connect(address, wire);
    return id;
  }

  void send(LinkId id, Packet packet) override {
    Link link;
    {
      const Lock lock(mutex_);
      const auto found = links_.find(id);
      if (found == links_.end()) return;
      link = found->second;
    }
    observers_.on_send(id, packet);
    for (Frame& frame : packet)
      if (frame.may_change) frame = Frame::copy_of(frame.data, frame.size);
    Wire& wire = *link.wire;
    bool unlisted = false;
    {
      const Lock lock(wire.mutex);
      const int other = 1 - link.end;
      if (wire.closed || (wire.inbox[other] && wire.inbox[other]->put({link.wire, other, packet})) || link.end == 1)
        return;
      if (wire.inbox[1]) wire.detach();
      wire.waiting.push_back(std::move(packet));
      unlisted = !std::exchange(wire.listed, true);
    }
    if (unlisted) Switchboard::of_this_process().connect(link.address, link.wire);
  }

  void close(LinkId id) override {
    Link link;
    {
      const Lock lock(mutex_);
      const auto found = links_.find(id);
      if (found == links_.end()) return;
      link = std::move(found->second);
      links_.erase(found);
    }
    hang_up(link);
  }

  std::string describe(LinkId id) override {
    const Lock lock(mutex_);
    const auto found = links_.find(id);
    if (found == links_.end()) return "nobody";
    return found->second.address.empty() ? "a peer in this process" : found->second.address;
  }

  void on_receive(Handler handler) override {
    const Lock lock(mutex_);
    handler_ = std::make_shared<const Handler>(std::move(handler));
  }

  void add_observer(std::shared_ptr<TransportObserver> observer) override { observers_.add(std::move(observer)); }
  bool reads_in_place(LinkId /*link*/, const void* /*data*/, std::size_t /*bytes*/) override { return true; }

 private:
  struct Link {
    std::shared_ptr<Wire> wire;
    int end = 0;
    std::string address;
  };

  static void hang_up(const Link& link) {
    std::deque<Packet> dropped;
    const Lock lock(link.wire->mutex);
    link.wire->detach();
    if (link.end == 1) return;
    link.wire->closed = true;
    dropped.swap(link.wire->waiting);
    link.wire->inbox[0].reset();
  }

  void run() {
    std::deque<Delivery> deliveries;
    while (inbox_->take(deliveries))
      for (Delivery& delivery : deliveries) deliver(delivery);
  }

  void deliver(Delivery& delivery) {
    LinkId id = 0;
    {
      const Lock lock(delivery.wire->mutex);
      if (delivery.wire->closed) return;
      id = delivery.wire->link[delivery.end];
    }
    std::shared_ptr<const Handler> handler;
    const bool is_new = id == 0;
    {
      const Lock lock(mutex_);
      handler = handler_;
      if (is_new) {
        id = ++last_link_;
        links_[id] = {delivery.wire, delivery.end, ""};
      }
    }
    if (is_new) {  // an old number is not set again: the link may have been closed meanwhile
      const Lock lock(delivery.wire->mutex);
      delivery.wire->link[delivery.end] = id;
      if (delivery.end == 1) delivery.wire->numbered_in = inbox_.get();
    }
    observers_.on_receive(id, delivery.packet);
    if (handler && *handler) (*handler)(id, std::move(delivery.packet));
  }

  const std::shared_ptr<Inbox> inbox_;
  Observers observers_;
  Mutex mutex_;
  std::unordered_map<LinkId, Link> links_ PACELINE_GUARDED_BY(mutex_);
  LinkId last_link_ PACELINE_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> bound_ PACELINE_GUARDED_BY(mutex_);
  std::shared_ptr<const Handler> handler_ PACELINE_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Transport> make_inproc_transport(const Options&) { return std::make_unique<Inproc>(); }

}  // namespace paceline

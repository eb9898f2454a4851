// The tcp transport with shared memory between processes of one host. Every process has one heap that its peers map and
// read (shared_heap.h). Large frames of a packet are in this heap, or send() copies them there if the heap has room. A
// frame that may change is always copied. tcp carries only the addresses of the frames in the heap:
//
//   packet over tcp := frame*                    the packet itself, unless its first frame begins with magic
//                    | magic control frame*      control: shm.proto
//
// The side that connects begins a link with HELLO. ANSWER and READY tell each side whether the other can read its
// memory. Until then, and if either side cannot, all frames go by tcp. The sender of shared frames holds their owners
// until the receiver sends RELEASE. HELLO and ANSWER name the packets that their sender still uses. The receiver of
// HELLO or ANSWER releases its other packets, so that lost packets are not held for ever. When a peer's process ends,
// the packets that it was reading are released.
//
// A peer may write anything into its own memory at any time, also while this process reads a frame there. Control
// messages therefore always go by tcp. A process that can open this memory runs as the same user, and could do worse.

#include <paceline/detail/host_memory.h>
#include <paceline/detail/shared_heap.h>
#include <paceline/error.h>
#include <paceline/log.h>
#include <paceline/mutex.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>

#include <utility>

#include "observers.h"
#include "random.h"
#include "rejection_log.h"
#include "transport/shm_sessions.h"
#include "transport_catalog.h"

namespace paceline {

std::unique_ptr<Transport> make_tcp_transport(const Options& options);

namespace {

using detail::SharedHeap;
using detail::SharedView;
using Clock = std::chrono::steady_clock;
using shm::Borrowed;
using shm::Control;
using shm::is_control;
using shm::kMagicBytes;
using shm::packet_of;
using shm::Session;
using shm::Sessions;

constexpr std::size_t kMostSessions = 65536;
constexpr Clock::duration kBetweenSweeps = std::chrono::seconds(1);

// Returns equal names in processes that can open each other's memory: they have the same boot, PID namespace and user.
std::string name_of_host() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat processes = {};
  if (boot.empty() || stat("/proc/self/ns/pid", &processes) != 0) return "";
  return str(boot, " ", processes.st_ino, " ", geteuid());
}

class Shm final : public Transport {
 public:
  Shm(const Options& options, std::unique_ptr<Transport> inner)
      : max_frame_bytes_(options.get<std::int64_t>("max_frame_bytes", std::int64_t{1} << 30)),
        host_(options.get<std::string>("host", name_of_host())),
        inner_(std::move(inner)) {
    std::string why = "this host does not tell its name";
    if (!host_.empty()) heap_ = SharedHeap::enable(why);
    if (!heap_) LOG(WARNING) << "[shm] " << why << "; peers on this host are reached by tcp";
    {
      const Lock lock(sessions_->mutex);
      sessions_->inner = inner_.get();
    }
    inner_->on_receive([this](LinkId link, Packet packet) { receive(link, std::move(packet)); });
  }

  ~Shm() override {
    const Lock lock(sessions_->mutex);
    sessions_->inner = nullptr;
  }

  std::string bind(const std::string& address) override { return inner_->bind(address); }

  void use_keys(const std::shared_ptr<Keyring>& keyring) override { inner_->use_keys(keyring); }

  LinkId connect(const std::string& address, const std::string& key) override {
    const LinkId link = inner_->connect(address, key);
    if (!heap_) return link;
    auto session = std::make_shared<Session>();
    session->number = random_number();
    session->link = link;
    session->connected = true;
    const Lock lock(sessions_->mutex);
    sessions_->by_link[link] = session;
    sessions_->by_number[session->number] = session;
    say_hello(*session);
    return link;
  }

  void send(LinkId link, Packet packet) override {
    if (packet.empty()) return;
    sweep();
    if (observers_.any() && inner_->describe(link) != "nobody") observers_.on_send(link, packet);
    if (is_control(packet)) {
      Control control;
      control.set_kind(Control::PLAIN);
      packet.insert(packet.begin(), packet_of(control).front());
    } else if (any_large(packet)) {
      if (share(link, packet)) return;
    }
    inner_->send(link, std::move(packet));
  }

  void close(LinkId link) override {
    std::shared_ptr<Session> gone;
    {
      const Lock lock(sessions_->mutex);
      gone = sessions_->find(link);
      if (gone) forget(*gone);
    }
    inner_->close(link);
  }

  std::string identity_of(LinkId link) override { return inner_->identity_of(link); }
  void close_unadmitted() override { inner_->close_unadmitted(); }
  void keep(LinkId link) override { inner_->keep(link); }
  std::string describe(LinkId link) override { return inner_->describe(link); }

  void on_receive(Handler handler) override {
    const Lock lock(handler_mutex_);
    handler_ = std::make_shared<const Handler>(std::move(handler));
  }

  std::shared_ptr<detail::WaitingWork> waiting_work() override { return inner_->waiting_work(); }

  void add_observer(std::shared_ptr<TransportObserver> observer) override {
    // The inner transport reports the peers that it rejects itself.
    inner_->add_observer(std::make_shared<RejectionsOnly>(observer));
    observers_.add(std::move(observer));
  }

  bool reads_in_place(LinkId link, const void* data, std::size_t bytes) override {
    if (!heap_ || bytes < detail::kSmallestShared || bytes > static_cast<std::size_t>(max_frame_bytes_) ||
        !heap_->contains(data, bytes))
      return false;
    const Lock lock(sessions_->mutex);
    const auto session = sessions_->find(link);
    return session && session->shares;
  }

 private:
  static bool any_large(const Packet& packet) {
    for (const Frame& frame : packet)
      if (frame.size >= detail::kSmallestShared) return true;
    return false;
  }

  // ---- packets out ----

  bool share(LinkId link, const Packet& packet) {
    {
      const Lock lock(sessions_->mutex);
      const auto session = sessions_->find(link);
      if (!session || !session->shares) return false;
    }
    Control control;
    control.set_kind(Control::FRAMES);
    Packet lent, outgoing(1);
    for (const Frame& frame : packet) {
      shm::Piece& piece = *control.add_pieces();
      piece.set_bytes(frame.size);
      Frame there = frame.size >= detail::kSmallestShared ? in_heap(frame) : Frame{};
      if (there.data) {
        piece.set_shared(true);
        piece.set_offset(heap_->offset_of(there.data));
        lent.push_back(std::move(there));
      } else {
        outgoing.push_back(frame);
      }
    }
    if (lent.empty()) return false;
    const Lock lock(sessions_->mutex);
    const auto session = sessions_->find(link);
    if (!session || !session->shares || !sessions_->inner) return false;
    const std::uint64_t number = ++session->last_packet;
    control.add_packets(number);
    control.set_session(session->number);
    control.set_round(session->round);
    outgoing.front() = packet_of(control).front();
    session->lent.emplace(number, std::move(lent));
    shm::hand_overs().fetch_add(1, std::memory_order_release);
    sessions_->inner->send(link, outgoing);  // a copy, so that owners are released after the lock
    return true;
  }

  // Returns the frame, or a copy of it, in memory that peers can read. Returns a frame without data if the heap has no
  // room.
  Frame in_heap(const Frame& frame) const {
    if (!frame.may_change && heap_->contains(frame.data, frame.size)) return frame;
    const std::shared_ptr<std::byte[]> copy = detail::allocate_host(frame.size);
    if (!heap_->contains(copy.get(), frame.size)) return {};
    std::memcpy(copy.get(), frame.data, frame.size);
    return {copy, copy.get(), frame.size};
  }

  // Releases packets that ended processes were reading, and unmaps the memory of these processes. The system cannot
  // free memory while a process maps it.
  void sweep() {
    const Clock::rep now = Clock::now().time_since_epoch().count();
    Clock::rep due = next_sweep_.load(std::memory_order_relaxed);
    if (now < due || !next_sweep_.compare_exchange_strong(due, now + kBetweenSweeps.count())) return;
    std::vector<std::shared_ptr<Session>> gone;  // released after the lock: destructors of owners run foreign code
    std::vector<std::unordered_map<std::uint64_t, Packet>> let_go;
    const Lock lock(sessions_->mutex);
    for (const auto& [number, session] : sessions_->by_number)
      if (session->theirs && !session->theirs->owner_lives()) gone.push_back(session);
    for (const auto& session : gone) {
      session->shares = false;
      let_go.push_back(std::exchange(session->lent, {}));
      session->theirs.reset();
      if (!session->connected) forget(*session);
    }
  }

  void forget(const Session& session) PACELINE_REQUIRES(sessions_->mutex) {
    sessions_->by_link.erase(session.link);
    sessions_->by_number.erase(session.number);
  }

  // ---- the beginning of a link ----

  void describe_memory(Control& control, const Session& session) const {
    shm::Memory& memory = *control.mutable_memory();
    memory.set_host(host_);
    memory.set_process(getpid());
    memory.set_descriptor(heap_->descriptor());
    memory.set_bytes(heap_->bytes());
    for (const std::uint64_t packet : session.held) control.add_packets(packet);
  }

  void say_hello(Session& session) PACELINE_REQUIRES(sessions_->mutex) {
    ++session.round;
    session.shares = false;
    Control control;
    control.set_kind(Control::HELLO);
    describe_memory(control, session);
    sessions_->tell(session, control);
  }

  std::shared_ptr<const SharedView> open(LinkId link, const shm::Memory& memory) {
    std::string why;
    if (memory.host() != host_) {
      LOG_FIRST_N(INFO, 1) << "[shm] " << inner_->describe(link)
                           << " is another host, user or container; such peers are reached by tcp";
      return nullptr;
    }
    auto view = SharedView::open(memory.process(), memory.descriptor(), memory.bytes(), why);
    if (!view) {
      LOG_FIRST_N(WARNING, 1) << "[shm] the memory of " << inner_->describe(link) << " cannot be shared: " << why
                              << "; such peers are reached by tcp";
    }
    return view;
  }

  static void keep_only(Session& session, const Control& control, std::vector<Packet>& let_go) {
    const std::set<std::uint64_t> in_use(control.packets().begin(), control.packets().end());
    for (auto entry = session.lent.begin(); entry != session.lent.end();) {
      if (in_use.count(entry->first) == 0) {
        let_go.push_back(std::move(entry->second));
        entry = session.lent.erase(entry);
      } else {
        ++entry;
      }
    }
  }

  void on_hello(LinkId link, const Control& hello) {
    if (!heap_) return;
    const auto theirs = open(link, hello.memory());
    std::vector<Packet> let_go;
    const Lock lock(sessions_->mutex);
    std::shared_ptr<Session>& session = sessions_->by_number[hello.session()];
    if (!session) {
      session = std::make_shared<Session>();
      session->number = hello.session();
    }
    const auto other = sessions_->find(link);
    const bool foreign = other && other != session;
    if (session->connected || foreign || hello.round() <= session->round ||
        sessions_->by_number.size() > kMostSessions) {
      if (session->round == 0) sessions_->by_number.erase(hello.session());
      return;
    }
    sessions_->by_link.erase(session->link);
    session->link = link;
    session->round = hello.round();
    session->shares = false;
    session->theirs = theirs;
    sessions_->by_link[link] = session;
    keep_only(*session, hello, let_go);
    Control answer;
    answer.set_kind(Control::ANSWER);
    answer.set_opened(theirs != nullptr);
    describe_memory(answer, *session);
    sessions_->tell(*session, answer);
  }

  void on_answer(LinkId link, const Control& answer) {
    const auto theirs = answer.opened() ? open(link, answer.memory()) : nullptr;
    std::vector<Packet> let_go;
    const Lock lock(sessions_->mutex);
    const auto session = sessions_->find(link);
    if (!session || !session->connected || answer.session() != session->number || answer.round() != session->round)
      return;
    session->theirs = theirs;
    session->shares = theirs != nullptr;
    keep_only(*session, answer, let_go);
    Control ready;
    ready.set_kind(Control::READY);
    ready.set_opened(session->shares);
    sessions_->tell(*session, ready);
  }

  void on_ready(LinkId link, const Control& ready) {
    const Lock lock(sessions_->mutex);
    const auto session = sessions_->find(link);
    if (session && !session->connected && ready.session() == session->number && ready.round() == session->round)
      session->shares = ready.opened() && session->theirs;
  }

  // ---- packets in ----

  void receive(LinkId link, Packet packet) {
    if (!is_control(packet)) return deliver(link, std::move(packet));
    Control control;
    if (!control.ParseFromArray(packet[0].data + kMagicBytes, static_cast<int>(packet[0].size - kMagicBytes)))
      return reject(link, "a control message that cannot be parsed");
    switch (control.kind()) {
      case Control::PLAIN:
        packet.erase(packet.begin());
        if (packet.empty()) return reject(link, "a packet without frames");
        return deliver(link, std::move(packet));
      case Control::HELLO: return on_hello(link, control);
      case Control::ANSWER: return on_answer(link, control);
      case Control::READY: return on_ready(link, control);
      case Control::FRAMES: return on_frames(link, control, std::move(packet));
      case Control::RELEASE: return on_release(link, control);
      case Control::STRANGER: return on_stranger(link, control);
      default: return reject(link, "a control message of an unknown kind");
    }
  }

  void on_frames(LinkId link, const Control& control, Packet packet) {
    shm::hand_overs().load(std::memory_order_acquire);
    std::shared_ptr<const SharedView> view;
    {
      const Lock lock(sessions_->mutex);
      const auto session = sessions_->find(link);
      const bool known = session && session->number == control.session();
      if (known && session->round != control.round()) return;  // void: sent before the last HELLO
      if (!known || !session->theirs) {
        Control stranger;
        stranger.set_kind(Control::STRANGER);
        stranger.set_session(control.session());
        stranger.set_round(control.round());
        if (sessions_->inner) sessions_->inner->send(link, packet_of(stranger));
        return;
      }
      if (control.packets_size() == 1 && control.pieces_size() > 0 && session->held.insert(control.packets(0)).second)
        view = session->theirs;
    }
    if (!view) return reject(link, "no frames, or frames without a number of their own");
    const auto owner = std::make_shared<Borrowed>(sessions_, view, control.session(), control.packets(0));
    Packet whole;
    whole.reserve(static_cast<std::size_t>(control.pieces_size()));
    std::size_t next = 1;
    for (const shm::Piece& piece : control.pieces()) {
      if (!piece.shared()) {
        if (next >= packet.size()) return reject(link, "fewer frames than it announced");
        whole.push_back(std::move(packet[next++]));
      } else if (piece.bytes() > static_cast<std::uint64_t>(max_frame_bytes_) || piece.offset() > view->bytes() ||
                 piece.bytes() > view->bytes() - piece.offset()) {
        return reject(link, str("a frame of ", piece.bytes(), " bytes at ", piece.offset(), " of its memory of ",
                                view->bytes(), " bytes"));
      } else {
        whole.push_back({owner, view->data() + piece.offset(), piece.bytes()});
      }
    }
    if (next != packet.size()) return reject(link, "more frames than it announced");
    deliver(link, std::move(whole));
  }

  void on_release(LinkId link, const Control& control) {
    shm::hand_overs().load(std::memory_order_acquire);
    std::vector<Packet> let_go;
    const Lock lock(sessions_->mutex);
    const auto session = sessions_->find(link);
    if (!session || session->number != control.session()) return;
    for (const std::uint64_t packet : control.packets()) {
      const auto found = session->lent.find(packet);
      if (found == session->lent.end()) continue;
      let_go.push_back(std::move(found->second));
      session->lent.erase(found);
    }
  }

  void on_stranger(LinkId link, const Control& control) {
    const Lock lock(sessions_->mutex);
    const auto session = sessions_->find(link);
    if (session && session->connected && control.session() == session->number && control.round() == session->round)
      say_hello(*session);
  }

  void reject(LinkId link, const std::string& what) {
    const std::string text = "[shm] " + inner_->describe(link) + " sent " + what + "; it was dropped";
    rejections_.add(text);
    observers_.on_reject(text);
  }

  void deliver(LinkId link, Packet packet) {
    observers_.on_receive(link, packet);
    std::shared_ptr<const Handler> handler;
    {
      const Lock lock(handler_mutex_);
      handler = handler_;
    }
    if (handler && *handler) (*handler)(link, std::move(packet));
  }

  const std::int64_t max_frame_bytes_;
  const std::string host_;
  SharedHeap* heap_ = nullptr;
  const std::shared_ptr<Sessions> sessions_ = std::make_shared<Sessions>();
  std::atomic<Clock::rep> next_sweep_ = 0;
  Observers observers_;
  RejectionLog rejections_;
  Mutex handler_mutex_;
  std::shared_ptr<const Handler> handler_ PACELINE_GUARDED_BY(handler_mutex_);
  std::unique_ptr<Transport> inner_;  // last, so that it is destroyed first: its thread uses the rest
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport(const Options& options) {
  return shm::make_over(make_tcp_transport(options), options);
}

std::unique_ptr<Transport> shm::make_over(std::unique_ptr<Transport> inner, const Options& options) {
  return std::make_unique<Shm>(options, std::move(inner));
}

}  // namespace paceline

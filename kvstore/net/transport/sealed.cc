// The tcp transport of a job. Without keys, it is plain ZeroMQ (tcp.cc). With keys, CURVE encrypts the connections, and
// small packets travel over them. Large frames would be slow in CURVE, so those of a large packet travel over a second
// socket. A few threads seal and open them with AES-256-GCM. A control message over CURVE announces the large frames of
// a packet:
//
//   packet over CURVE := frame*                    the packet itself, unless its first frame begins with magic
//                      | magic control frame*      control: sealed.proto
//   second socket     := session:u64 number:u64                           first message of the side that connected
//                      | session:u64 number:u64 ciphertext tag:16 bytes   a piece of a frame
//
// The side that connected sends HELLO when it first has a large packet to send, or when the other side asks for HELLO.
// The second socket admits only peers that show a token. The token comes over CURVE and is valid once. Large frames
// travel in CURVE, too, until the second socket is connected, and if it cannot be reached. The tag of a piece also
// protects its session and number. The number is the nonce. Each new HELLO begins a round, and each round has new keys.
// Packets of an earlier round whose pieces have not all come are lost, like packets when a connection breaks. A HELLO
// without an answer is repeated unchanged. The answer may only be late behind a long queue, and a new round would make
// it void.

#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <atomic>
#include <shared_mutex>

#include "observers.h"
#include "random.h"
#include "rejection_log.h"
#include "secrets/job_secret.h"
#include "secrets/keyring.h"
#include "transport/address.h"
#include "transport/connections.h"
#include "transport/sealed_frames.h"
#include "transport/sealed_sessions.h"
#include "transport/work_pool.h"
#include "transport_catalog.h"

namespace paceline {
namespace {

using sealed::Arriving;
using sealed::Control;
using sealed::Session;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostSessions = 65536;
constexpr Clock::duration kBetweenRounds = std::chrono::seconds(10);
constexpr Clock::duration kBeforeSayingAgain = std::chrono::seconds(1);
constexpr char kNotSealed[] = "a piece of a frame that was not sealed with its key";

class Sealed final : public Transport {
 public:
  explicit Sealed(const Options& options)
      : max_frame_bytes_(options.get<std::int64_t>("max_frame_bytes", std::int64_t{1} << 30)),
        control_(make_connections(options)) {}

  ~Sealed() override {
    {
      const std::unique_lock ending(alive_);
      stopping_ = true;
    }
    {
      const Lock turn(turn_);
      handler_ = nullptr;
    }
    if (pool_) pool_->stop();  // announced frames are still sealed and sent
  }

  void use_keys(const std::shared_ptr<Keyring>& keyring) override {
    keyring_ = keyring;
    control_->use_door(make_curve_door(keyring_));
    Options options;
    options.set("max_frame_bytes", std::to_string(1 << 20));
    bulk_ = make_connections(options);
    bulk_->use_door(tokens_);
    tokens_->when_broken([this](LinkId bulk) { while_alive([&] { on_broken(bulk); }); });
    pool_ = std::make_unique<WorkPool>(std::clamp(core_budget() / 2, 1, 4), "seal");
    bulk_->on_receive([this](LinkId link, const Packet& packet) { while_alive([&] { on_bulk(link, packet); }); });
    control_->on_receive(
        [this](LinkId link, Packet packet) { while_alive([&] { receive(link, std::move(packet)); }); });
  }

  std::string bind(const std::string& address) override {
    const std::string at = control_->bind(address);
    if (keyring_) bulk_port_ = parse_host_port(bulk_->bind(join_host_port(parse_host_port(at).host, 0))).port;
    return at;
  }

  LinkId connect(const std::string& address, const std::string& key) override {
    const LinkId link = control_->connect(address, key);
    if (!keyring_) return link;
    const Lock lock(mutex_);
    sessions_.add_connected(random_number(), link, parse_host_port(address).host);
    return link;
  }

  void send(LinkId link, Packet packet) override {
    if (!keyring_ || packet.empty()) return control_->send(link, std::move(packet));
    if (observers_.any() && control_->describe(link) != "nobody") observers_.on_send(link, packet);
    if (sealed::is_control(packet))
      packet.insert(packet.begin(), sealed::frame_of(Control()));
    else if (sealed::is_large(packet) && send_sealed(link, packet))
      return;
    control_->send(link, std::move(packet));
  }

  void close(LinkId link) override {
    if (keyring_) {
      const Lock lock(mutex_);
      if (const auto session = sessions_.find(link)) end(*session);
    }
    control_->close(link);
  }

  void close_unadmitted() override {
    if (!keyring_) return;
    {
      const Lock lock(mutex_);
      const auto admits = [this](const std::string& key) { return keyring_->admits(key); };
      for (const auto& session : sessions_.unwelcome(admits)) end(*session);
    }
    control_->close_unadmitted();
  }

  std::string identity_of(LinkId link) override { return control_->identity_of(link); }
  void keep(LinkId link) override { control_->keep(link); }
  std::string describe(LinkId link) override { return control_->describe(link); }
  std::shared_ptr<detail::WaitingWork> waiting_work() override { return control_->waiting_work(); }

  void on_receive(Handler handler) override {
    if (!keyring_) control_->on_receive(handler);
    const Lock turn(turn_);
    handler_ = std::move(handler);
  }

  void add_observer(std::shared_ptr<TransportObserver> observer) override {
    if (!keyring_) return control_->add_observer(std::move(observer));
    const auto rejections = std::make_shared<RejectionsOnly>(observer);
    control_->add_observer(rejections);
    bulk_->add_observer(rejections);
    observers_.add(std::move(observer));
  }

 private:
  // Runs the action unless this transport is ending. The threads of each socket use the other socket, which may end
  // first.
  template <class Action>
  void while_alive(Action action) {
    const std::shared_lock alive(alive_);
    if (!stopping_) action();
  }

  // ---- packets out ----

  bool send_sealed(LinkId link, const Packet& packet) {
    std::vector<std::function<void()>> jobs;
    {
      const Lock lock(mutex_);
      const auto session = sessions_.find(link);
      if (!session || !session->open) {
        ask_for_second_socket(link, session.get());
        return false;
      }
      Control control = sealed::control_about(*session, Control::FRAMES);
      control.set_first(session->next_out);
      Packet outgoing(1);
      for (const Frame& frame : packet) {
        sealed::Control::Frame& place = *control.add_frames();
        place.set_bytes(frame.size);
        place.set_sealed(frame.size >= sealed::kSmallestSealed);
        if (place.sealed())
          add_jobs(*session, frame, jobs);
        else
          outgoing.push_back(frame);
      }
      outgoing.front() = sealed::frame_of(control);
      control_->send(link, std::move(outgoing));
    }
    pool_->submit(std::move(jobs));
    return true;
  }

  void add_jobs(Session& session, const Frame& frame, std::vector<std::function<void()>>& jobs) {
    for (std::size_t at = 0; at < frame.size; at += sealed::kPieceBytes) {
      const std::size_t bytes = std::min(sealed::kPieceBytes, frame.size - at);
      const std::uint64_t number = session.next_out++;
      jobs.emplace_back([this, key = session.out, session = session.number, number, owner = frame.owner,
                         data = frame.data + at, bytes, bulk = session.bulk] {
        bulk_->send(bulk, {sealed::seal_piece(*buffers_, *key, session, number, data, bytes)});
      });
    }
  }

  // ---- rounds ----

  // `session` is null for a link over which no HELLO has come.
  void ask_for_second_socket(LinkId link, Session* session) PACELINE_REQUIRES(mutex_) {
    if (asked_.size() > kMostSessions) asked_.clear();
    Clock::time_point& asked = session ? session->asked : asked_[link];
    const Clock::time_point now = Clock::now();
    const bool is_asking = session && session->connected && session->word.data;
    if (asked != Clock::time_point() && now - asked < (is_asking ? kBeforeSayingAgain : kBetweenRounds)) return;
    asked = now;
    if (is_asking)
      control_->send(link, {session->word});
    else
      renew(link, session);
  }

  void renew(LinkId link, Session* session) PACELINE_REQUIRES(mutex_) {
    if (session && session->connected) return say_hello(*session);
    if (session) session->open = false;
    control_->send(link, {sealed::frame_of(session ? sealed::control_about(*session, Control::RENEW)
                                                   : sealed::control_of(Control::RENEW))});
  }

  void say_hello(Session& session) PACELINE_REQUIRES(mutex_) {
    begin_round(session, session.round + 1);
    session.said = session.asked = Clock::now();
    const std::string key = SealingKey::draw();
    session.out = std::make_shared<const SealingKey>(key);
    session.word = sealed::frame_of(sealed::hello_of(session, key));
    control_->send(session.link, {session.word});
  }

  void begin_round(Session& session, std::uint32_t round) PACELINE_REQUIRES(mutex_) {
    if (const LinkId old = session.begin_round(round); old != 0) bulk_->close(old);
  }

  void end(Session& session) PACELINE_REQUIRES(mutex_) {
    begin_round(session, session.round + 1);
    sessions_.forget(session);
  }

  // Handles the end of a connection that this side opened to a second socket.
  void on_broken(LinkId bulk) {
    const Lock lock(mutex_);
    const std::shared_ptr<Session> broken = sessions_.find_bulk(bulk);
    if (!broken) return;
    if (broken->may_try_again(Clock::now()))
      say_hello(*broken);
    else
      begin_round(*broken, broken->round + 1);            // unreachable: large frames travel in CURVE for a while
    pool_->submit({[this, broken] { drain(*broken); }});  // not here: the caller has locked the second socket
  }

  void on_hello(LinkId link, const Control& hello) {
    const std::string identity = control_->identity_of(link);
    std::shared_ptr<Session> session;
    {
      const Lock lock(mutex_);
      session = sessions_.find_number(hello.session());
      if (session && (session->connected || session->identity != identity || hello.round() < session->round)) return;
      if (session && hello.round() == session->round) {
        sessions_.move_to(session, link);
        return say_again(*session);
      }
      if (bulk_port_ == 0 || hello.key().size() != kSecretBytes || sessions_.by_number.size() >= kMostSessions) return;
      if (!session) {
        if (const auto other = sessions_.find(link)) end(*other);
        session = sessions_.add_incoming(hello.session(), identity);
      }
      sessions_.move_to(session, link);
      begin_round(*session, hello.round());
      session->asked = Clock::now();
      const std::string key = SealingKey::draw();
      session->in = std::make_shared<const SealingKey>(hello.key());
      session->out = std::make_shared<const SealingKey>(key);
      const std::string token = tokens_->issue(sealed::bulk_identity(*session));
      session->word = sealed::frame_of(sealed::answer_of(*session, key, token, bulk_port_));
      control_->send(link, {session->word});
    }
    drain(*session);
  }

  // Repeats the last message of the round, because the peer may have missed it when its link broke.
  void say_again(const Session& session) PACELINE_REQUIRES(mutex_) {
    control_->send(session.link,
                   {session.open ? sealed::frame_of(sealed::control_about(session, Control::READY)) : session.word});
  }

  void on_answer(LinkId link, const Control& answer) {
    const Lock lock(mutex_);
    const auto session = sessions_.find(link);
    if (!session || !sealed::is_current(*session, answer) || !session->connected) return;
    if (session->is_unreached(Clock::now())) return say_hello(*session);
    if (session->bulk != 0 || answer.key().size() != kSecretBytes || answer.port() == 0 || answer.port() > 65535)
      return;
    session->in = std::make_shared<const SealingKey>(answer.key());
    try {
      session->dial(bulk_->connect(join_host_port(session->host, static_cast<int>(answer.port())), answer.token()));
    } catch (const std::exception& error) {
      LOG_EVERY_N(WARNING, 100) << "[tcp] large frames travel in CURVE: " << error.what();
      session->word = {};
      return;
    }
    bulk_->send(session->bulk, {Frame::of(sealed::head_of(session->number, 0))});
  }

  // ---- packets in ----

  void receive(LinkId link, Packet packet) {
    if (!sealed::is_control(packet)) return take(link, std::move(packet));
    Control control;
    if (!control.ParseFromArray(packet[0].data + sealed::kMagicBytes,
                                static_cast<int>(packet[0].size - sealed::kMagicBytes)))
      return reject(link, "a control message that cannot be parsed");
    switch (control.kind()) {
      case Control::PLAIN:
        packet.erase(packet.begin());
        if (packet.empty()) return reject(link, "a packet without frames");
        return take(link, std::move(packet));
      case Control::HELLO: return on_hello(link, control);
      case Control::ANSWER: return on_answer(link, control);
      case Control::READY: return on_ready(link, control);
      case Control::FRAMES: return on_frames(link, control, std::move(packet));
      case Control::RENEW: return on_renew(link, control);
      default: return reject(link, "a control message of an unknown kind");
    }
  }

  void on_ready(LinkId link, const Control& ready) {
    const Lock lock(mutex_);
    const auto session = sessions_.find(link);
    if (session && session->connected && sealed::is_current(*session, ready)) session->open = session->bulk != 0;
  }

  void on_renew(LinkId link, const Control& control) {
    std::shared_ptr<Session> session;
    {
      const Lock lock(mutex_);
      session = sessions_.find(link);
      if (!session || !session->connected) return;
      if (!session->open) return ask_for_second_socket(link, session.get());
      if (control.session() != 0 && !sealed::is_current(*session, control)) return;
      say_hello(*session);
    }
    drain(*session);
  }

  // Delivers a packet that is complete, after the earlier packets of its link.
  void take(LinkId link, Packet packet) {
    std::shared_ptr<Session> session;
    {
      const Lock lock(mutex_);
      session = sessions_.find(link);
      if (session && session->queue.empty() && !session->delivering) session = nullptr;
      if (session) session->queue.push_back(std::make_shared<Arriving>(Arriving{link, packet, 0}));
    }
    if (session)
      drain(*session);
    else
      deliver(link, std::move(packet));
  }

  void on_frames(LinkId link, const Control& control, Packet packet) {
    const auto arriving = std::make_shared<Arriving>();
    std::vector<sealed::Place> places;
    const std::string wrong = sealed::lay_out(control, std::move(packet), max_frame_bytes_, arriving, places);
    if (!wrong.empty()) return reject(link, wrong);
    arriving->from = link;

    const std::string identity = control_->identity_of(link);
    std::vector<std::pair<std::uint64_t, Frame>> here;
    std::shared_ptr<Session> session;
    {
      const Lock lock(mutex_);
      session = sessions_.find_number(control.session());
      if (!session || (session->connected ? session->link != link : session->identity != identity))
        return renew(link, nullptr);
      if (!sealed::is_current(*session, control)) {  // the packet is lost: it was announced in an earlier round
        if (session->connected && !session->open) ask_for_second_socket(link, session.get());  // HELLO may be lost
        return;
      }
      if (control.first() < session->next_in) return reject(link, "pieces that it had announced before");
      sessions_.move_to(session, link);
      here = session->expect(arriving, control.first(), std::move(places));
    }
    for (auto& [number, frame] : here) on_piece(session, number, std::move(frame));
  }

  // ---- pieces in ----

  void on_bulk(LinkId bulk, const Packet& packet) {
    if (packet.size() != 1 || packet[0].size < sealed::kHeadBytes) return reject_bulk(bulk, "no piece of a frame");
    const std::uint64_t number = sealed::number_at(packet[0].data + 8);
    const std::string identity = bulk_->identity_of(bulk);
    std::shared_ptr<Session> session;
    {
      const Lock lock(mutex_);
      session = sessions_.find_number(sealed::number_at(packet[0].data));
      if (!session) return;
      if (session->connected ? session->bulk != bulk : sealed::bulk_identity(*session) != identity) return;
      if (number == 0) {
        if (session->connected || session->bulk != 0) return;
        session->bulk = bulk;
        session->open = true;
        control_->send(session->link, {sealed::frame_of(sealed::control_about(*session, Control::READY))});
        return;
      }
    }
    on_piece(session, number, packet[0]);
  }

  void on_piece(const std::shared_ptr<Session>& session, std::uint64_t number, Frame piece) {
    sealed::Place place;
    std::shared_ptr<const SealingKey> key;
    {
      const Lock lock(mutex_);
      const auto found = session->expected.find(number);
      if (found == session->expected.end()) {
        // A genuine piece came late or early. Another piece may carry a damaged number. The packet that it belongs to
        // would then wait for ever.
        const bool good = sealed::is_genuine(*session->in, session->number, number, piece);
        if (good && (number < session->next_in || session->keep_early(number, std::move(piece)))) return;
        if (!good) reject(session->link, kNotSealed);
        session->lose_what_is_missing();
        return renew(session->link, session.get());
      }
      place = found->second;
      session->expected.erase(found);
      key = session->in;
    }
    auto open = [this, session, number, place, key, piece = std::move(piece)] {
      const bool good = sealed::open_piece(*key, session->number, number, piece, place);
      {
        const Lock lock(mutex_);
        if (good) {
          --place.in->missing;
        } else {
          session->lose_what_is_missing();
          renew(session->link, session.get());
        }
      }
      if (!good) reject(place.in->from, kNotSealed);
      drain(*session);
    };
    // With few cores, a hand-over to another thread costs more than it gains: 7 % of the speed with two.
    pool_->threads() > 1 ? pool_->submit({std::move(open)}) : open();
  }

  // Delivers the complete packets at the front of the queue.
  void drain(Session& session) {
    for (;;) {
      std::shared_ptr<Arriving> first;
      {
        const Lock lock(mutex_);
        first = session.take_whole();
      }
      if (!first) return;
      deliver(first->from, std::move(first->packet));
      const Lock lock(mutex_);
      session.delivering = false;
    }
  }

  void deliver(LinkId link, Packet packet) {
    const Lock turn(turn_);
    if (!handler_) return;
    observers_.on_receive(link, packet);
    handler_(link, std::move(packet));
  }

  void reject(LinkId link, const std::string& what) {
    const std::string text = "[tcp] " + control_->describe(link) + " sent " + what + "; it was dropped";
    rejections_.add(text);
    observers_.on_reject(text);
  }
  void reject_bulk(LinkId bulk, const std::string& what) {
    rejections_.add("[tcp] " + bulk_->describe(bulk) + " sent " + what + "; it was dropped");
    bulk_->close(bulk);
  }

  const std::int64_t max_frame_bytes_;
  std::shared_mutex alive_;
  bool stopping_ = false;             // guarded by alive_
  std::shared_ptr<Keyring> keyring_;  // null: nothing is encrypted
  const std::shared_ptr<TokenDoor> tokens_ = std::make_shared<TokenDoor>();
  const std::shared_ptr<sealed::Buffers> buffers_ = std::make_shared<sealed::Buffers>();
  std::atomic<int> bulk_port_ = 0;
  Observers observers_;
  RejectionLog rejections_;

  Mutex turn_;  // held while a handler runs
  Handler handler_ PACELINE_GUARDED_BY(turn_);

  Mutex mutex_;  // taken after turn_
  sealed::Sessions sessions_ PACELINE_GUARDED_BY(mutex_);
  std::unordered_map<LinkId, Clock::time_point> asked_ PACELINE_GUARDED_BY(mutex_);  // links without a session

  std::unique_ptr<WorkPool> pool_;
  std::unique_ptr<Connections> control_, bulk_;  // last, so that they are destroyed first: their threads use the rest
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(const Options& options) { return std::make_unique<Sealed>(options); }

}  // namespace paceline

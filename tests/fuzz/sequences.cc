// Messages into a live job on `inproc`: a scheduler, a server (none in modes of workers), a member that says what the
// input says, and a good worker. First the job starts, and keys are initialised where the set-up says so. Then the
// messages are sent, and the bad member leaves. Nobody may crash or hang. The good worker then initialises, pushes,
// pulls and leaves. It may be refused where the member or somebody with a stolen number has spoken. Strangers must not
// disturb it at all.

#include "sequence.h"

#include <paceline/kvstore.h>

#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <optional>

#include "fuzz.h"
#include "key_partition.h"
#include "membership.h"
#include "message.pb.h"
#include "node.h"
#include "parse_body.h"
#include "roster.h"
#include "scheduler.h"
#include "server.h"
#include "store.pb.h"

namespace paceline::fuzz {
namespace {

constexpr const char* kKey = "w";
constexpr const char* kModes[] = {"dist_async", "dist_sync", "ring", "gossip:steps=1"};

// Whose incarnation a message carries. What the first two are for harms nobody.
enum Sender : std::uint8_t { kStranger, kNewcomer, kMember, kGoodWorker, kServer, kScheduler, kSenders };

struct Setup {
  explicit Setup(std::uint8_t bits) : mode(kModes[bits % 4]), servers(bits % 4 < 2 ? 1 : 0), initialised(bits & 4) {}

  const std::string mode;
  const int servers;
  const bool initialised;
};

ClusterConfig job_of(const Setup& setup) {
  static std::atomic<int> count = 0;
  ClusterConfig config;
  config.transport = "inproc";
  config.job = config.scheduler_host = str("fuzz ", ++count);
  config.servers = setup.servers;
  config.workers = 2;
  config.heartbeat_seconds = 0.05;
  config.silence_deadline_seconds = 2;
  return config;
}

ClusterConfig member(ClusterConfig config, Role role, int task) {
  config.role = role;
  config.task = task;
  return config;
}

// The scheduler and the server.
class Job {
 public:
  explicit Job(const Setup& setup) : config_(job_of(setup)), scheduler_(member(config_, Role::kScheduler, 0)) {
    if (setup.servers > 0) server_ = std::make_unique<Server>(member(config_, Role::kServer, 0), Extensions{}, 1);
    run([this] { scheduler_.run(); });
    if (server_) run([this] { server_->run(); });
  }

  // Waits for the end of both. What they failed of; empty where they did not.
  std::string failure() {
    std::string failure;
    for (std::future<std::string>& end : ends_) failure += end.get();
    return failure;
  }

  const ClusterConfig& config() const { return config_; }

 private:
  template <class Role>
  void run(Role role) {
    ends_.push_back(std::async(std::launch::async, [role] {
      try {
        role();
        return std::string();
      } catch (const Error& error) {
        return std::string(error.what());
      }
    }));
  }

  const ClusterConfig config_;
  Scheduler scheduler_;
  std::unique_ptr<Server> server_;
  std::vector<std::future<std::string>> ends_;  // last: their threads use the others
};

// Sends messages over links of its own, and hears the answers.
class Speaker {
 public:
  explicit Speaker(const ClusterConfig& config) : job_(number_of_job(config.job)) {
    transport_->on_receive([this](LinkId, const Packet& packet) { hear(decode(packet)); });
    connect(config.scheduler_host + "/scheduler");
  }

  std::uint64_t job() const { return job_; }
  std::size_t links() const { return links_.size(); }
  void connect(const std::string& address) { links_.push_back(transport_->connect(address)); }
  std::string bind(const std::string& address) { return transport_->bind(address); }
  std::uint64_t next_request() { return next_request_++; }
  void say(std::size_t link, const Message& message) { transport_->send(links_[link], encode(message)); }
  // Returns no answer if none comes in time: the receiver may have ended, or hung up.
  std::optional<Message> ask(std::size_t link, Message message) {
    std::future<Message> answer;
    message.header.request = next_request();
    {
      const std::lock_guard lock(mutex_);
      answer = asked_[message.header.request].get_future();
    }
    say(link, message);
    if (answer.wait_for(kPatience) != std::future_status::ready) return std::nullopt;
    return answer.get();
  }

 private:
  static constexpr std::chrono::seconds kPatience{3};

  void hear(Message message) {
    const std::lock_guard lock(mutex_);
    if (const auto asked = asked_.extract(message.header.request)) asked.mapped().set_value(std::move(message));
  }

  const std::uint64_t job_;
  std::vector<LinkId> links_;
  std::uint64_t next_request_ = 1000;
  std::mutex mutex_;
  std::map<std::uint64_t, std::promise<Message>> asked_;
  std::unique_ptr<Transport> transport_ = make_transport(Spec::parse("inproc"));  // last: its thread uses the others
};

// A worker that takes part in what is collective, and then says what the input says. It joins by hand, because a Node
// would not say anything else over its links.
class Member {
 public:
  explicit Member(const ClusterConfig& job) : config_(job), speaker_(job) {}

  void join() {
    proto::Join body;
    body.set_role(static_cast<std::uint32_t>(Role::kWorker));
    body.set_job(config_.job);
    body.set_task(1);
    body.set_servers(static_cast<std::uint32_t>(config_.servers));
    body.set_workers(static_cast<std::uint32_t>(config_.workers));
    if (config_.servers == 0) body.set_address(speaker_.bind(config_.job + "/member"));
    incarnation_ = kProvisionalIncarnation | 54321;
    const auto joined = parse_body<proto::Joined>(ask(MessageKind::kJoin, body.SerializeAsString()));
    incarnation_ = joined.incarnation();
    roster_ = from_proto(joined.roster()).roster;
    for (const std::string& address : addresses()) speaker_.connect(address);
  }
  void init(const std::string& mode, const Shape& shape) {
    wire::InitRequest body;
    body.set_call(1);
    body.set_mode(mode);
    write_key({kKey, DType::kFloat32, shape}, body.add_keys());
    ask(MessageKind::kInit, body.SerializeAsString());
    body.set_values(true);
    ask(MessageKind::kInit, body.SerializeAsString());
    body.set_values(false);
    body.set_held(true);
    ask(MessageKind::kInit, body.SerializeAsString());
  }
  // Does not wait until its silence is noticed.
  void leave() { speaker_.say(0, message(MessageKind::kLeave)); }

  const ClusterConfig& config() const { return config_; }
  const Roster& roster() const { return roster_; }
  std::uint64_t incarnation() const { return incarnation_; }
  Speaker& speaker() { return speaker_; }
  // Of the server and of the good worker.
  std::vector<std::string> addresses() const {
    std::vector<std::string> addresses;
    for (const Peer& peer : roster_.peers)
      if (peer.id.role != Role::kScheduler && peer.incarnation != incarnation_ && !peer.address.empty())
        addresses.push_back(peer.address);
    return addresses;
  }

 private:
  Message message(MessageKind kind) {
    return {{kind, speaker_.job(), incarnation_, speaker_.next_request(), roster_.epoch}, {}, {}};
  }
  Message ask(MessageKind kind, const std::string& body) {
    Message request = message(kind);
    request.body = body;
    const std::optional<Message> answer = speaker_.ask(0, std::move(request));
    expect(answer.has_value(), "nobody answers the ", name_of(kind), " of a good member");
    return *answer;
  }

  const ClusterConfig config_;
  Speaker speaker_;
  std::uint64_t incarnation_ = 0;
  Roster roster_;
};

// Says what the input says: in the member's name over the member's links, in other names over links of strangers.
class Voice {
 public:
  Voice(const ClusterConfig& config, Member& member) : member_(member), stranger_(config) {
    for (const std::string& address : member.addresses()) stranger_.connect(address);
    incarnations_.resize(kSenders);
    incarnations_[kStranger] = 12345;
    incarnations_[kNewcomer] = kProvisionalIncarnation | 12345;
    incarnations_[kMember] = member.incarnation();
    for (const Peer& peer : member.roster().peers) {
      if (peer.id.role == Role::kScheduler) incarnations_[kScheduler] = peer.incarnation;
      if (peer.id.role == Role::kServer) incarnations_[kServer] = peer.incarnation;
      if (peer.id.role == Role::kWorker && peer.incarnation != member.incarnation())
        incarnations_[kGoodWorker] = peer.incarnation;
    }
  }

  void say(const Sent& sent) {
    const std::size_t from = sent.from % kSenders;
    Speaker& speaker = from == kMember ? member_.speaker() : stranger_;
    Message message;
    message.header.kind = static_cast<MessageKind>(sent.kind);
    message.header.job = speaker.job();
    message.header.incarnation = incarnations_[from];
    message.header.request = sent.request == kNoRequest ? 0 : sent.request > 0 ? sent.request : speaker.next_request();
    message.header.epoch = member_.roster().epoch + sent.epoch;
    message.body = sent.body;
    for (const std::uint16_t size : sent.frames) message.payload.push_back(Frame::of(std::string(size, '\x3f')));
    speaker.say(sent.to % speaker.links(), message);
  }
  // Returns when everybody has handled what was said. False if somebody does not answer.
  bool wait() {
    // Over new links, because those of the messages may have been closed.
    Speaker asking(member_.config());
    for (const std::string& address : member_.addresses()) asking.connect(address);
    bool answered = true;
    for (std::size_t link = 0; link < asking.links(); ++link) {
      Message probe;
      probe.header = {MessageKind::kProbe, asking.job(), incarnations_[kStranger], 0, member_.roster().epoch};
      probe.body = "0";
      answered &= asking.ask(link, std::move(probe)).has_value();
    }
    return answered;
  }

 private:
  Member& member_;
  Speaker stranger_;
  std::vector<std::uint64_t> incarnations_;
};

// What a good worker does with a store.
class GoodWorker {
 public:
  GoodWorker(const ClusterConfig& config, const Setup& setup) : setup_(setup) {
    StoreOptions options;
    options.engine = engine_.get();
    store_ = KVStore::join(member(config, Role::kWorker, 0), setup.mode, options);
  }

  void init(const std::string& key) { store_->init({{key, NDArray::zeros(kShape, DType::kFloat32, {}, *engine_)}}); }
  void train(const std::string& key, bool undisturbed) {
    store_->set_optimizer(Spec::parse("sgd:lr=1"));
    const NDArray gradient = NDArray::full(kShape, 1, DType::kFloat32, {}, *engine_);
    const NDArray weights = NDArray::zeros(kShape, DType::kFloat32, {}, *engine_);
    store_->push(key, gradient);
    store_->pull(key, weights);
    store_->step_end();
    weights.wait();
    if (undisturbed)
      for (const float value : weights.to_vector<float>()) expect(value == -1, "a weight is ", value);
  }
  void finish() { store_->finish(); }

  static inline const Shape kShape{4, 2};

 private:
  const Setup setup_;
  const std::unique_ptr<Engine> engine_ = make_serial_engine();
  std::shared_ptr<KVStore> store_;
};

}  // namespace

void sequences(std::string_view input) {
  const Sequence sequence = read_sequence(input);
  const Setup setup(sequence.setup);
  const bool strangers =
      std::ranges::all_of(sequence.messages, [](const Sent& sent) { return sent.from % kSenders <= kNewcomer; });
  Job job(setup);
  Member bad(job.config());
  auto joined = std::async(std::launch::async, [&] {
    bad.join();
    if (setup.initialised) bad.init(Spec::parse(setup.mode).name, GoodWorker::kShape);
  });
  std::optional<GoodWorker> good(std::in_place, job.config(), setup);
  if (setup.initialised) good->init(kKey);
  joined.get();

  Voice voice(job.config(), bad);
  for (const Sent& sent : sequence.messages) voice.say(sent);
  expect(voice.wait() || !strangers, "strangers silence a process");
  bad.leave();
  try {
    if (setup.initialised) good->train(kKey, strangers);
    good->init("another");
    good->train("another", strangers);
    good->finish();
  } catch (const Error& error) {
    expect(!strangers, "strangers disturb a good worker: ", error.what());
  }
  good.reset();
  const std::string failure = job.failure();
  expect(!strangers || failure.empty(), "strangers end the scheduler or the server: ", failure);
}

}  // namespace paceline::fuzz

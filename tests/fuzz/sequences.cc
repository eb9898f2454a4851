// Messages into a live job on `inproc`: a scheduler, a server (none in modes of workers), a member that says what the
// input says, and a good worker. First the job starts, and keys are initialised where the set-up says so. Then the
// messages are sent, and the bad member leaves. Nobody may crash or hang. The good worker then initialises, pushes,
// pulls and leaves. It may be refused where the member or somebody with a stolen number has spoken. Strangers must not
// disturb it at all.

#include "sequence.h"

#include <paceline/kvstore.h>

#include <atomic>
#include <future>
#include <mutex>

#include "fuzz.h"
#include "key_partition.h"
#include "node.h"
#include "parse_body.h"
#include "scheduler.h"
#include "server.h"
#include "store.pb.h"

namespace paceline::fuzz {
namespace {

constexpr const char* kKey = "w";
constexpr const char* kModes[] = {"dist_async", "dist_sync", "ring", "gossip:steps=1"};
constexpr std::uint64_t kProvisional = std::uint64_t{1} << 63;

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

// The worker whose number the messages may carry. It takes part in what is collective before them.
class Member {
 public:
  explicit Member(const ClusterConfig& config) : node_(member(config, Role::kWorker, 1), Node::Handlers{}) {}

  Node& node() { return node_; }
  void join() { node_.join(); }
  void init(const std::string& mode, const Shape& shape) {
    wire::InitRequest body;
    body.set_call(1);
    body.set_mode(mode);
    write_key({kKey, DType::kFloat32, shape}, body.add_keys());
    ask(body);
    body.set_values(true);
    ask(body);
    body.set_values(false);
    body.set_held(true);
    ask(body);
  }

 private:
  void ask(const wire::InitRequest& body) {
    node_.ask_and_wait({Role::kScheduler, 0}, message_of(MessageKind::kInit, body));
  }

  Node node_;
};

// Speaks to the processes of the job without being one.
class Voice {
 public:
  Voice(const ClusterConfig& config, const Node& member)
      : job_(number_of_job(config.job)), epoch_(member.roster().epoch) {
    transport_->on_receive([this](LinkId, const Packet& packet) { on_packet(packet); });
    addresses_.push_back(config.scheduler_host + "/scheduler");
    incarnations_.resize(kSenders);
    incarnations_[kStranger] = 12345;
    incarnations_[kNewcomer] = kProvisional | 12345;
    incarnations_[kMember] = member.incarnation();
    for (const Peer& peer : member.roster().peers) {
      const bool good = peer.id.role == Role::kWorker && peer.incarnation != member.incarnation();
      if (peer.id.role == Role::kScheduler) incarnations_[kScheduler] = peer.incarnation;
      if (peer.id.role == Role::kServer) incarnations_[kServer] = peer.incarnation;
      if (good) incarnations_[kGoodWorker] = peer.incarnation;
      if ((good || peer.id.role == Role::kServer) && !peer.address.empty()) addresses_.push_back(peer.address);
    }
    for (const std::string& address : addresses_) links_.push_back(transport_->connect(address));
  }

  void say(const Sent& sent) {
    Message message;
    message.header.kind = static_cast<MessageKind>(sent.kind);
    message.header.job = job_;
    message.header.incarnation = incarnations_[sent.from % kSenders];
    message.header.request = sent.request == kNoRequest ? 0 : sent.request > 0 ? sent.request : next_request_++;
    message.header.epoch = epoch_ + sent.epoch;
    message.body = sent.body;
    for (const std::uint16_t size : sent.frames) message.payload.push_back(Frame::of(std::string(size, '\x3f')));
    transport_->send(links_[sent.to % links_.size()], encode(message));
  }
  // Until everybody has handled what was said. Over new links, because those of the messages may have been closed.
  void wait() {
    for (const std::string& address : addresses_) {
      std::future<void> answered;
      {
        const std::lock_guard lock(mutex_);
        answered_ = {};
        answered = answered_.get_future();
        waiting_for_ = next_request_;
      }
      Message probe;
      probe.header = {MessageKind::kProbe, job_, incarnations_[kStranger], next_request_++, epoch_};
      probe.body = "0";
      transport_->send(transport_->connect(address), encode(probe));
      answered.wait();
    }
  }
  void leave() {
    say({.to = 0, .from = kMember, .kind = static_cast<std::uint8_t>(MessageKind::kLeave), .body = {}, .frames = {}});
  }

 private:
  void on_packet(const Packet& packet) {
    const Message message = decode(packet);
    const std::lock_guard lock(mutex_);
    if (waiting_for_ != 0 && message.header.request == waiting_for_) {
      waiting_for_ = 0;
      answered_.set_value();
    }
  }

  const std::uint64_t job_, epoch_;
  std::vector<std::uint64_t> incarnations_;
  std::vector<std::string> addresses_;
  std::vector<LinkId> links_;
  std::uint64_t next_request_ = 1000;
  std::mutex mutex_;
  std::promise<void> answered_;
  std::uint64_t waiting_for_ = 0;
  std::unique_ptr<Transport> transport_ = make_transport(Spec::parse("inproc"));  // last: its thread uses the others
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
  std::optional<Member> bad(std::in_place, job.config());
  auto joined = std::async(std::launch::async, [&] {
    bad->join();
    if (setup.initialised) bad->init(Spec::parse(setup.mode).name, GoodWorker::kShape);
  });
  std::optional<GoodWorker> good(std::in_place, job.config(), setup);
  if (setup.initialised) good->init(kKey);
  joined.get();

  Voice voice(job.config(), bad->node());
  for (const Sent& sent : sequence.messages) voice.say(sent);
  voice.wait();
  voice.leave();
  voice.wait();
  bad.reset();
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

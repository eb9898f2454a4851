#include "gossip/gossip.h"

#include <paceline/error.h>

#include <array>
#include <exception>
#include <functional>

#include "gossip/gossip_peer.h"
#include "parse_body.h"
#include "shared_failure.h"
#include "store.pb.h"
#include "transport/transport_setting.h"

namespace paceline {
namespace {

constexpr const char* kLoaded = "loaded";  // what a worker tells the others at the end of load()

// Throws InvalidArgument if the optimizers of two workers differ, given as texts.
void require_same_rules(const GatheredValues& rules) {
  for (const auto& [worker, text] : rules)
    require(text == rules.begin()->second, "worker ", rules.begin()->first, " has the optimizer '",
            rules.begin()->second, "', and worker ", worker, " has '", text,
            "'; every worker calls set_optimizer() before load()");
}

struct GossipOptions {
  std::int64_t steps = 1, seed = 0;
  std::string transport;

  static GossipOptions parse(const Spec& mode) {
    const Options options = mode.options;
    GossipOptions result;
    result.steps = options.get("steps", result.steps);
    result.seed = options.get("seed", result.seed);
    result.transport = options.get("transport", "");
    if (!result.transport.empty()) TransportSetting::parse(result.transport);
    options.reject_unknown("mode 'gossip'");
    require(result.steps >= 1, "steps is ", result.steps, ", expected at least 1");
    return result;
  }
};

class GossipBackend final : public Backend {
 public:
  GossipBackend(const ClusterConfig& config, const GossipOptions& gossip, const StoreOptions& options)
      : options_(gossip),
        max_frame_bytes_(TransportSetting::parse(config.transport).max_frame_bytes()),
        workers_(config.workers),
        engine_(options.engine ? *options.engine : default_engine()),
        local_(make_local_backend(options, {})),
        peer_(config, *local_, gossip.seed),
        client_(peer_.node()) {}

  ~GossipBackend() override {
    engine_.wait_unused(meeting_);
    // If an exception unwinds the stack, this worker does not leave the job, so the others count it as lost.
    if (!finished_ && std::uncaught_exceptions() == 0) peer_.node().leave();
  }

  int rank() const override { return peer_.node().rank(); }
  int size() const override { return workers_; }
  int server_count() const override { return 0; }
  bool leads() const override { return client_.leader() == rank(); }

  void init(const std::vector<InitValue>& values) override {
    for (const InitValue& value : values)
      require(value.value.bytes() <= max_frame_bytes_, "key '", value.key, "' has ", value.value.bytes(),
              " bytes, and mode gossip sends a key as one frame, of at most ", max_frame_bytes_,
              "; cut the key, or raise max_frame_bytes of the transport");
    for (const InitValue& value : values) value.value.wait();  // a failed value throws before the others wait
    wire::InitRequest request;
    request.set_call(++init_calls_);
    request.set_mode("gossip");
    for (const InitValue& value : values)
      write_key({value.key, value.value.dtype(), value.value.shape(), value.average}, request.add_keys());
    const auto ask = [this](const wire::InitRequest& question) {
      return parse_body<wire::InitReply>(client_.ask(MessageKind::kInit, question));
    };
    const wire::InitRequest declaration = request;
    wire::InitReply reply = ask(declaration);
    request.clear_keys();
    local_->init(values);
    const std::size_t first = peer_.add_keys(parse_layout(reply).keys);
    for (bool held = false; !held;) {
      request.set_held(false);
      request.set_values(true);
      while (!reply.done()) {
        request.set_sender(reply.sender());
        reply = ask(request);
      }
      request.set_attempt(reply.attempt());
      const int sender = static_cast<int>(reply.sender());
      if (sender != rank()) {
        const std::vector<SavedKey> fetched = peer_.fetch(sender, first, false);
        if (fetched.size() < values.size()) {
          reply = ask(declaration);  // asks which worker has the values now
          continue;
        }
        peer_.take(fetched, first, 1);
      }
      for (const InitValue& value : values) {
        local_->pull({{value.key, value.value}}, 0);
        value.value.wait();
      }
      request.set_values(false);
      request.set_held(true);
      reply = ask(request);
      held = reply.attempt() == request.attempt();
    }
  }

  void set_optimizer(const Spec& optimizer) override {
    make_optimizer(optimizer);
    client_.agree_on_rules(++optimizer_calls_, optimizer.text());
    local_->set_optimizer(optimizer);
    rules_ = optimizer.text();
  }
  void set_learning_rate(double rate) override { local_->set_learning_rate(rate); }

  // The schedule of the learning rate counts the examples of the whole job, so `examples` is multiplied by the number
  // of live workers.
  void push(const std::vector<PushItem>& items, std::int64_t examples, int priority) override {
    require(examples >= 0, "a push of ", examples, " examples");
    const auto live = std::max<std::int64_t>(1, static_cast<std::int64_t>(peer_.members().size()));
    local_->push(items, examples * live, priority);
  }
  void pull(const std::vector<PullItem>& items, int priority) override { local_->pull(items, priority); }
  void push_pull(const std::vector<PushItem>& gradients, const std::vector<PullItem>& weights, std::int64_t examples,
                 int priority) override {
    push(gradients, examples, priority);
    pull(weights, priority);
  }

  void step_end() override {
    if (++step_ % options_.steps == 0) begin_meeting();
  }
  void reached(std::uint64_t step) override { peer_.node().reached(step); }

  GatheredValues all_gather(const std::string& name, const std::string& value) override {
    return meet_all([] {}, name, value);
  }

  void put_fact(const std::string& name, const std::string& value) override { client_.put_fact(name, value); }
  Facts facts(const std::string& prefix) override { return client_.facts(prefix); }

  std::pair<int, int> data_part(std::int64_t epoch) override { return client_.data_part(epoch); }
  void data_begin(std::int64_t epoch, const DataPlan& plan) override {
    peer_.settle();  // data_begin() gives back positions whose commit has not arrived
    client_.data_begin(epoch, plan);
  }
  void data_commit(std::int64_t epoch, const PositionRanges& done, const std::string& note) override {
    client_.commits()->wait_for_room();
    peer_.tell({Role::kScheduler, 0}, SchedulerClient::commit_message(epoch, done, note),
               [commits = client_.commits(), sent = client_.commits()->add()] { commits->remove(sent); });
  }
  PositionRanges data_committed(std::int64_t epoch) override {
    peer_.settle();  // this worker's own commits
    return client_.data_committed(epoch);
  }
  std::vector<std::string> data_notes(std::int64_t epoch) override { return client_.data_notes(epoch); }
  PositionRanges data_take_over(std::int64_t epoch, bool wait, PieceSize size) override {
    if (wait) peer_.settle();  // this worker's commits
    return client_.data_take_over(epoch, wait, size);
  }

  StoreReport report() override {
    settle();
    StoreReport report = local_->report();
    report.clock = step_;
    return report;
  }

  StoreState save() override {
    StoreState state;
    meet_all([&] {
      state = local_->save();
      state.counters.emplace_back("workers", std::to_string(workers_));
    });
    return state;
  }

  void load(const StoreState& state) override;

  void finish() override {
    if (std::exchange(finished_, true)) return;
    settle();
    peer_.leave();
  }

 private:
  // Blocks until this worker's updates are made, its last meeting is over, and the messages of GossipPeer::tell() have
  // arrived.
  void settle() {
    local_->barrier();
    engine_.wait(meeting_);
    peer_.settle();
  }

  // Replaces all weights and states, so a meeting that failed with a gradient counts no more.
  void load_here(const StoreState& state) {
    local_->load(state);
    engine_.push({"store.load"}, {}, std::array{meeting_}, [](TaskContext&) {});
  }

  void begin_meeting() {
    const auto keys = std::make_shared<std::vector<LocalBackend::Weights>>(peer_.keys());
    const auto snapshots = std::make_shared<std::vector<Snapshot>>();
    std::vector<Variable> reads;  // without meeting_, so that a failed meeting does not fail the next one
    for (const auto& key : *keys) reads.push_back(key.variable);
    engine_.push({"store.send"}, reads, std::array{meeting_}, [this, keys, snapshots](TaskContext&) {
      for (const auto& key : *keys) snapshots->push_back(local_->updater().pull(key.slice, -1));
    });
    engine_.push_async({"store.meet", {}, Lane::kCommunication}, std::array{meeting_}, std::array{meeting_},
                       [this, snapshots, step = step_](TaskContext&, Completion completion) {
                         peer_.meet(*snapshots, step, std::move(completion));
                       });
  }

  GatheredValues gather(const std::string& name, const std::string& value) {
    return client_.gather(client_.next_barrier(), 0, false, name, value).second;
  }

  // Waits until all live workers have come, and gives all of them the mean of their weights. No training changes
  // weights meanwhile. The leader runs `at_leader` when it has the mean.
  GatheredValues meet_all(const std::function<void()>& at_leader, const std::string& name = {},
                          const std::string& value = {}) {
    SharedFailure failure(rank());
    failure.run([this] { settle(); });
    GatheredValues given = gather(name, value);
    const int leader = client_.met_leader();
    if (leader == rank() && !failure)
      failure.run([&] {
        peer_.take_mean();
        at_leader();
      });
    failure.hear(gather("/mean", failure.told()));
    if (leader != rank() && !failure) failure.run([&] { peer_.take(peer_.fetch(leader, 0, false), 0, 1); });
    failure.hear(gather("/met", failure.told()));
    client_.require_one_name();
    failure.rethrow();
    return given;
  }

  const GossipOptions options_;
  const std::uint64_t max_frame_bytes_;
  const int workers_;
  Engine& engine_;
  const std::unique_ptr<LocalBackend> local_;
  const Variable meeting_ = engine_.new_variable();  // free when this worker's last meeting is over
  GossipPeer peer_;
  SchedulerClient client_;
  std::int64_t step_ = 0;
  std::string rules_;  // the optimizer, as text
  std::uint32_t init_calls_ = 0, optimizer_calls_ = 0;
  bool finished_ = false;
};

// The state that the leader passes counts. The other workers fetch weights and optimizer state from the leader.
void GossipBackend::load(const StoreState& state) {
  SharedFailure failure(rank());
  failure.run([this] {
    local_->barrier();
    engine_.wait_unused(meeting_);  // load_here() mends what made the meeting fail
    peer_.settle();
  });
  const GatheredValues rules = gather("/rules", rules_);
  const int leader = rules.empty() ? rank() : rules.begin()->first;  // also if it is lost meanwhile
  failure.run_for_all([&] {
    client_.require_one_name();
    if (failure) return;
    require_same_rules(rules);  // a state that fits the leader's rules then fits those of all workers
    if (leader == rank()) load_here(state);
  });
  const GatheredValues outcome = gather("/load", failure.told());
  failure.hear(outcome);
  const bool refused{failure};
  bool loaded = leader == rank() && !refused;
  if (leader != rank() && !refused && outcome.count(leader) > 0)
    failure.run([&] {
      SavedStore store;
      const auto keys = peer_.keys();
      const std::vector<SavedKey> fetched = peer_.fetch(leader, 0, true);
      for (std::size_t k = 0; k < fetched.size(); ++k) store.keys[keys[k].key] = fetched[k];
      if (!fetched.empty()) load_here(store.write());
      loaded = !fetched.empty() || keys.empty();
    });
  // All workers learn whether all have loaded the state. Some have not if the leader was lost meanwhile.
  const GatheredValues loads = gather("/loaded", loaded ? kLoaded : failure.told());
  client_.require_one_name();
  failure.hear(loads);
  failure.rethrow(refused ? "" : kLoadedInPart);
  for (const auto& [worker, said] : loads)
    if (said != kLoaded)
      throw NetworkError(
          str("worker ", worker, " could not load the state: some weights are the state's and some are not"));
}

}  // namespace

void check_gossip(const Spec& mode, const ClusterConfig& config) {
  GossipOptions::parse(mode);
  require(config.servers == 0, "mode gossip has no servers, and this job has ", config.servers,
          "; start it with launch.py -s 0 (DMLC_NUM_SERVER=0)");
}

std::unique_ptr<Backend> make_gossip_backend(const ClusterConfig& config, const Spec& mode,
                                             const StoreOptions& options) {
  check_gossip(mode, config);
  const GossipOptions gossip = GossipOptions::parse(mode);
  ClusterConfig own = config;
  if (!gossip.transport.empty()) own.transport = gossip.transport;
  return std::make_unique<GossipBackend>(own, gossip, options);
}

}  // namespace paceline

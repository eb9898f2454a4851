#pragma once
// The backend of the dist modes. The servers hold the weights, and this process is one of the workers.

#include <paceline/backend.h>
#include <paceline/cluster.h>
#include <paceline/kvstore.h>
#include <paceline/mode.h>
#include <paceline/worker_rule.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/saved_tables.h"
#include "node.h"
#include "scheduler_client.h"
#include "send/compression_setting.h"
#include "send/compressor.h"
#include "send/transfer.h"
#include "servers/rows.h"

namespace paceline {

struct SavedStore;
namespace wire {
class Placement;
class SetRules;
class StepEnd;
class StepEndReply;
}  // namespace wire

// The parts of a mode's text: the options of the servers' Mode, of the staleness policy, of the transport and of the
// compression.
struct ModeSetting {
  Spec mode;
  std::shared_ptr<const Mode> object;  // the mode that `mode` names
  std::string staleness;               // empty: the mode's default
  Options staleness_options;
  std::string transport;  // empty: the transport of the ClusterConfig
  CompressionSetting compression;
  Extensions own;  // the user's own objects, which the text may name

  // Throws InvalidArgument for unknown names and options, listing the known ones.
  static ModeSetting parse(const Spec& spec, const Extensions& own = {});
};

class ServersBackend final : public Backend {
 public:
  // Joins the job. Blocks and throws as Node::join() does.
  ServersBackend(const ClusterConfig& config, ModeSetting setting, const StoreOptions& options);
  ~ServersBackend() override;

  int rank() const override { return node_->rank(); }
  int size() const override { return workers_; }
  int server_count() const override { return servers_; }
  bool holds_tables() const override { return traits_.holds_tables; }
  bool leads() const override { return client_.leader() == rank(); }
  bool joined_late() const override { return joined_late_; }

  void init(const std::vector<InitValue>& values) override;
  void set_optimizer(const Spec& optimizer) override;
  void set_learning_rate(double rate) override;
  void push(const std::vector<PushItem>& items, std::int64_t examples, int priority) override;
  void pull(const std::vector<PullItem>& items, int priority) override;
  void push_pull(const std::vector<PushItem>& gradients, const std::vector<PullItem>& weights, std::int64_t examples,
                 int priority) override;
  void init_tables(const std::vector<TableSpec>& tables) override;
  void fill_table(const std::string& table, const FirstRows& values) override;
  void push_pull_rows(const std::vector<RowPush>& pushes, const std::vector<RowPull>& pulls, std::int64_t examples,
                      int priority) override;
  void step_end() override;
  void reached(std::uint64_t step) override { node_->reached(step); }
  GatheredValues all_gather(const std::string& name, const std::string& value) override;
  void put_fact(const std::string& name, const std::string& value) override;
  Facts facts(const std::string& prefix) override;
  std::pair<int, int> data_part(std::int64_t epoch) override;
  void data_begin(std::int64_t epoch, const DataPlan& plan) override;
  void data_commit(std::int64_t epoch, const PositionRanges& done, const std::string& note) override;
  PositionRanges data_committed(std::int64_t epoch) override;
  std::vector<std::string> data_notes(std::int64_t epoch) override;
  PositionRanges data_take_over(std::int64_t epoch, bool wait, PieceSize size) override;
  StoreReport report() override;
  StoreState save() override;
  void load(const StoreState& state) override {
    load_made([&] { return state; }, [] {});
  }
  void finish() override;

  // The next functions are for a backend that wraps this one.

  // For a backend whose workers run the optimizer: sets the optimizer of the servers, and the rule whose state this
  // worker keeps. All workers must pass the same `agreed`.
  void set_rules(const Spec& at_servers, const std::string& agreed, std::unique_ptr<WorkerRule> state);
  // Task: pulls the weights that result from the steps before `step`.
  void pull_after(const std::vector<PullItem>& items, std::uint64_t step, int priority);
  // The number of finished steps of this worker.
  std::uint64_t clock();
  // Ends a pause of this worker, if there is one: rounds wait for this worker again.
  void enter() { resume_if_paused(); }
  // The number of workers that have neither left nor been lost, as far as this worker knows.
  int live_workers() const { return static_cast<int>(node_->roster().live(Role::kWorker).size()); }
  // Asks the servers for weights, state and counters of all keys.
  SavedStore fetch_state();
  // As load(), but only the leader calls `make`, for the state to load. If `make` throws, every worker throws. Every
  // worker calls `renewed` when it has pulled the weights of the servers, also if the servers have loaded only a part.
  void load_made(const std::function<StoreState()>& make, const std::function<void()>& renewed);

 private:
  RemoteKey& find(const std::string& name) PACELINE_REQUIRES(mutex_);
  // Finds a key, and sets `previous` to it. First tries the key that followed `previous` the last time. Throws
  // InvalidArgument if `array` does not fit the key.
  RemoteKey& find(const std::string& name, const NDArray& array, const char* use, RemoteKey*& previous)
      PACELINE_REQUIRES(mutex_);
  NDArray prepare_gradient(RemoteKey& key, const NDArray& gradient, int priority) PACELINE_REQUIRES(mutex_);
  // Outputs, each with the host array that is copied to it.
  using Copies = std::vector<std::pair<NDArray, NDArray>>;
  struct PartCall {
    const char* task;
    std::int64_t examples;
    int priority;
    std::uint64_t need;
  };
  // Does the key travel part by part? It does if its arrays are large and on an accelerator, and nothing reads them as
  // a whole. Each part is then sent as soon as it is on the host, and pulled weights go back part by part.
  bool goes_in_parts(const RemoteKey& key, const NDArray* gradient, const NDArray* out) const PACELINE_REQUIRES(mutex_);
  void transfer_parts(RemoteKey& key, const NDArray* gradient, const NDArray* out, const PartCall& call, Copies* copies)
      PACELINE_REQUIRES(mutex_);
  // `exact`: pulled weights are not encoded. `need`: a pull waits until this many steps are over; none: as many as this
  // worker's next computation needs.
  void transfer(const std::vector<PushItem>& gradients, const std::vector<PullItem>& weights, std::int64_t examples,
                int priority, bool exact, std::optional<std::uint64_t> need = std::nullopt);
  void pull_exactly(const std::vector<PullItem>& items);
  // Does the codec keep the optimizer's momentum?
  bool momentum_is_encoded() const;
  // Makes the message that gives the rules to the servers.
  wire::SetRules rules_message(const Spec& optimizer, const std::string& policy);
  // Gives the momentum to the codec. Returns the optimizer without momentum, for the servers.
  Spec split_momentum(const Spec& optimizer, const std::string& policy);
  // Replaces pulled weights in `out` by predicted ones, if the policy predicts.
  void predict(RemoteKey& key, const NDArray& out, int priority) PACELINE_REQUIRES(mutex_);
  void launch(const char* name, std::vector<Transfer::Item> items, std::int64_t examples, int priority)
      PACELINE_REQUIRES(mutex_);
  // Starts the rest of a push that has sent only a proposal (two_round_push.h).
  void finish_proposal(RemoteKey& key, int priority) PACELINE_REQUIRES(mutex_);
  // Runs `action` when all pushes so far are answered.
  void when_pushed(Delivery::Action action);
  std::shared_ptr<Step> new_step(std::uint64_t number);

  // Adds the placement of partitions that the scheduler has sent.
  void add_places(const std::vector<wire::Placement>& places);
  std::shared_ptr<const Placement> placement();
  void add_keys(const Layout& layout, const std::vector<InitValue>& values);
  void send_values(const Layout& layout, const std::vector<InitValue>& values);
  // Sends a message to every server, or to servers [begin, end). Returns the largest `fastest` and the largest
  // `slowest` of their answers.
  wire::StepEndReply tell_servers(const wire::StepEnd& message) { return tell_servers(message, 0, servers_); }
  wire::StepEndReply tell_servers(const wire::StepEnd& message, int begin, int end);
  // Learns from the scheduler whether this worker has joined after the start, and whether the others have already
  // passed a barrier.
  void look_around();
  void set_clock(std::uint64_t clock);
  // No round and no bound waits for this worker until its next push, pull or barrier.
  void pause();
  // Thread-safe.
  void resume_if_paused();
  void resume();

  void send_own_state();
  StoreState fetch_whole_state();
  // Sends a whole state. All errors about the state come before the weights and the tables at the servers change. Then
  // sets `changed`.
  void send_loaded(const StoreState& state, bool* changed);
  // Throws InvalidArgument if a worker could not take this share of a state.
  void check_share(NamedArrays share);
  // The messages that load the keys. Throws InvalidArgument for a state that does not fit the keys.
  std::vector<std::pair<int, Message>> state_requests(const SavedStore& store);
  NamedArrays fetch_blobs(int server, int worker, SavedStore* all);
  void send_blobs(int server, int worker, const NamedArrays& arrays);
  void clear_blobs();
  // Takes this worker's share of a loaded state.
  void take_share(NamedArrays mine);
  void pull_loaded();

  // The next functions are for row-sparse tables.
  void fetch_tables(StoreState& state);
  // A table of a state, before it is sent.
  struct LoadingTable {
    const RemoteTable* table;
    LoadedTable loaded;
    RowOrder order;
  };
  // Throws InvalidArgument for a state that does not fit the tables or the rules.
  std::vector<LoadingTable> read_tables(const StoreState& state);
  void send_tables(std::vector<LoadingTable> tables);
  void send_first_rows(const RemoteTable& table, const FirstRows& values);
  // After a load: forgets failed pushes, and which versions of rows this worker has pulled.
  void renew_tables();
  std::vector<const RemoteTable*> tables();

  // Sends all requests at once, and waits for all answers. Throws the first failure.
  std::vector<Message> ask_servers(std::vector<std::pair<int, Message>> requests);
  std::vector<Message> ask_every_server(const Message& request);

  const ModeSetting setting_;
  const ModeTraits traits_;
  Engine& engine_;
  int workers_ = 0, servers_ = 0;
  std::unique_ptr<Node> node_;
  SchedulerClient client_;
  std::vector<std::unique_ptr<Outbox>> outboxes_;
  std::vector<std::unique_ptr<Coalescer>> coalescers_;
  std::unique_ptr<Outbox> scheduler_;
  std::shared_ptr<Pending> pending_ = std::make_shared<Pending>();
  // The largest number of closed steps whose end some server has not answered. If rounds wait for every worker, servers
  // answer late when this worker is far ahead (ServerShard::step_end()). step_end() then blocks while there are more
  // such steps.
  static constexpr int kMostOpenSteps = 4;
  std::shared_ptr<Pending> open_steps_ = std::make_shared<Pending>();
  std::atomic<std::int64_t> waited_microseconds_{0};

  Mutex mutex_;  // calls of push, pull and step_end may come from several threads
  StoreCall::Route route_ PACELINE_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::unique_ptr<RemoteKey>> keys_ PACELINE_GUARDED_BY(mutex_);
  std::uint64_t calls_ PACELINE_GUARDED_BY(mutex_) = 0;
  RemoteKey* last_key_ PACELINE_GUARDED_BY(mutex_) = nullptr;  // the key that was named last
  std::map<std::string, std::unique_ptr<RemoteTable>> tables_ PACELINE_GUARDED_BY(mutex_);
  std::uint64_t row_calls_ PACELINE_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<Step> step_ PACELINE_GUARDED_BY(mutex_);
  std::weak_ptr<Delivery> last_delivery_ PACELINE_GUARDED_BY(mutex_);
  bool pushed_in_step_ PACELINE_GUARDED_BY(mutex_) = false;
  std::shared_ptr<WorkerRule> rule_ PACELINE_GUARDED_BY(mutex_);
  std::unique_ptr<Compressor> compressor_ PACELINE_GUARDED_BY(mutex_);  // null: nothing is encoded

  std::map<std::uint32_t, std::unique_ptr<RemotePartition>> partitions_;
  Spec optimizer_{"sgd", {}}, table_optimizer_{"sgd", {}};
  std::string policy_ = "none";  // name of the staleness policy
  std::uint32_t init_calls_ = 0, optimizer_calls_ = 0;
  std::uint64_t rate_calls_ = 0, pauses_ = 0, table_loads_ = 0;
  Answers failed_;      // the first error of a push; what is committed from then on does not count as delivered
  Mutex resume_mutex_;  // of several threads that push after a pause, one resumes and the others wait for it
  std::atomic<bool> paused_ = false;
  bool finished_ = false;
  bool joining_ = false;      // this worker joined after the start, and has no weights yet; others must not rely on it
  bool joined_late_ = false;  // the others had passed a barrier when this worker joined
};

std::unique_ptr<Backend> make_servers_backend(const ClusterConfig& config, const Spec& mode,
                                              const StoreOptions& options);

}  // namespace paceline
